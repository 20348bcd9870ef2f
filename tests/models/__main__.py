"""`python -m tests.models --run all` builds and runs what results.json does not have yet; `--run NAME` whatever matches.

Each network is a process of its own, so that a crash, a hang or a lack of memory is one row and not the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
from typing import Any

from tests.models import results

TIMEOUT = 1800
"""Seconds for one network."""


def main() -> int:
    options = _options()
    if options.one:
        return _one(options.one, options.via, options.jobs)
    from tests.models.catalogue import rows

    if options.run:
        done = results.load()
        for name, via in rows():
            if options.via not in ("both", via) or (options.run != "all" and options.run not in name):
                continue
            entry = done.get(results.key(name, via), {})
            if options.again or options.run != "all" or not entry or (options.failed and "error" in entry):
                _run(name, via, options.jobs)
    if options.page or options.run:
        results.PAGE.write_text(results.page(results.load(), rows()))
    missing = [each for each in rows() if "largest" not in results.load().get(results.key(*each), {})]
    print(f"{len(rows()) - len(missing)} of {len(rows())} agree")
    return int(bool(missing) and options.check)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
    parser.add_argument("--run", help="all, or part of a name: the networks to build, run and compare")
    parser.add_argument("--via", choices=("both", "torch", "onnx"), default="both", help="the way into aotc")
    parser.add_argument("--again", action="store_true", help="with all: also those that results.json has")
    parser.add_argument("--failed", action="store_true", help="with all: also those that failed")
    parser.add_argument("--jobs", type=int, help="processes that build kernels")
    parser.add_argument("--page", action="store_true", help="write docs/models.md anew")
    parser.add_argument("--check", action="store_true", help="fail where a row of the table is missing or does not agree")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(name: str, via: str, jobs: int | None) -> None:
    command = [sys.executable, "-m", "tests.models", "--one", name, "--via", via, *(("--jobs", str(jobs)) if jobs is not None else ())]
    try:
        quiet = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT, env=quiet)
        lines = done.stdout.splitlines()
        entry: dict[str, Any] = json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": _crash(done)}
    except subprocess.TimeoutExpired:
        entry = {"error": f"took more than {TIMEOUT} s"}
    results.update(lambda found: found.__setitem__(results.key(name, via), entry))
    print(results.key(name, via), entry.get("error", entry), flush=True)


def _crash(done: subprocess.CompletedProcess[str]) -> str:
    return f"ended with status {done.returncode}: {' '.join(done.stderr.splitlines()[-3:])[-600:]}"


def _one(name: str, via: str, jobs: int | None) -> int:
    from tests.models.catalogue import cases
    from tests.models.measure import measure

    try:
        entry = measure(cases()[name], via, jobs)
    except Exception as error:  # whatever it is, it is the row's result
        traceback.print_exc()
        entry = {"error": f"{type(error).__name__}: {error}"[:1500]}
    print(json.dumps(entry))
    return 0


if __name__ == "__main__":
    sys.exit(main())
