"""Runs models that aotc built. One file: copy it to the board beside the model. Needs Python 3.6 or newer and NumPy.

    import aotc_runtime
    model = aotc_runtime.load("model.so")
    outputs = model.run({"image": image})          # OrderedDict: output name -> array

Every failure raises ``Error``, whose text says what was expected, what came and what to do. A model may be used by any number of
threads, each with a session of its own (``model.session()``); a session runs once at a time.

A session keeps what the model calls states from run to run, for all entry points:

    session = model.session()
    session.run({"tokens": prompt}, entry_point="prefill")
    session.run({"token": token}, entry_point="step")
    session.reset()                                # first values back into the states

Types that NumPy lacks (bfloat16, float8, int4, ...) are those of the package ml_dtypes where it is installed. Elsewhere they are
uint16 (bfloat16) or uint8 arrays of the same bits: ``TensorInfo.type_name`` tells the type. One of 6, 4 or 2 bits takes a byte.
"""

import _ctypes
import collections
import ctypes
import json
import mmap
import os
import platform
import struct
import sys
import threading
import zlib
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

__all__ = ["ABI_VERSION", "Error", "FileInfo", "Model", "Session", "Signature", "TensorInfo", "load", "read_file"]

ABI_VERSION = 1  # AOTC_ABI_VERSION of aotc.h

# Beside the compiler its error type is the base, so that one `except` holds both.
_Base = getattr(sys.modules.get("aotc.errors"), "RuntimeFailure", Exception)


class Error(_Base):  # type: ignore[misc, valid-type]
    """Opening or running a model failed. ``status`` is a number of aotc.h's aotc_status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super(Error, self).__init__(message)
        self.status = status


INVALID_ARGUMENT, INVALID_FILE, WRONG_VERSION, UNSUPPORTED, BUSY, SYSTEM = 1, 2, 3, 4, 6, 8


# ---- The file, read before any of its code runs ----

_HEADER = struct.Struct("<8s6I4Q2I2HI48s384s")
_CHECKSUM_OFFSET = 24
_MACHINES = {62: "x86-64", 183: "aarch64"}


class FileInfo(NamedTuple):
    """What a built file says of itself. Sizes and places (offset, size) are in bytes."""

    path: str
    machine: str
    abi_version: int
    target: str
    features: Tuple[str, ...]
    glibc: Tuple[int, int]
    file_size: int
    kernel_text: int
    runtime_text: int
    plan: Tuple[int, int]
    weights: Tuple[int, int]
    manifest: Dict[str, Any]


def read_file(path: Union[str, "os.PathLike[str]"]) -> FileInfo:
    """Read and check a built file for any machine without loading it. Raises Error."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise _damaged(name, "it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _parse(name, content, size)
    except (OSError, ValueError, struct.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Error(f"{name} cannot be read: {reason}; check the path", SYSTEM) from None


def _damaged(name: str, reason: str) -> Error:
    return Error(f"{name} is not a whole model built by aotc: {reason}; copy or build the file again", INVALID_FILE)


def _parse(name: str, content: mmap.mmap, size: int) -> FileInfo:
    sections = _sections(name, content, size)
    for wanted in (".aotc.header", ".aotc.plan", ".aotc.manifest", ".aotc.weights"):
        if wanted not in sections:
            raise _damaged(name, f"it is an ELF file without the section {wanted}")
    at, length = sections[".aotc.header"]
    if length < _HEADER.size or content[at : at + 8] != b"AOTCFILE":
        raise _damaged(name, "its header is not one of aotc's")
    _, version, _, abi, machine, checksum, _, *fields = _HEADER.unpack(content[at : at + _HEADER.size])
    file_size, plan_size, manifest_size, weights_size, kernel_text, runtime_text, major, minor, _, target, features = fields
    if version != 1:
        raise Error(
            f"{name} has header version {version}, this loader reads 1: use aotc_runtime.py of the aotc that built it", WRONG_VERSION
        )
    if file_size != size:
        raise _damaged(name, f"it should have {file_size} bytes and has {size}")
    for section, expected, more in ((".aotc.plan", plan_size, 0), (".aotc.manifest", manifest_size, 1), (".aotc.weights", weights_size, 0)):
        if sections[section][1] != expected + more:
            raise _damaged(name, f"{section} should have {expected + more} bytes and has {sections[section][1]}")
    weights = sections[".aotc.weights"]
    if _checksum(content, at, weights) != checksum:
        raise _damaged(name, "its checksum is wrong, so it was changed after it was built")
    start = sections[".aotc.manifest"][0]
    try:
        manifest = json.loads(content[start : start + manifest_size].decode("utf-8"))
        names, built_for = features.rstrip(b"\0").decode(), target.rstrip(b"\0").decode()
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"its manifest or its header cannot be read ({error})") from None
    if not isinstance(manifest, dict):
        raise _damaged(name, "its manifest is not a JSON object")
    return FileInfo(
        name, _MACHINES.get(machine, str(machine)), abi, built_for, tuple(names.split(",")) if names else (),
        (major, minor), size, kernel_text, runtime_text, sections[".aotc.plan"], weights, manifest,
    )  # fmt: skip


