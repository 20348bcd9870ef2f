"""One seed: hypothesis draws graphs, each is compared, the first that differs is shrunk."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase

from tests.fuzz.builder import Graph
from tests.fuzz.compare import check
from tests.fuzz.graphs import graphs
from tests.fuzz.script import script

FOLDER = Path(__file__).parent.parent.parent / "build" / "fuzz"
GRAPHS = 50  # of one seed
VARIED = 0.8
"""The share of outputs of two elements or more that must not be constant: in a constant one a wrong kernel might not show."""
REFUSED = 0.1
"""The share of graphs that aotc may refuse."""


@dataclass
class Tally:
    """What became of the graphs of one seed, or of several."""

    graphs: int = 0
    outputs: int = 0
    varied: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    explained: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    failure: str = ""

    def add(self, other: Tally) -> None:
        self.graphs += other.graphs
        self.outputs += other.outputs
        self.varied += other.varied
        for name in ("kinds", "explained", "refused", "operators"):
            setattr(self, name, dict(sorted((Counter(getattr(self, name)) + Counter(getattr(other, name))).items())))
        self.failure = self.failure or other.failure

    def problems(self) -> list[str]:
        """Why this many graphs do not count as a success."""
        found = [self.failure] if self.failure else []
        if self.varied < VARIED * self.outputs:
            found.append(f"only {self.varied} of {self.outputs} outputs are not constant; expected {VARIED:.0%}")
        if self.kinds.get("refused", 0) > REFUSED * self.graphs:
            found.append(f"{self.kinds['refused']} of {self.graphs} graphs were refused; expected at most {REFUSED:.0%}")
        return found


def run_seed(seed: int, count: int = GRAPHS) -> Tally:
    """Compares ``count`` graphs. A difference or an error ends it, with the script of the smallest graph that shows it."""
    tally, last = Tally(), dict[str, str]()
    FOLDER.mkdir(parents=True, exist_ok=True)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, deadline=None, database=None, phases=(Phase.generate, Phase.shrink), report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(graphs())
    def compare(graph: Graph) -> None:
        last["script"] = script(graph)
        current(seed).write_text(last["script"])  # what a crash leaves behind
        outcome = check(graph)
        assert outcome.kind != "different", outcome.reason
        reason = " ".join(outcome.reason.split())[:200]
        one = Tally(1, outcome.outputs, outcome.varied, {outcome.kind: 1}, operators=dict(Counter(set(graph.operators))))
        if outcome.kind in ("explained", "refused"):
            setattr(one, outcome.kind, {reason: 1})
        tally.add(one)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare()
    except Exception as error:
        tally.failure = f"seed {seed}: {type(error).__name__}: {str(error)[:1500]}\n{last.get('script', '')}"
    current(seed).unlink(missing_ok=True)
    return tally


def current(seed: int) -> Path:
    """Where the script of the graph at work is."""
    return FOLDER / f"seed{seed}.py"


def main(seed: int, count: int) -> None:
    """Prints the tally of a seed as JSON."""
    print(json.dumps(asdict(run_seed(seed, count))))
