"""Real networks and images for tests, demo and benchmarks.

Weights and images come from packages (tests/models.txt) and are never copied into the project. What is derived from
them, such as ONNX exports, is written once to build/zoo and reused.
"""

from __future__ import annotations
