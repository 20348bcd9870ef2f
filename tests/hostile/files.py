"""Runs cut and changed built files through both loaders: each must be refused with a message that names it, or serve as before.

    python -m tests.hostile.files --count 500 --seed 0

Every mutant is a function of its seed; verdicts go into tests/hostile/results_files.json, and what it has is not run again. The loaders run in processes of their own with limits on time and memory; the C loader under the
address and undefined-behaviour sanitizers where there is a gcc. A file whose plan or manifest is damaged under a right checksum may open:
it is opened and described, not run.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import aotc
from aotc.packaging import header
from aotc.runtime import aotc_runtime
from aotc.runtime.aotc_runtime import FileInfo
from tests.e2e import small
from tests.packaging.sample import build_sample
from tests.runtime.build import HERE, RUNTIME, compiler, run_tool

MEMORY = 4 << 30  # bytes of address space of the Python loader's process
SECONDS = 120  # for a batch
BATCH = 20  # files a process
RESULTS = Path(__file__).parent / "results_files.json"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

LOADER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
sys.path[:0] = [sys.argv[1]]
import numpy as np, aotc_runtime
for path in sys.stdin.read().split():
    try:
        model = aotc_runtime.load(path, num_threads=1)
        model.info, model.metadata, model.inputs, model.outputs, model.states
        if sys.argv[3:] == ["open"]:
            print("ok:")
            continue
        sizes = [tuple(2 if isinstance(dim, str) else dim for dim in info.shape) for info in model.inputs]
        model.run({info.name: np.ones(size, info.dtype) for info, size in zip(model.inputs, sizes)})
        print("ok:")
    except aotc_runtime.Error as error:
        print("refused:", error)
"""


@dataclass(frozen=True)
class Source:
    """A built file and what it says of itself."""

    data: bytes
    info: FileInfo
    header: int  # where its header lies
    manifest: tuple[int, int]  # offset, size


@cache
def sources() -> tuple[Source, ...]:
    """A file written by hand, with little in it, and one of a compiled network."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "sample.so", Path(folder) / "network.so"]
        build_sample(paths[0])
        aotc.compile(small.mlp(hidden=32, batch="n"), output=paths[1], jobs=0)
        return tuple(map(_source, paths))


def _source(path: Path) -> Source:
    data = path.read_bytes()
    manifest = aotc_runtime._sections(str(path), data, len(data))[header.MANIFEST_SECTION]  # type: ignore[arg-type]  # bytes serve as a map does
    return Source(data, aotc_runtime.read_file(path), data.index(b"AOTCFILE\x01"), manifest)


# ---- Mutants ----


def _cut(source: Source, chance: random.Random) -> bytes:
    return source.data[: chance.randrange(len(source.data))]


def _flip(source: Source, chance: random.Random) -> bytes:
    changed = bytearray(source.data)
    for _ in range(chance.choice((1, 1, 1, 2, 8, 64))):
        edge = min(4096, len(changed))
        place = chance.choice((chance.randrange(edge), len(changed) - 1 - chance.randrange(edge), chance.randrange(len(changed))))
        changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _block(source: Source, chance: random.Random) -> bytes:
    """A piece lost to zeros or to another piece, as after a bad copy."""
    data, size = source.data, chance.choice((16, 512, 4096))
    place, other = chance.randrange(len(data) - size), chance.randrange(len(data) - size)
    return data[:place] + chance.choice((bytes(size), data[other : other + size])) + data[place + size :]


def _longer(source: Source, chance: random.Random) -> bytes:
    return source.data + chance.randbytes(chance.choice((1, 7, 4096)))


def _elf(source: Source, chance: random.Random) -> bytes:
    """Telling values in the fields of the ELF header, of segments and of sections."""
    changed = bytearray(source.data)
    (segments, sections) = struct.unpack_from("<QQ", changed, 32)
    begin, width = chance.choice(((16, 48), (segments, 56 * 8), (sections, len(changed) - sections)))
    for _ in range(chance.choice((1, 2, 4))):
        place = min(begin + chance.randrange(max(width // 4, 1)) * 4, len(changed) - 8)
        struct.pack_into("<I", changed, place, chance.choice((0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, chance.randrange(1 << 16))))
    return bytes(changed)


def _header(source: Source, chance: random.Random) -> bytes:
    """A field of our header with the checksum set right again."""
    changed = bytearray(source.data)
    place = source.header + 4 * chance.randrange(header.SIZE // 4)
    struct.pack_into("<I", changed, place, chance.choice((0, 1, 2, 183, 0xFFFFFFFF, chance.randrange(1 << 32))))
    return _with_checksum(changed, source)


def _sealed(source: Source, chance: random.Random) -> bytes:
    """The plan or the manifest changed, with the checksum set right again."""
    changed = bytearray(source.data)
    begin, size = chance.choice((source.info.plan, source.manifest))
    for _ in range(chance.choice((1, 2, 8))):
        place = begin + chance.randrange(size)
        changed[place] = chance.choice((0, 0xFF, changed[place] ^ 1 << chance.randrange(8), chance.randrange(256)))
    return _with_checksum(changed, source)


def _with_checksum(changed: bytearray, source: Source) -> bytes:
    with tempfile.TemporaryFile() as file:
        file.write(changed)
        file.flush()
        right = header.checksum(file.fileno(), source.header, source.info.weights)
    struct.pack_into("<I", changed, source.header + header.CHECKSUM_OFFSET, right)
    return bytes(changed)


MUTATIONS: tuple[Callable[[Source, random.Random], bytes], ...] = (_cut, _flip, _block, _longer, _elf, _header, _sealed)


def mutant(seed: int) -> tuple[Source, bytes, str]:
    """The file that a seed makes, what it was, and the kind of change."""
    chance = random.Random(seed)
    source = sources()[seed % len(sources())]
    mutation = MUTATIONS[seed // len(sources()) % len(MUTATIONS)]
    return source, mutation(source, chance), mutation.__name__[1:]


def may_serve(source: Source, data: bytes) -> bool:
    """Whether only bytes that loaders do not judge differ: weights, and the header's own texts and notes."""
    if len(data) != len(source.data):
        return False
    first, size = source.info.weights
    spared = (*range(first, first + size), *range(source.header, source.header + header.SIZE))
    before, after = bytearray(source.data), bytearray(data)
    for place in spared:
        before[place] = after[place] = 0
    return before == after


