#!/bin/sh
# The C runtime's tests under the address, undefined-behaviour and thread sanitizers. PYTHON names the interpreter.
cd "$(dirname "$0")/../.." || exit 1
exec "${PYTHON:-.venv/bin/python}" -m pytest -q tests/runtime/test_runtime.py -k "address or thread or damaged" "$@"