def _sections(name: str, content: mmap.mmap, size: int) -> Dict[str, Tuple[int, int]]:
    """Name -> (offset, size) of an ELF file's sections, all within the file."""
    if content[:4] != b"\x7fELF":
        raise _damaged(name, "it does not begin as an ELF file does")
    if size < 64:
        raise _damaged(name, f"it is cut short after {size} bytes")
    if content[4:6] != b"\x02\x01":
        raise _damaged(name, "it is an ELF file, but not a 64-bit little-endian one")
    kind, _, _, _, segments_at, table_at, _, _, *counts = struct.unpack_from("<HHIQQQIHHHHHH", content, 16)
    segment_size, segments, entry, count, names_index = counts
    if kind != 3 or entry != 64 or segment_size != 56:
        raise _damaged(name, "it is an ELF file, but not a shared library")
    needed = max(table_at + count * entry, segments_at + segments * segment_size)
    if needed > size:
        raise _damaged(name, f"it is cut short: at least {needed} bytes are expected, it has {size}")
    for index in range(segments):
        _, _, offset, _, _, stored, _, _ = struct.unpack_from("<IIQQQQQQ", content, segments_at + index * segment_size)
        if offset + stored > size:
            raise _damaged(name, f"it is cut short: at least {offset + stored} bytes are expected, it has {size}")
    headers = [struct.unpack_from("<IIQQQQIIQQ", content, table_at + index * entry) for index in range(count)]
    if any(header[1] != 8 and header[4] + header[5] > size for header in headers) or names_index >= count:  # 8: NOBITS has no bytes
        raise _damaged(name, "its sections lie outside the file")
    strings, length = headers[names_index][4], headers[names_index][5]
    found = {}
    for header in headers:
        at = strings + header[0]
        text = content[at : min(at + 64, strings + length, size)]  # no more: a damaged index may point into gigabytes of weights
        found[text.split(b"\0", 1)[0].decode("latin-1")] = (header[4], header[5])
    return found


def _checksum(content: mmap.mmap, header: int, weights: Tuple[int, int]) -> int:
    """CRC-32 of the file without the weights, the checksum itself taken as zero."""
    skipped = sorted([(header + _CHECKSUM_OFFSET, 4, bytes(4)), (weights[0], weights[1], b"")])
    crc, position = 0, 0
    with memoryview(content) as view:
        for offset, size, instead in skipped:
            with view[position:offset] as piece:
                crc = zlib.crc32(instead, zlib.crc32(piece, crc))
            position = offset + size
        with view[position:] as piece:
            return zlib.crc32(piece, crc)


# ---- The processor ----

# LLVM's feature name -> bit of AT_HWCAP, or 64 + bit of AT_HWCAP2 (Linux, arch/arm64/include/uapi/asm/hwcap.h).
_ARM_FEATURES = {
    "neon": 1, "aes": 3, "sha2": 6, "crc": 7, "lse": 8, "fullfp16": 10, "rdm": 12, "jsconv": 13, "complxnum": 14, "rcpc": 15,
    "dotprod": 20, "sve": 22, "fp16fml": 23, "sve2": 65, "i8mm": 77, "bf16": 78,
}  # fmt: skip
# LLVM's feature name -> the kernel's in /proc/cpuinfo.
_X86_FEATURES = {
    "sse3": "pni", "ssse3": "ssse3", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "popcnt": "popcnt", "avx": "avx", "avx2": "avx2",
    "fma": "fma", "f16c": "f16c", "bmi": "bmi1", "bmi2": "bmi2", "lzcnt": "abm", "movbe": "movbe", "avx512f": "avx512f",
    "avx512bw": "avx512bw", "avx512dq": "avx512dq", "avx512vl": "avx512vl", "avx512cd": "avx512cd", "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16", "avx512fp16": "avx512_fp16", "avxvnni": "avx_vnni", "amx-tile": "amx_tile", "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}  # fmt: skip


def _missing_features(features: Sequence[str]) -> List[str]:
    """Those of ``features`` that this processor is known to lack."""
    if platform.machine() == "aarch64":
        auxiliary = ctypes.CDLL(None).getauxval
        auxiliary.restype, auxiliary.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
        present = auxiliary(16) | auxiliary(26) << 64
        return [name for name in features if name in _ARM_FEATURES and not present >> _ARM_FEATURES[name] & 1]
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line.split(":", 1)[1].split() for line in file if line.startswith("flags")), None)
    except OSError:
        flags = None
    if flags is None:
        return []
    return [name for name in features if name in _X86_FEATURES and _X86_FEATURES[name] not in flags]


