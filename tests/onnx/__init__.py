"""ONNX's own node tests, run by its own runner against files that aotc built. ``python -m tests.onnx --help``."""
