"""aotc beside other inference engines, in one interleaved run: ``python -m benchmarks.peers --help``."""