def _check_machine(info: FileInfo) -> None:
    here = {"x86_64": "x86-64", "AMD64": "x86-64", "aarch64": "aarch64"}.get(platform.machine(), platform.machine())
    if info.machine != here:
        wanted = "host" if here == "x86-64" else "jetson or aarch64"
        made = f"{info.path} is built for {info.machine} (target {info.target}), this machine is {here}"
        raise Error(f"{made}: build it again with --target {wanted}", UNSUPPORTED)
    if info.abi_version != ABI_VERSION:
        built = f"aotc_runtime.py of the aotc that built the file ({info.manifest.get('aotc_version')})"
        raise Error(f"{info.path} has ABI version {info.abi_version}, this loader knows version {ABI_VERSION}: use {built}", WRONG_VERSION)
    missing = ", ".join(_missing_features(info.features))
    if missing:
        made = f"{info.path} is built for target {info.target}, which has processor features that this machine lacks ({missing})"
        raise Error(f"{made}: build it again with a target that fits this machine", UNSUPPORTED)


# ---- aotc.h ----


class _ErrorStruct(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 1024)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("dtype", _DataType), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class _Dim(ctypes.Structure):
    _fields_ = [("value", ctypes.c_int64), ("minimum", ctypes.c_int64), ("maximum", ctypes.c_int64), ("symbol", ctypes.c_char_p)]


class _TensorInfo(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", _DataType), ("rank", ctypes.c_int32), ("dims", ctypes.POINTER(_Dim))]


class _ModelOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("path", ctypes.c_char_p), ("library", ctypes.c_void_p), ("allocator", ctypes.c_void_p),
        ("log", ctypes.c_void_p), ("log_context", ctypes.c_void_p),
    ]  # fmt: skip


class _SessionOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("entry_point", ctypes.c_char_p), ("num_threads", ctypes.c_uint32), ("pool", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p), ("parallel_for_context", ctypes.c_void_p), ("allocator", ctypes.c_void_p),
        ("memory_limit", ctypes.c_uint64), ("log", ctypes.c_void_p), ("log_context", ctypes.c_void_p), ("profile", ctypes.c_uint32),
        ("shape_plans", ctypes.c_uint32), ("share_state", ctypes.c_void_p), ("cuda_stream", ctypes.c_void_p),
    ]  # fmt: skip


class _StepInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32), ("is_copy", ctypes.c_uint32), ("name", ctypes.c_char_p), ("label", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p), ("runs", ctypes.c_uint64), ("total_ns", ctypes.c_uint64), ("last_ns", ctypes.c_uint64),
        ("flops", ctypes.c_int64), ("tasks", ctypes.c_int64), ("kind", ctypes.c_uint32), ("target", ctypes.c_uint32),
    ]  # fmt: skip


class _MemoryInfo(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("shape_plans", ctypes.c_uint32)] + [
        (name, ctypes.c_uint64)
        for name in (
            "weights", "arena", "planned", "lower_bound", "outputs", "total", "peak", "dynamic", "states", "device", "shared", "device_weights",
        )
    ]  # fmt: skip


_P, _SIZE, _STATUS = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ERROR, _INT64S = ctypes.POINTER(_ErrorStruct), ctypes.POINTER(ctypes.c_int64)
_INFO = ctypes.CFUNCTYPE(ctypes.POINTER(_TensorInfo), _P, _SIZE, _SIZE)
_COUNT = ctypes.CFUNCTYPE(_SIZE, _P, _SIZE)


class _Api(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint32),
        ("abi_version", ctypes.c_uint32),
        ("runtime_version", ctypes.c_char_p),
        ("model_create", ctypes.CFUNCTYPE(_STATUS, ctypes.POINTER(_ModelOptions), ctypes.POINTER(_P), _ERROR)),
        ("model_destroy", ctypes.CFUNCTYPE(_STATUS, _P, _ERROR)),
        ("model_library", _P),
        ("manifest", _P),
        ("entry_point_count", ctypes.CFUNCTYPE(_SIZE, _P)),
        ("entry_point_name", ctypes.CFUNCTYPE(ctypes.c_char_p, _P, _SIZE)),
        ("input_count", _COUNT),
        ("output_count", _COUNT),
        ("input_info", _INFO),
        ("output_info", _INFO),
        ("infer_shape", _P),
        ("pool_create", ctypes.CFUNCTYPE(_STATUS, _P, ctypes.c_uint32, ctypes.POINTER(_P), _ERROR)),
        ("pool_destroy", ctypes.CFUNCTYPE(_STATUS, _P, _ERROR)),
        ("session_create", ctypes.CFUNCTYPE(_STATUS, _P, ctypes.POINTER(_SessionOptions), ctypes.POINTER(_P), _ERROR)),
        ("session_destroy", ctypes.CFUNCTYPE(_STATUS, _P, _ERROR)),
        ("bind_input", ctypes.CFUNCTYPE(_STATUS, _P, _SIZE, ctypes.POINTER(_Tensor), _ERROR)),
        ("bind_output", ctypes.CFUNCTYPE(_STATUS, _P, _SIZE, ctypes.POINTER(_Tensor), _ERROR)),
        ("output_shape", ctypes.CFUNCTYPE(_STATUS, _P, _SIZE, _INT64S, _ERROR)),
        ("run", ctypes.CFUNCTYPE(_STATUS, _P, _ERROR)),
        ("get_output", ctypes.CFUNCTYPE(_STATUS, _P, _SIZE, ctypes.POINTER(_Tensor), _ERROR)),
        ("set_profiling", ctypes.CFUNCTYPE(_STATUS, _P, ctypes.c_int, _ERROR)),
        ("step_count", ctypes.CFUNCTYPE(_SIZE, _P)),
        ("step_info", ctypes.CFUNCTYPE(_STATUS, _P, _SIZE, ctypes.POINTER(_StepInfo), _ERROR)),
        ("memory_info", ctypes.CFUNCTYPE(_STATUS, _P, ctypes.POINTER(_MemoryInfo), _ERROR)),
        ("pool_acquire", _P),
        ("pool_release", _P),
        ("pool_begin", _P),
        ("pool_end", _P),
        ("pool_parallel_for", _P),
        ("session_reset", ctypes.CFUNCTYPE(_STATUS, _P, _ERROR)),  # files of aotc 0.1 end before it
        ("cancel", ctypes.CFUNCTYPE(_STATUS, _P, _ERROR)),
        ("state_count", ctypes.CFUNCTYPE(_SIZE, _P)),
        ("state_info", ctypes.CFUNCTYPE(ctypes.POINTER(_TensorInfo), _P, _SIZE)),
        ("get_state", ctypes.CFUNCTYPE(_STATUS, _P, _SIZE, ctypes.POINTER(_Tensor), _ERROR)),
        ("run_async", ctypes.CFUNCTYPE(_STATUS, _P, ctypes.POINTER(_P), _ERROR)),
        ("wait", ctypes.CFUNCTYPE(_STATUS, _P, _ERROR)),
    ]


