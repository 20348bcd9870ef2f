"""Float networks in int8."""

from __future__ import annotations
