"""Writes docs/coverage.md: which operators work, counted by tests that others wrote.

    python -m tools.coverage            # write it
    python -m tools.coverage --check    # fail if it is out of date

It is made of the committed results of ONNX's node tests (``python -m tests.onnx run``) and of torch's own samples of the core
ATen operators (``python -m tests.aten``).
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import onnx

from tests.onnx import results
from tests.onnx.cases import Operator
from tests.onnx.results import EXCLUDED, FAIL, PASS, Result

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"
DOMAINS = ("ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


def page() -> str:
    return "\n".join([_HEAD, *(line for section in SECTIONS for line in section()), ""])


def onnx_section() -> list[str]:
    """Per operator and opset: passed of how many node tests."""
    host, arm = results.read("host"), results.read("aarch64")
    by_operator: dict[Operator, list[Result]] = defaultdict(list)
    for result in host.values():
        by_operator[result.operator].append(result)
    lines = ["## ONNX", "", _totals(host.values(), arm.values()), "", *_exclusions(host.values())]
    for domain in DOMAINS:
        operators = sorted(
            {*_defined(domain), *(each for each in by_operator if each.domain == domain)}, key=lambda each: (each.name, each.since)
        )
        lines += [f"### {domain}", "", "| operator | opset | passed | of | not passed |", "|---|---|---|---|---|"]
        lines += [_row(operator, by_operator.get(operator, [])) for operator in operators]
        lines.append("")
    return [*lines, *_failures(host.values())]


def aten_section() -> list[str]:
    """Per core operator: passed of how many of torch's own samples."""
    found = results.read("aten")
    by_operator: dict[str, list[Result]] = defaultdict(list)
    for result in found.values():
        by_operator[result.operator.name].append(result)
    counts = Counter(result.outcome for result in found.values())
    lines = [
        "## ATen", "",
        f"{counts[PASS]} of {counts[PASS] + counts[FAIL]} samples pass: torch's own for its core operators, up to four of each, exported by "
        "torch.export and run from a built file on x86-64. Other operators arrive at these through torch's decompositions.", "",
        "| operator | passed | of | not passed |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, of in sorted(by_operator.items()):
        tally = Counter(result.outcome for result in of)
        reasons = [f"{result.name.split()[-1]}: {_escaped(result.reason)}" for result in of if result.outcome == FAIL]
        if tally[PASS] + tally[FAIL] == 0:
            reasons = [of[0].reason]
        lines.append(f"| {name} | {tally[PASS]} | {tally[PASS] + tally[FAIL]} | {'; '.join(reasons)} |")
    return [*lines, ""]


def _escaped(reason: str) -> str:
    return reason.replace("|", "\\|").replace("<", "&lt;")


def _totals(host: Iterable[Result], arm: Iterable[Result]) -> str:
    counts, emulated = Counter(result.outcome for result in host), Counter(result.outcome for result in arm)
    counted = counts[PASS] + counts[FAIL]
    share = 100 * counts[PASS] / max(counted, 1)
    return (
        f"{counts[PASS]} of {counted} node tests of onnx {onnx.__version__} pass on x86-64 ({share:.1f} %), each from a built file, all inputs "
        f"given while it runs; {counts[EXCLUDED]} more do not count. Of {sum(emulated.values())} drawn by seed, {emulated[PASS]} pass as "
        "aarch64 code under qemu."
    )


def _exclusions(found: Iterable[Result]) -> list[str]:
    counts = Counter(result.reason.partition(":")[0] for result in found if result.outcome == EXCLUDED)
    return ["Those that do not count:", "", *(f"- {reason}: {count}" for reason, count in sorted(counts.items())), ""]


def _defined(domain: str) -> list[Operator]:
    """The operators of a domain, each in its newest version."""
    plain = "" if domain == "ai.onnx" else domain
    newest: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == plain and not schema.deprecated:
            newest[schema.name] = max(newest.get(schema.name, 0), schema.since_version)
    return [Operator(domain, name, since) for name, since in newest.items()]


def _row(operator: Operator, found: Sequence[Result]) -> str:
    counts = Counter(result.outcome for result in found)
    notes = [f"{counts[FAIL]} fail, see below"] if counts[FAIL] else []
    reasons = Counter(result.reason.partition(":")[0] for result in found if result.outcome == EXCLUDED)
    notes += [f"{count} do not count: {reason}" for reason, count in sorted(reasons.items())]
    if not found:
        notes = ["no node test"]
    return f"| {operator.name} | {operator.since} | {counts[PASS]} | {counts[PASS] + counts[FAIL]} | {'; '.join(notes)} |"


def _failures(found: Iterable[Result]) -> list[str]:
    failed = sorted((result for result in found if result.outcome == FAIL), key=lambda result: (result.operator, result.name))
    lines = ["### Node tests that fail", "", "| operator | test | reason |", "|---|---|---|"]
    for result in failed:
        lines.append(f"| {result.operator.name} | {result.name} | {_escaped(result.reason)} |")
    return [*lines, ""] if failed else []


_HEAD = """# Coverage

Which operators work, counted by tests that others wrote. `python -m tools.coverage` writes this page from the committed results; CI
fails if it is out of date. `python -m tests.onnx run` makes the results of ONNX's node tests anew, `python -m tests.aten` those of
torch's samples.
"""

SECTIONS: tuple[Callable[[], list[str]], ...] = (onnx_section, aten_section)


def main(arguments: Sequence[str]) -> int:
    text = page()
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text() == text:
            return 0
        print(f"{PAGE.name} is out of date: run python -m tools.coverage", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
