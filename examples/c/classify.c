/* Classifies one image with a built model: classify_c model.so image.npy labels.txt
 *
 * The image is a .npy file of the model's first input (float32, 1x3xHxW, preprocessed); labels.txt has one name a line. Prints the five
 * best classes of the model's first output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "aotc.h"
#include "aotc_npy.h"

#define SHOWN 5

static void die(const char *message) {
    fprintf(stderr, "classify_c: %s\n", message);
    exit(1);
}

/* Line `number` of the file, counted from 0, without its line end. */
static const char *label_of(FILE *labels, size_t number, char *line, int size) {
    rewind(labels);
    for (size_t i = 0; i <= number; i++)
        if (!fgets(line, size, labels)) return "?";
    line[strcspn(line, "\r\n")] = 0;
    return line;
}

static void print_best(const DLTensor *scores, FILE *labels) {
    const float *values = (const float *)((const char *)scores->data + scores->byte_offset);
    size_t count = (size_t)scores->shape[scores->ndim - 1];
    char *used = calloc(count, 1), line[256];
    if (!used) die("out of memory");
    for (int rank = 1; rank <= SHOWN && (size_t)rank <= count; rank++) {
        size_t best = count;
        for (size_t i = 0; i < count; i++)
            if (!used[i] && (best == count || values[i] > values[best])) best = i;
        used[best] = 1;
        printf("%d. %s %.4f\n", rank, label_of(labels, best, line, sizeof line), (double)values[best]);
    }
    free(used);
}

int main(int count, char **words) {
    aotc_error error;
    aotc_model_t *model;
    aotc_session_t *session;
    DLTensor image, scores;
    char message[256];
    if (count != 4) die("usage: classify_c model.so image.npy labels.txt");

    FILE *labels = fopen(words[3], "r");
    if (!labels) die("the file of labels cannot be opened");
    if (npy_read(words[2], &image, message)) die(message);

    if (aotc_open(words[1], &model, &error)) die(error.message);
    aotc_session_options options = {.size = sizeof options, .num_threads = 2};
    if (aotc_session_create(model, &options, &session, &error)) die(error.message);

    /* The model reads the image where it lies; refill it and run again for the next frame. */
    if (aotc_bind_input(session, 0, &image, &error)) die(error.message);
    if (aotc_run(session, &error)) die(error.message);
    if (aotc_get_output(session, 0, &scores, &error)) die(error.message);
    if (scores.dtype.code != kDLFloat || scores.dtype.bits != 32 || scores.ndim < 1) die("the model's first output is not float32 scores");
    print_best(&scores, labels);

    aotc_session_destroy(session, NULL);
    aotc_close(model, NULL);
    npy_free(&image);
    fclose(labels);
    return 0;
}
