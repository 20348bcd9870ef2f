"""A worker process of a build: reads fused functions, writes machine code. See ``build.py``."""

from __future__ import annotations

import os
import sys

from aotc.errors import AotcError, BuildError
from aotc.lowering.compiled import CompiledFunction
from aotc.lowering.frames import pack_result, read_frame, unpack_function, write_frame
from aotc.lowering.identity import function_label


def main() -> None:
    # TVM imports torch where that is installed, for an exchange of tensors that nothing here uses: seconds a worker.
    sys.modules["torch"] = None  # type: ignore[assignment]
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not mix with the replies
    while True:
        try:
            request = read_frame(sys.stdin.buffer)
        except EOFError:
            return
        write_frame(replies, pack_result(_answer(request)))


def _answer(request: bytes) -> CompiledFunction | AotcError:
    from aotc.lowering.kernel import lower_function

    function, target, in_place = unpack_function(request)
    try:
        return lower_function(function, target, in_place)
    except AotcError as error:
        return error
    except Exception as error:  # TVM's errors are many, and only their text travels
        where = function.origin or function.name or "a fused function"
        lines = [line for line in str(error).splitlines() if line.strip()]
        return BuildError(f"{where}: compiling {function_label(function)} failed: {type(error).__name__}: {lines[-1] if lines else ''}")


if __name__ == "__main__":
    main()
