"""What runs a built file: the C runtime that is linked into it, and the loaders of applications."""

from aotc.runtime.loader import load

__all__ = ["load"]
