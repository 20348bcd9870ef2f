"""``make bench``: aotc beside ONNX Runtime on this machine, in one run, written to benchmarks/results.md."""

from __future__ import annotations
