"""PyTorch's own samples of its core operators, each exported and run from a file that aotc built. ``python -m tests.aten --help``."""