_KINDS = {0: "int", 1: "uint", 2: "float"}
_SMALL = {
    (4, 16): "bfloat16", (10, 8): "float8_e4m3fn", (11, 8): "float8_e4m3fnuz", (12, 8): "float8_e5m2", (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu", (15, 6): "float6_e2m3fn", (16, 6): "float6_e3m2fn", (17, 4): "float4_e2m1fn", (0, 4): "int4",
    (1, 4): "uint4", (0, 2): "int2", (1, 2): "uint2",
}  # fmt: skip
"""Types that NumPy lacks: (DLPack's code, bits) -> ml_dtypes' name."""


def _type_name(dtype: _DataType) -> str:
    if (dtype.code, dtype.bits) in _SMALL:
        return _SMALL[dtype.code, dtype.bits]
    return "bool" if dtype.code == 6 else "%s%d" % (_KINDS[dtype.code], dtype.bits)


def _numpy_dtype(dtype: _DataType) -> np.dtype:
    if (dtype.code, dtype.bits) not in _SMALL:
        return np.dtype(_type_name(dtype))
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, _type_name(dtype)))
    except (ImportError, AttributeError):
        return np.dtype("uint16" if dtype.bits == 16 else "uint8")


def _dl_tensor(array: np.ndarray, dtype: _DataType) -> _Tensor:
    shape = (ctypes.c_int64 * array.ndim)(*array.shape)
    return _Tensor(array.ctypes.data, 1, 0, array.ndim, dtype, ctypes.cast(shape, _INT64S), None, 0)


# ---- Models and sessions ----


class TensorInfo(NamedTuple):
    """An input, output or state. A dim is a number, or a text over symbols where it is known only at run time. ``type_name`` is the
    element type, also where NumPy lacks it and ``dtype`` only has its size."""

    name: str
    dtype: np.dtype
    shape: Tuple[Union[int, str], ...]
    type_name: str


class Signature(NamedTuple):
    """What an entry point takes and gives."""

    inputs: Tuple[TensorInfo, ...]
    outputs: Tuple[TensorInfo, ...]


class StepInfo(NamedTuple):
    """One step of a session and its measured time since profiling was switched on. ``kind``: kernel, copy, shape, check, branch or jump;
    ``target``: of a branch or jump, the step with which it goes on."""

    name: str
    label: str
    kernel: str
    runs: int
    total_ns: int
    last_ns: int
    flops: int
    tasks: int
    kind: str
    target: int


_STEP_KINDS = (
    "kernel", "copy", "shape", "check", "branch", "jump", "launch", "device copy", "to device", "to host", "deliver",
)  # fmt: skip


class MemoryInfo(NamedTuple):
    """Bytes that a session holds; see aotc_memory_info of aotc.h."""

    weights: int
    arena: int
    planned: int
    lower_bound: int
    outputs: int
    total: int
    peak: int
    dynamic: int
    states: int
    device: int
    shared: int
    device_weights: int


