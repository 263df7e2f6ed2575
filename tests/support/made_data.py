"""Made-up data sets in the files of the real ones: noise around a pattern for each class."""

import numpy as np

from tasks import datasets

HIGHEST = {"pixels": (200, 56), "characters": (79, 2), "vectors": (200, 56)}
"""Encoding -> the numbers of a pattern and of the noise are below these."""


def made(folder, name, train=240, test=100, users=0, classes=0):
    """Write NAME.npz with as many samples, users (0: none) and classes (0: those of the data set)."""
    rng, description = np.random.default_rng(0), datasets.DESCRIPTIONS[name]
    classes = classes or min(description.num_classes, train)
    of_pattern, of_noise = HIGHEST[description.encoding]
    patterns = rng.integers(0, of_pattern, (classes, *description.shape))
    arrays = {}
    for half, size in (("train", train), ("test", test)):
        labels = np.arange(size) % classes
        inputs = patterns[labels] + rng.integers(0, of_noise, (size, *description.shape))
        vectors = description.encoding == "vectors"
        arrays[f"x_{half}"] = (inputs / 255).astype(np.float32) if vectors else inputs.astype(np.uint8)
        arrays[f"y_{half}"] = labels
        if users:
            arrays[f"users_{half}"] = np.array([f"user {i % users}" for i in range(size)])
    np.savez(folder / f"{name}.npz", **arrays)
    return folder / f"{name}.npz"
