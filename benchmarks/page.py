"""docs/performance.md: each command of this folder writes its own section between two marks and leaves the others as they are."""

from __future__ import annotations

import importlib.metadata
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import aotc
from aotc.measure.calibration import machine

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "performance.md"
SECTIONS = ("arm", "sweep", "scaling", "ablation")
"""In the order in which the page has them."""

_HEAD = """# Performance

Each section was written by the command that it names, in one run on one machine; run it again to see yours.
`python -m benchmarks.peers` has times beside other engines.
"""


def write_section(name: str, lines: Iterable[str], page: Path | None = None) -> None:
    """Puts ``lines`` in the place of the section ``name``, of SECTIONS, in PAGE where no other page is named."""
    page = page or PAGE
    sections = read_sections(page)
    sections[name] = "\n".join(line.rstrip() for line in lines).strip()
    texts = [f"<!-- {each} -->\n{sections[each]}\n<!-- end of {each} -->\n" for each in SECTIONS if each in sections]
    page.write_text("\n".join([_HEAD, *texts]))


def read_sections(page: Path) -> dict[str, str]:
    """The text of each section that the page has."""
    text = page.read_text() if page.exists() else ""
    return dict(re.findall(r"<!-- (\w+) -->\n(.*?)\n<!-- end of \1 -->", text, re.DOTALL))


def provenance(command: str, *packages: str) -> str:
    """When, where and with what a section was measured; ``packages`` are named with their versions."""
    versions = [f"{package} {importlib.metadata.version(package)}" for package in ("apache-tvm", *packages)]
    return f"`{command}` on {time.strftime('%-d %B %Y')}: {machine()}, aotc {aotc.__version__}, {', '.join(versions)}."


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table."""
    return [_row(headings), "|" + "---|" * len(headings), *map(_row, rows)]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