class _Handle(object):
    """An opened file; closed when nothing refers to it any more."""

    def __init__(self, path: str) -> None:
        self.pointer = None  # type: Optional[int]
        self.library = None  # type: Optional[ctypes.CDLL]
        try:
            self.library = _dlopen(os.path.realpath(path))
        except OSError as error:
            raise Error(f"{path} could not be loaded: {error}; check that it is built for this board's system", SYSTEM) from None
        entry = self.library.aotc_model
        entry.restype, entry.argtypes = ctypes.POINTER(_Api), [ctypes.c_uint32]
        table = entry(ABI_VERSION)
        if not table or table.contents.size < _Api.session_reset.offset:
            raise Error(f"{path} does not serve ABI version {ABI_VERSION}: use aotc_runtime.py of the aotc that built it", WRONG_VERSION)
        self.api = table.contents
        options = _ModelOptions(size=ctypes.sizeof(_ModelOptions), path=os.fsencode(path))
        pointer = _P()
        try:
            self.call(self.api.model_create, ctypes.byref(options), ctypes.byref(pointer))
        except Error as error:
            if error.status != INVALID_FILE or path in str(error):
                raise
            raise Error(f"{path}: {error}", INVALID_FILE) from None
        self.pointer = pointer.value

    def call(self, function: Any, *arguments: Any) -> None:
        error = _ErrorStruct()
        status = function(*arguments, ctypes.byref(error))
        if status != 0:
            raise Error(error.message.decode("utf-8", "replace"), status)

    def has(self, function: str) -> bool:
        """Whether the file's table reaches to a function; those of older files end before newer ones."""
        return bool(self.api.size >= getattr(_Api, function).offset + ctypes.sizeof(_P))

    def state_count(self) -> int:
        return int(self.api.state_count(self.pointer)) if self.has("state_count") else 0

    def __del__(self) -> None:
        if self.pointer is not None and self.api.model_destroy(self.pointer, None) != 0:
            return  # its sessions still run: the file stays loaded
        if self.library is not None:
            _dlclose(self.library)


def _dlopen(path: str) -> ctypes.CDLL:
    """Load the file that ``path`` names now. The dynamic loader knows libraries by their names first: where a file was built again while its
    former content is loaded, it would hand out the former. So a name in use is spelt another way, which tells the file's identity."""
    try:
        _dlclose(ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW))  # it counts as a user
    except OSError:
        return ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    about = os.stat(path)
    identity = zlib.crc32(struct.pack("<QQqq", about.st_ino, about.st_dev, about.st_mtime_ns, about.st_size))
    folder, name = os.path.split(path)
    spelling = "".join("./" if identity >> bit & 1 else "/" for bit in range(32))
    return ctypes.CDLL(f"{folder}/{spelling}{name}", mode=os.RTLD_LOCAL | os.RTLD_NOW)


def _dlclose(library: ctypes.CDLL) -> None:
    _ctypes.dlclose(library._handle)


class _Entry(object):
    """One entry point's session of aotc.h."""

    def __init__(self, handle: _Handle, number: int, options: _SessionOptions) -> None:
        self.pointer = None  # type: Optional[int]
        self.handle = handle
        api = handle.api
        self.inputs = _describe(handle, number, api.input_count, api.input_info)
        self.outputs = _describe(handle, number, api.output_count, api.output_info)
        self.read = {}  # type: Dict[int, np.ndarray]  # what is bound stays alive
        self.written = {}  # type: Dict[int, Optional[np.ndarray]]
        pointer = _P()
        handle.call(api.session_create, handle.pointer, ctypes.byref(options), ctypes.byref(pointer))
        self.pointer = pointer.value

    def run(self, owner: Any, inputs: Mapping[str, Any], copy: bool, out: Mapping[str, np.ndarray]) -> "collections.OrderedDict[str, Any]":
        handle, api = self.handle, self.handle.api
        _check_names("input", [info.name for info, _ in self.inputs], inputs, True)
        _check_names("output", [info.name for info, _ in self.outputs], out, False)
        for number, (info, dtype) in enumerate(self.inputs):
            array = inputs[info.name]
            if _is_on_gpu(array):
                tensor = _gpu_tensor("input", info, array, dtype)
            else:
                array = _input_array(info, array)
                tensor = _dl_tensor(array, dtype)
            handle.call(api.bind_input, self.pointer, number, ctypes.byref(tensor))
            self.read[number] = array
        results = collections.OrderedDict()  # type: collections.OrderedDict[str, Any]
        for number, (info, dtype) in enumerate(self.outputs):
            target = out[info.name] if info.name in out else self.new_output(number, info) if copy else None
            if target is None:
                handle.call(api.bind_output, self.pointer, number, None)
            elif _is_on_gpu(target):
                handle.call(api.bind_output, self.pointer, number, ctypes.byref(_gpu_tensor("output", info, target, dtype)))
            else:
                _check_output(info, target)
                handle.call(api.bind_output, self.pointer, number, ctypes.byref(_dl_tensor(target, dtype)))
            results[info.name] = target
            self.written[number] = target
        handle.call(api.run, self.pointer)
        for number, (info, _) in enumerate(self.outputs):
            if results[info.name] is None:
                view = self.view(owner, number, info)
                results[info.name] = np.array(view) if copy else view
        return results

    def new_output(self, number: int, info: TensorInfo) -> Optional[np.ndarray]:
        """An array for an output; None where its shape depends on the data."""
        shape = (ctypes.c_int64 * max(1, len(info.shape)))()
        self.handle.call(self.handle.api.output_shape, self.pointer, number, shape)
        dims = tuple(shape)[: len(info.shape)]
        return None if -1 in dims else np.empty(dims, info.dtype)

    def view(self, owner: Any, number: int, info: TensorInfo) -> np.ndarray:
        tensor = _Tensor()
        self.handle.call(self.handle.api.get_output, self.pointer, number, ctypes.byref(tensor))
        return _memory_view(owner, tensor, info)

    def __del__(self) -> None:
        if self.pointer is not None:
            self.handle.api.session_destroy(self.pointer, None)
            self.pointer = None


