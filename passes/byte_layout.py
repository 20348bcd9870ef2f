"""Integer convolutions and products as kernels compute them: channels in blocks of bytes, weights in units."""

from __future__ import annotations

import numpy as np


def conv_weight(data: np.ndarray, block: int, unit: int, panel: int) -> np.ndarray:
    """w[O, C, *k] as [ceil(O / 16) / panel, ceil(C / block), *k, block / unit, panel * 16, unit], zero where filled."""
    filled = _filled(_filled(data, 0, 16), 1, block)
    outputs, inputs, *kernel = filled.shape
    split = filled.reshape(outputs // (16 * panel), 16 * panel, inputs // block, block // unit, unit, *kernel)
    return np.ascontiguousarray(np.moveaxis(split, (3, 1, 4), (-3, -2, -1)))


def blocked_bytes(data: np.ndarray, block: int) -> np.ndarray:
    """[N, C, *S] as [N, ceil(C / block), *S, block], zero where filled."""
    filled = _filled(data, 1, block)
    return np.ascontiguousarray(np.moveaxis(filled.reshape(data.shape[0], -1, block, *data.shape[2:]), 2, -1))


def _filled(data: np.ndarray, axis: int, block: int) -> np.ndarray:
    widths = [(0, 0)] * data.ndim
    widths[axis] = (0, -data.shape[axis] % block)
    return np.pad(data, widths)
