"""Kernels of csrc/kernels.c that models of several files use, and the element types."""

from __future__ import annotations

from aotc.lowering.plan import Kernel

F32, I64, I32 = "float32", "int64", "int32"
SCALE, BIAS_RELU = Kernel("k_scale", 3, 1), Kernel("k_bias_relu", 3, 1)
"""y = x * w, and y = max(x + b, 0), by rows of 8."""
