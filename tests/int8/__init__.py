"""Whole networks in int8, with real data: what issue-sized promises stand on. ``python -m tests.int8 run``."""

from __future__ import annotations
