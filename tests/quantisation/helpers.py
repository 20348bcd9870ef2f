"""How far a quantised result is from the true one."""

from __future__ import annotations

import numpy as np


def decibels(reference: np.ndarray, result: np.ndarray) -> float:
    """Signal to noise."""
    return float(10 * np.log10(np.square(reference).sum() / max(np.square(reference - result).sum(), 1e-30)))
