"""What passed, test by test: a text file that is committed, one line a test, and the notes of a run that goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from tests.onnx.cases import Operator

FOLDER = Path(__file__).parent / "results"
UNFINISHED = Path(__file__).parent.parent.parent / "build" / "onnx"
PASS, FAIL, EXCLUDED = "pass", "fail", "excluded"


@dataclass(frozen=True)
class Result:
    """``outcome`` is one of pass, fail, excluded; ``reason`` is empty for a pass."""

    name: str
    operator: Operator
    outcome: str
    reason: str = ""


def path_of(target: str) -> Path:
    return FOLDER / f"{target}.tsv"


def read(target: str) -> dict[str, Result]:
    """The committed results of ``target`` by the test's name."""
    path, found = path_of(target), {}
    if not path.exists():
        return {}
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        name, domain, operator, since, outcome, reason = line.split("\t")
        found[name] = Result(name, Operator(domain, operator, int(since)), outcome, reason)
    return found


def write(target: str, results: Mapping[str, Result]) -> None:
    lines = [f"# onnx {onnx.__version__}'s node tests for {target}: test, domain, operator, its opset, outcome, reason"]
    for result in sorted(results.values(), key=lambda result: result.name):
        operator = result.operator
        lines.append("\t".join([result.name, operator.domain, operator.name, str(operator.since), result.outcome, result.reason]))
    path_of(target).parent.mkdir(exist_ok=True)
    path_of(target).write_text("\n".join(lines) + "\n")


def regressions(found: Iterable[Result], before: Mapping[str, Result]) -> list[Result]:
    """Those that fail and passed in the committed results."""
    return [result for result in found if result.outcome == FAIL and result.name in before and before[result.name].outcome == PASS]


class Journal:
    """The results of a run so far, on disk, so that a run that was ended can be taken up again."""

    def __init__(self, target: str, fresh: bool) -> None:
        self.path = UNFINISHED / f"{target}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            self.clear()

    def read(self) -> dict[str, Result]:
        found = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            entry = json.loads(line)
            found[entry["name"]] = Result(**{**entry, "operator": Operator(**entry["operator"])})
        return found

    def add(self, result: Result) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
