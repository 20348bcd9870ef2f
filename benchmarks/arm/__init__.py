"""Executed aarch64 instructions beside other engines, and cycles of the hottest loops: ``python -m benchmarks.arm --help``."""
