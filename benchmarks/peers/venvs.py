"""A virtual environment per engine, so that their dependencies cannot collide; made once."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Venv:
    """``alone`` is installed without its dependencies, which would bring what is not needed to run."""

    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()


VENVS = {
    "openvino": Venv(("openvino==2026.4.1", "numpy")),
    "iree": Venv(("iree-base-compiler==3.13.0", "iree-base-runtime==3.13.0", "onnx==1.23.2", "numpy")),
    "executorch": Venv(("torch==2.13.0", "executorch==1.5.1", "numpy")),
    "ncnn": Venv(("ncnn==1.0.20261020", "numpy"), alone=("pnnx==20261020",)),
}
"""By the name that ``Engine.venv`` gives. Engines with "project" use the Python that runs the benchmark."""


def python(name: str, folder: Path) -> Path:
    return Path(sys.executable) if name == "project" else folder / name / "bin" / "python"


def set_up(name: str, folder: Path) -> str | None:
    """Makes the environment unless it is complete. Returns why it could not be made."""
    if name == "project":
        return None
    venv, path = VENVS[name], folder / name
    stamp, wanted = path / "installed.txt", "\n".join([*VENVS[name].packages, *VENVS[name].alone])
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    shutil.rmtree(path, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(path)], check=True)
    pip = [str(python(name, folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([*pip, *venv.packages], [*pip, "--no-deps", *venv.alone]):
        if not set(command) - {*pip, "--no-deps"}:
            continue
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            return f"{name} did not install: {last_line(done.stderr)}"
    stamp.write_text(wanted)
    return None


def versions(name: str, packages: tuple[str, ...], folder: Path) -> str:
    """The versions of ``packages`` in an environment, by commas."""
    if name == "project":
        return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    code = "import importlib.metadata as m, sys; print(', '.join(f'{p} {m.version(p)}' for p in sys.argv[1:]))"
    done = subprocess.run([str(python(name, folder)), "-c", code, *packages], check=False, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def last_line(text: str) -> str:
    """The line of a program's output that says best what went wrong."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    if errors and "CalledProcessError" in errors[-1]:  # the tool's own first words say more
        return errors[0][:300]
    return (errors or lines or ["no output"])[-1][:300]
