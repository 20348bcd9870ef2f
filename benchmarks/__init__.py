"""Measurements that take longer than tests: ``benchmarks.peers`` beside other engines, ``benchmarks.large_model`` of memory."""