class Session(object):
    """Working memory for the entry points of a model, and its states, which they share; one run at a time. Made by ``Model.session``.

    ``inputs`` and ``outputs`` are those of the entry point for which it was made, which runs where none is named.
    """

    def __init__(self, model: "Model", entry_point: str, num_threads: int, memory_limit: int, profile: bool) -> None:
        self._pool = None  # type: Optional[int]
        self._handle = model._handle
        self._entries = {}  # type: Dict[str, _Entry]
        self._names, self._states = model.entry_points, model.states
        self._lock = threading.Lock()
        self._limit, self._profile, self._threads = memory_limit, profile, num_threads
        self.entry_point = entry_point
        if num_threads > 1 and len(self._names) > 1:  # one pool for all entry points
            pool = _P()
            self._handle.call(self._handle.api.pool_create, self._handle.pointer, num_threads, ctypes.byref(pool))
            self._pool, self._threads = pool.value, 0
        self.inputs, self.outputs = model.signatures[entry_point]
        self._entry(entry_point)

    def _entry(self, name: Optional[str]) -> _Entry:
        chosen = self.entry_point if name is None else name
        if chosen not in self._names:
            raise Error(f"the model has no entry point {chosen!r}, only {', '.join(map(repr, self._names))}", INVALID_ARGUMENT)
        if chosen not in self._entries:
            options = _SessionOptions(
                size=ctypes.sizeof(_SessionOptions), entry_point=chosen.encode(), num_threads=self._threads, pool=self._pool,
                memory_limit=self._limit, profile=int(self._profile),
            )  # fmt: skip
            if self._entries:
                options.share_state = self._entries[self.entry_point].pointer
            self._entries[chosen] = _Entry(self._handle, self._names.index(chosen), options)
        return self._entries[chosen]

    def _enter(self) -> None:
        if not self._lock.acquire(False):
            raise Error("the session is running in another thread: make one session for each thread", BUSY)

    def run(
        self,
        inputs: Mapping[str, Any],
        copy: bool = True,
        out: Optional[Mapping[str, np.ndarray]] = None,
        entry_point: Optional[str] = None,
    ) -> "collections.OrderedDict[str, np.ndarray]":
        """Run on arrays by input name; returns arrays by output name, in the model's order.

        Arrays that are contiguous are used where they lie. An array of another dtype is refused, not converted; lists and numbers
        become arrays of the input's dtype. ``copy=False`` returns views of the session's memory, which the next run overwrites.
        ``out`` names arrays that outputs are written into; an output whose shape depends on the data cannot be among them. In a model
        that uses a GPU both may be arrays there (of PyTorch, CuPy and others that have ``__cuda_array_interface__``), which are used
        where they lie; what fills them must be done before. Raises Error.
        """
        self._enter()
        try:
            return self._entry(entry_point).run(self, inputs, copy, out or {})
        finally:
            self._lock.release()

    def reset(self) -> None:
        """Put the first values back into all states. Raises Error."""
        if not self._states:
            return
        self._enter()
        try:
            self._handle.call(self._handle.api.session_reset, self._entry(None).pointer)
        finally:
            self._lock.release()

    def state(self, name: str) -> np.ndarray:
        """A state's memory, to be read, saved or filled between runs; it keeps the session alive. Raises Error for an unknown name."""
        names = [info.name for info in self._states]
        if name not in names:
            raise Error(f"the model has no state {name!r}, only {', '.join(map(repr, names)) or 'none at all'}", INVALID_ARGUMENT)
        tensor = _Tensor()
        number = names.index(name)
        self._handle.call(self._handle.api.get_state, self._entry(None).pointer, number, ctypes.byref(tensor))
        return _memory_view(self, tensor, self._states[number])

    def cancel(self) -> None:
        """From another thread: end the run that goes on, at its next turn of a loop; ``run`` raises Error there."""
        for entry in list(self._entries.values()):
            if self._handle.has("cancel"):
                self._handle.call(self._handle.api.cancel, entry.pointer)

    def set_profiling(self, on: bool) -> None:
        """Time each step from now on, starting from zero, or stop."""
        self._profile = on
        for entry in self._entries.values():
            self._handle.call(self._handle.api.set_profiling, entry.pointer, int(on))

    def steps(self, entry_point: Optional[str] = None) -> List[StepInfo]:
        """The steps of an entry point, in the order in which the file has them."""
        found = []
        pointer = self._entry(entry_point).pointer
        for number in range(self._handle.api.step_count(pointer)):
            step = _StepInfo(size=ctypes.sizeof(_StepInfo))
            self._handle.call(self._handle.api.step_info, pointer, number, ctypes.byref(step))
            texts = [text.decode("utf-8", "replace") for text in (step.name, step.label, step.kernel)]
            kind = "copy" if step.is_copy else _STEP_KINDS[step.kind] if step.kind < len(_STEP_KINDS) else str(step.kind)
            times = (step.runs, step.total_ns, step.last_ns, step.flops, step.tasks)
            found.append(StepInfo(texts[0], texts[1], texts[2], *times, kind=kind, target=step.target))
        return found

    def clocks(self, entry_point: Optional[str] = None) -> List[Tuple[int, int]]:
        """Of each step, how often it ran since profiling was switched on and how many nanoseconds that took: ``steps`` without the rest."""
        pointer, info, found = self._entry(entry_point).pointer, self._handle.api.step_info, []
        step = _StepInfo(size=ctypes.sizeof(_StepInfo))
        for number in range(self._handle.api.step_count(pointer)):
            self._handle.call(info, pointer, number, ctypes.byref(step))
            found.append((step.runs, step.total_ns))
        return found

    def memory(self, entry_point: Optional[str] = None) -> MemoryInfo:
        """What the session holds now for an entry point."""
        info = _MemoryInfo(size=ctypes.sizeof(_MemoryInfo))
        self._handle.call(self._handle.api.memory_info, self._entry(entry_point).pointer, ctypes.byref(info))
        return MemoryInfo(*[getattr(info, name) for name in MemoryInfo._fields])

    def __del__(self) -> None:
        if self._pool is not None:
            self._entries.clear()  # its users go first
            self._handle.api.pool_destroy(self._pool, None)
            self._pool = None


