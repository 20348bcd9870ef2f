"""The version of the compiler and of the runtime in the files that it builds."""

__version__ = "0.1.0"
