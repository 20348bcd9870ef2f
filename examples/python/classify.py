"""Classifies one image with a built model: python3 classify.py model.so image.npy labels.txt

Runs on the board with Python 3.6 or newer and NumPy; put aotc_runtime.py beside this file. The image is a .npy file of the model's first
input (float32, 1x3xHxW, preprocessed); labels.txt has one name a line. Prints the five best classes of the model's first output.
"""

import sys

import aotc_runtime
import numpy as np


def main(model_path, image_path, labels_path):
    with open(labels_path) as file:
        labels = file.read().splitlines()
    model = aotc_runtime.load(model_path, num_threads=2)
    outputs = model.run({model.inputs[0].name: np.load(image_path)})
    scores = next(iter(outputs.values())).reshape(-1)
    for rank, number in enumerate(np.argsort(-scores)[:5], start=1):
        print(f"{rank}. {labels[number]} {scores[number]:.4f}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: classify.py model.so image.npy labels.txt")
    try:
        main(*sys.argv[1:])
    except aotc_runtime.Error as error:
        sys.exit(f"classify.py: {error}")
