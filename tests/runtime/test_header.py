"""aotc.h and aotc_kernel.h: C11 and C++11 without a warning, with an application's own dlpack.h before them, and the ABI's layout."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.runtime.build import RUNTIME, compiler, run_tool

DLPACK = """
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
#include <stdint.h>
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 } DLDeviceType;
typedef struct { DLDeviceType device_type; int32_t device_id; } DLDevice;
typedef enum { kDLInt = 0U, kDLUInt = 1U, kDLFloat = 2U, kDLBool = 6U } DLDataTypeCode;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } DLDataType;
typedef struct { void *data; DLDevice device; int32_t ndim; DLDataType dtype; int64_t *shape; int64_t *strides; uint64_t byte_offset; } DLTensor;
#endif
"""

LAYOUT = """
typedef char error_size[sizeof(aotc_error) == 1028 ? 1 : -1];
typedef char status_size[sizeof(aotc_status) == 4 ? 1 : -1];
typedef char tensor_size[sizeof(DLTensor) == 48 && offsetof(DLTensor, shape) == 24 ? 1 : -1];
typedef char api_start[offsetof(aotc_api, runtime_version) == 8 && offsetof(aotc_api, model_create) == 16 && offsetof(aotc_api, session_reset) == 248 ? 1 : -1];
typedef char dim_size[sizeof(aotc_dim) == 32 ? 1 : -1];
typedef char session_options[offsetof(aotc_session_options, memory_limit) == 56 && offsetof(aotc_session_options, share_state) == 88 && offsetof(aotc_session_options, cuda_stream) == 96 && sizeof(aotc_session_options) == 104 ? 1 : -1];
typedef char kernel_args[sizeof(aotc_kernel_args) == 24 ? 1 : -1];
"""


@pytest.mark.parametrize("with_dlpack", [False, True])
@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("target", [(), ("-target", "aarch64-linux-gnu.2.27")])
def test_headers_compile(tmp_path: Path, with_dlpack: bool, language: str, target: tuple[str, ...]) -> None:
    zig = [sys.executable, "-m", "ziglang", "cc" if language == "c" else "c++", *target]
    source = tmp_path / "header.txt"
    source.write_text((DLPACK if with_dlpack else "") + '#include "aotc.h"\n#include "aotc_kernel.h"\n' + LAYOUT)
    standard = "-std=c11" if language == "c" else "-std=c++11"
    flags = ["-x", language, standard, "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{RUNTIME}"]
    run_tool([*(zig if target else compiler()), *flags, "-c", str(source), "-o", str(tmp_path / "header.o")])