class Model(object):
    """A built file, opened. ``info`` is what the file says of itself, ``metadata`` the texts its builder stored in it."""

    def __init__(self, path: Union[str, "os.PathLike[str]"], num_threads: Optional[int] = None) -> None:
        self.info = read_file(path)
        _check_machine(self.info)
        self._handle = _Handle(self.info.path)
        self._threads = num_threads
        self._default = None  # type: Optional[Session]
        self._lock = threading.Lock()
        api, pointer = self._handle.api, self._handle.pointer
        self.entry_points = tuple(api.entry_point_name(pointer, number).decode() for number in range(api.entry_point_count(pointer)))
        self.signatures = collections.OrderedDict()  # type: collections.OrderedDict[str, Signature]
        for number, name in enumerate(self.entry_points):
            described = [_describe(self._handle, number, *functions) for functions in (
                (api.input_count, api.input_info), (api.output_count, api.output_info))]  # fmt: skip
            self.signatures[name] = Signature(*[tuple(info for info, _ in tensors) for tensors in described])
        self.inputs, self.outputs = self.signatures[self.entry_points[0]]
        self.states = _states(self._handle)
        self.manifest = self.info.manifest
        self.metadata = self.manifest.get("metadata", {})

    def session(
        self, num_threads: Optional[int] = None, entry_point: Optional[str] = None, memory_limit: int = 0, profile: bool = False
    ) -> Session:
        """A session of its own memory and states. ``num_threads``: 1 runs in the calling thread; None: as given to ``load``, else as
        many as this process may use processors. ``entry_point``: the one that runs where ``Session.run`` names none; None for the
        first. ``memory_limit``: bytes that it may hold for each entry point, 0 for any. Raises Error."""
        name = self.entry_points[0] if entry_point is None else entry_point
        if name not in self.entry_points:
            raise Error(f"the model has no entry point {name!r}, only {', '.join(map(repr, self.entry_points))}", INVALID_ARGUMENT)
        threads = num_threads or self._threads or len(os.sched_getaffinity(0))
        if threads < 0:
            raise Error(f"num_threads is {threads}; expected 1 or more, or 0 for one a processor", INVALID_ARGUMENT)
        return Session(self, name, threads, memory_limit, profile)

    def run(
        self,
        inputs: Mapping[str, Any],
        copy: bool = True,
        out: Optional[Mapping[str, np.ndarray]] = None,
        entry_point: Optional[str] = None,
    ) -> "collections.OrderedDict[str, np.ndarray]":
        """Run in a session that the model keeps; see ``Session.run``."""
        return self._session().run(inputs, copy, out, entry_point)

    def reset(self) -> None:
        """Put the first values back into the states of the session that the model keeps."""
        self._session().reset()

    def _session(self) -> Session:
        with self._lock:
            if self._default is None:
                self._default = self.session()
            return self._default


def load(path: Union[str, "os.PathLike[str]"], num_threads: Optional[int] = None) -> Model:
    """Open a built file; its code runs only after the file was found whole and fit for this machine. Raises Error."""
    return Model(path, num_threads)


