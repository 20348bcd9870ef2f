"""Compiles one fused function after another, as the worker process of a build. See ``build.py``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace

from aotc.errors import AotcError, BuildError
from aotc.ir.expr import Function
from aotc.lowering.compiled import CompiledFunction, Selection
from aotc.lowering.frames import pack_result, read_frame, unpack_function, write_frame
from aotc.lowering.identity import function_label
from aotc.targets import Target, without_gpu


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to handle: without requests this process ends
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not mix with the replies
    with without_torch():
        while True:
            try:
                request = read_frame(sys.stdin.buffer)
            except EOFError:
                return
            reply = pack_result(_answer(request))
            try:
                write_frame(replies, reply)
            except BrokenPipeError:
                os._exit(0)  # the caller has ended meanwhile, and nobody reads what would be said of it


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Within it TVM does not import torch, as it would where that is installed, for an exchange of tensors that nothing here
    uses: seconds."""
    if "tvm" in sys.modules:
        yield
        return
    before = sys.modules.get("torch")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if before is None:
            del sys.modules["torch"]
        else:
            sys.modules["torch"] = before


def compile_one(function: Function, target: Target, in_place: int | None, selection: Selection | None = None) -> CompiledFunction:
    """Code of the target's GPU where it has one and a schedule applies, else of its CPU. Raises AotcError, whatever fails."""
    try:
        if target.gpu is not None:
            return _compile_for_gpu(function, target, selection)
        from aotc.lowering.kernel import lower_function

        return lower_function(function, target, in_place, selection)
    except AotcError:
        raise
    except Exception as error:  # TVM's errors are many, and only their text travels
        where = function.origin or function.name or "a fused function"
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise BuildError(
            f"{where}: compiling {function_label(function)} failed: {type(error).__name__}: {lines[-1] if lines else ''}"
        ) from error


def _compile_for_gpu(function: Function, target: Target, selection: Selection | None) -> CompiledFunction:
    from aotc.lowering.cuda.kernel import NotOnCuda
    from aotc.lowering.cuda.kernel import lower_function as lower_for_gpu
    from aotc.lowering.kernel import lower_function

    made = lower_for_gpu(function, target, selection)
    if not isinstance(made, NotOnCuda):
        return made
    return replace(lower_function(function, without_gpu(target), None), not_on_cuda=made.reason)


def _answer(request: bytes) -> CompiledFunction | AotcError:
    try:
        return compile_one(*unpack_function(request))
    except AotcError as error:
        return error


if __name__ == "__main__":
    main()
