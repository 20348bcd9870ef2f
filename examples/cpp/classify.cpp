// Classifies one image with a built model: classify_cpp model.so image.npy labels.txt
//
// The image is a .npy file of the model's first input (float32, 1x3xHxW, preprocessed); labels.txt has one name a line. Prints the five
// best classes of the model's first output.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "aotc.hpp"
#include "aotc_npy.h"

namespace {

struct image_file {
    explicit image_file(const char *path) {
        char message[256];
        if (npy_read(path, &tensor, message) != 0) throw std::runtime_error(message);
        if (tensor.dtype.code != kDLFloat || tensor.dtype.bits != 32) throw std::runtime_error("the image is not float32");
    }
    ~image_file() { npy_free(&tensor); }
    image_file(const image_file &) = delete;
    image_file &operator=(const image_file &) = delete;

    const float *data() const { return static_cast<const float *>(tensor.data); }
    aotc::shape dims() const { return aotc::shape(tensor.shape, tensor.shape + tensor.ndim); }

    DLTensor tensor;
};

std::vector<std::string> lines_of(const char *path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("the file of labels cannot be opened");
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

void classify(const char *model_path, const char *image_path, const char *labels_path) {
    const std::vector<std::string> labels = lines_of(labels_path);
    const image_file image(image_path);

    aotc::model model(model_path);
    aotc::session session(model, 2);
    session.bind_input(model.inputs().at(0).name, image.data(), image.dims()); // read where it lies
    session.run();
    const aotc::view<const float> scores = session.output<float>(model.outputs().at(0).name);

    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t shown = std::min<std::size_t>(5, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(shown), order.end(),
                      [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    for (std::size_t i = 0; i < shown; i++) {
        const std::string label = order[i] < labels.size() ? labels[order[i]] : "?";
        std::printf("%zu. %s %.4f\n", i + 1, label.c_str(), static_cast<double>(scores[order[i]]));
    }
}

} // namespace

int main(int count, char **words) {
    if (count != 4) {
        std::fprintf(stderr, "usage: classify_cpp model.so image.npy labels.txt\n");
        return 2;
    }
    try {
        classify(words[1], words[2], words[3]);
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "classify_cpp: %s\n", failure.what());
        return 1;
    }
    return 0;
}