def _describe(handle: _Handle, entry_point: int, count: Any, info: Any) -> Tuple[Tuple[TensorInfo, _DataType], ...]:
    numbers = range(count(handle.pointer, entry_point))
    return tuple(_tensor_info(info(handle.pointer, entry_point, number).contents) for number in numbers)


def _states(handle: _Handle) -> Tuple[TensorInfo, ...]:
    return tuple(_tensor_info(handle.api.state_info(handle.pointer, number).contents)[0] for number in range(handle.state_count()))


def _tensor_info(tensor: _TensorInfo) -> Tuple[TensorInfo, _DataType]:
    dims = [tensor.dims[axis] for axis in range(tensor.rank)]
    shape = tuple(dim.symbol.decode() if dim.symbol else dim.value for dim in dims)
    dtype = _DataType(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
    return TensorInfo(tensor.name.decode(), _numpy_dtype(dtype), shape, _type_name(dtype)), dtype


def _memory_view(owner: Any, tensor: _Tensor, info: TensorInfo) -> np.ndarray:
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    size = int(np.prod(shape, dtype=np.int64)) * info.dtype.itemsize
    if size == 0:
        return np.empty(shape, info.dtype)
    memory = (ctypes.c_char * size).from_address(tensor.data + tensor.byte_offset)
    memory._owner = owner  # type: ignore[attr-defined]  # the view keeps the session alive
    return np.frombuffer(memory, info.dtype).reshape(shape)  # type: ignore[call-overload]


def _check_names(kind: str, expected: List[str], given: Mapping[str, Any], all_needed: bool) -> None:
    if not hasattr(given, "keys"):
        names = ", ".join(map(repr, expected))
        raise Error(f"the model's {kind}s are {names}; expected a dict of arrays by name, got {type(given).__name__}", INVALID_ARGUMENT)
    unknown = [repr(name) for name in given if name not in expected]
    missing = [repr(name) for name in expected if name not in given] if all_needed else []
    if unknown or missing:
        faults = (["unknown: " + ", ".join(unknown)] if unknown else []) + (["missing: " + ", ".join(missing)] if missing else [])
        raise Error(f"the model's {kind}s are {', '.join(map(repr, expected))}; {'; '.join(faults)}", INVALID_ARGUMENT)


def _input_array(info: TensorInfo, value: Any) -> np.ndarray:
    is_array = hasattr(value, "dtype") or hasattr(value, "__array__")
    try:
        array = np.asarray(value) if is_array else np.asarray(value, info.dtype)
    except (TypeError, ValueError) as error:
        raise Error(f"input {info.name!r}: expected an array of {info.dtype}: {error}", INVALID_ARGUMENT) from None
    if array.dtype != info.dtype:
        convert = f"convert it with .astype({info.dtype.name!r})"
        raise Error(f"input {info.name!r}: expected dtype {info.dtype}, got {array.dtype}; {convert}", INVALID_ARGUMENT)
    if not _fits(array.shape, info.shape):
        raise Error(f"input {info.name!r}: expected shape {_shape(info.shape)}, got {_shape(array.shape)}", INVALID_ARGUMENT)
    return array if array.flags.c_contiguous and array.flags.aligned else np.array(array, order="C")


def _is_on_gpu(value: Any) -> bool:
    return hasattr(value, "__cuda_array_interface__")


def _gpu_tensor(kind: str, info: TensorInfo, value: Any, dtype: _DataType) -> _Tensor:
    """An array on a GPU, by its ``__cuda_array_interface__``."""
    told = value.__cuda_array_interface__
    shape, found = tuple(told["shape"]), np.dtype(told["typestr"])
    if found != info.dtype or not _fits(shape, info.shape):
        raise Error(f"{kind} {info.name!r}: expected {info.dtype} {_shape(info.shape)}, got {found} {_shape(shape)}", INVALID_ARGUMENT)
    dims, strides = (ctypes.c_int64 * max(1, len(shape)))(*shape), None
    if told.get("strides"):
        strides = (ctypes.c_int64 * max(1, len(shape)))(*[stride // found.itemsize for stride in told["strides"]])
    return _Tensor(
        data=told["data"][0], device_type=2, device_id=0, ndim=len(shape), dtype=dtype, shape=dims, strides=strides, byte_offset=0
    )


def _check_output(info: TensorInfo, array: np.ndarray) -> None:
    if array.dtype != info.dtype or not _fits(array.shape, info.shape):
        expected, got = f"{info.dtype} {_shape(info.shape)}", f"{array.dtype} {_shape(array.shape)}"
        raise Error(f"output {info.name!r}: expected {expected}, got {got}", INVALID_ARGUMENT)
    if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        raise Error(f"output {info.name!r}: expected a contiguous, writable array; make one with numpy.empty", INVALID_ARGUMENT)


def _fits(shape: Sequence[int], expected: Sequence[Union[int, str]]) -> bool:
    return len(shape) == len(expected) and all(isinstance(dim, str) or dim == size for size, dim in zip(shape, expected))


def _shape(shape: Sequence[Union[int, str]]) -> str:
    return f"[{', '.join(map(str, shape))}]"
