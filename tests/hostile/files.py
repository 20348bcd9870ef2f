"""Runs cut and changed built files through both loaders: each must be refused with a message that names it, or serve as before.

    python -m tests.hostile.files --count 500 --seed 0

Every mutant is a function of its seed. The loaders run in processes of their own with limits on time and memory; the C loader under the
address and undefined-behaviour sanitizers where there is a gcc.
"""

from __future__ import annotations

import argparse
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
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

LOADER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
sys.path[:0] = [sys.argv[1]]
import numpy as np, aotc_runtime
for path in sys.stdin.read().split():
    try:
        model = aotc_runtime.load(path, num_threads=1)
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


@cache
def sources() -> tuple[Source, ...]:
    """A file written by hand, with little in it, and one of a compiled network."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "sample.so", Path(folder) / "network.so"]
        build_sample(paths[0])
        aotc.compile(small.mlp(hidden=32, batch="n"), output=paths[1], jobs=0)
        return tuple(Source(p.read_bytes(), aotc_runtime.read_file(p), p.read_bytes().index(b"AOTCFILE\x01")) for p in paths)


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
    with tempfile.TemporaryFile() as file:
        file.write(changed)
        file.flush()
        right = header.checksum(file.fileno(), source.header, source.info.weights)
    struct.pack_into("<I", changed, source.header + header.CHECKSUM_OFFSET, right)
    return bytes(changed)


MUTATIONS: tuple[Callable[[Source, random.Random], bytes], ...] = (_cut, _flip, _block, _longer, _elf, _header)


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


def run(seeds: list[int]) -> tuple[Counter[str], list[str]]:
    """How often each verdict came, and what is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loaders = {"Python": [sys.executable, "-c", LOADER, str(RUNTIME.parent), str(MEMORY)], "C": _c_loader(folder)}
        made = {seed: mutant(seed) for seed in seeds}
        paths = [folder / f"{seed}.so" for seed in seeds]
        for path, (_, data, _) in zip(paths, made.values(), strict=True):
            path.write_bytes(data)
        verdicts: Counter[str] = Counter()
        faults = []
        for loader, command in loaders.items():
            text = "\n".join(map(str, paths)) + "\n"
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=SECONDS)
            answers = done.stdout.splitlines()
            if done.returncode or len(answers) != len(seeds):
                at = seeds[min(len(answers), len(seeds) - 1)]
                faults.append(f"the {loader} loader ended with {done.returncode} at seed {at}: {done.stderr[-1500:]}")
            for seed, path, answer in zip(seeds, paths, answers, strict=False):
                source, data, kind = made[seed]
                verdict = "served" if answer.startswith("ok:") else "refused"
                verdicts[f"{kind} {verdict}"] += 1
                if verdict == "served" and not may_serve(source, data):
                    faults.append(f"seed {seed}: the {loader} loader serves it")
                if verdict == "refused" and (str(path) not in answer or len(answer) < len(str(path)) + 30):
                    faults.append(f"seed {seed}: the {loader} loader says {answer!r}")
        return verdicts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seeds = list(range(options.seed, options.seed + options.count))
    verdicts, faults = run(seeds)
    print(*(f"{name}: {count}" for name, count in sorted(verdicts.items())), *faults, sep="\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
