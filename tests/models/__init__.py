"""Whole networks of torchvision and transformers against PyTorch: `python -m tests.models --help`.

Weights are random and seeded, configurations small; what is shown is that each architecture imports, builds and computes
what PyTorch computes. Results are kept in results.json, network by network, and the page docs/models.md is made of them.
"""