# ---- Loaders ----


def _c_loader(folder: Path) -> list[str]:
    made = folder / "open_many"
    flags = SANITIZERS if shutil.which("gcc") else []
    parts = [str(HERE / "open_many.c"), str(RUNTIME / "aotc_loader.c")]
    run_tool([*compiler(), "-std=c11", "-O1", "-g", *flags, f"-I{RUNTIME}", *parts, "-o", str(made), "-ldl"])
    return [str(made)]


def run(seeds: list[int]) -> dict[int, str]:
    """The verdict on each seed: the kind of change, then served or refused by each loader; or FAULT and what is wrong."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loaders = {"Python": [sys.executable, "-c", LOADER, str(RUNTIME.parent), str(MEMORY)], "C": _c_loader(folder)}
        made = {seed: mutant(seed) for seed in seeds}
        for opened in (False, True):  # whether files are opened only
            some = [seed for seed in seeds if (made[seed][2] == "sealed") is opened]
            for first in range(0, len(some), BATCH):
                batch = some[first : first + BATCH]
                paths = [folder / f"{seed}.so" for seed in batch]
                for path, seed in zip(paths, batch, strict=True):
                    path.write_bytes(made[seed][1])
                answers = [_answers([*command, *["open"] * opened], paths) for command in loaders.values()]
                for seed, path, *said in zip(batch, paths, *answers, strict=True):
                    found[seed] = _judged(*made[seed], path, dict(zip(loaders, said, strict=True)))
                    path.unlink()
    return found


def _answers(command: list[str], paths: list[Path]) -> list[str]:
    """What a loader says to each file; where its process dies or hangs, each file gets one of its own."""
    try:
        text = "\n".join(map(str, paths)) + "\n"
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=SECONDS)
        answers = done.stdout.splitlines()
        if done.returncode == 0 and len(answers) == len(paths):
            return answers
        end = f"died: {done.returncode} {done.stderr[-1500:]}"
    except subprocess.TimeoutExpired:
        end = f"hung: more than {SECONDS} s"
    return [end] if len(paths) == 1 else [answer for path in paths for answer in _answers(command, [path])]


def _judged(source: Source, data: bytes, kind: str, path: Path, answers: dict[str, str]) -> str:
    verdicts = []
    for loader, answer in answers.items():
        if answer.startswith(("died:", "hung:")):
            return f"FAULT {kind}: the {loader} loader {answer}"
        verdicts.append("served" if answer.startswith("ok:") else "refused")
        if verdicts[-1] == "served" and kind != "sealed" and not may_serve(source, data):
            return f"FAULT {kind}: the {loader} loader serves it"
        if verdicts[-1] == "refused" and (str(path) not in answer or len(answer) < len(str(path)) + 30):
            return f"FAULT {kind}: the {loader} loader says {answer!r}"
    return " ".join([kind, *verdicts])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    known: dict[str, str] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    seeds = [seed for seed in range(options.seed, options.seed + options.count) if known.get(str(seed), "FAULT").startswith("FAULT")]
    for first in range(0, len(seeds), 100):
        known |= {str(seed): verdict for seed, verdict in run(seeds[first : first + 100]).items()}
        RESULTS.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
    faults = [f"seed {seed}: {verdict}" for seed, verdict in known.items() if verdict.startswith("FAULT")]
    counts = Counter(verdict for verdict in known.values() if not verdict.startswith("FAULT"))
    print(*(f"{verdict}: {count}" for verdict, count in sorted(counts.items())), *faults, sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
