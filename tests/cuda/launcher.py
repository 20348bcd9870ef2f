"""CUDA's driver API from Python: enough to run a kernel on arrays. Works with the software driver and with a real one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

Dims = tuple[int, int, int]


class CudaError(Exception):
    """A call of the driver that failed: its name, the error's name and number, and what the software driver found."""

    def __init__(self, call: str, name: str, number: int, finding: str) -> None:
        super().__init__(f"{call}: {name} ({number}) {finding}".rstrip())
        self.name, self.finding = name, finding


class Device:
    """The first device of a driver library, with its primary context current. Close it, or use ``with``."""

    def __init__(self, library: Path | str) -> None:
        self.cuda = ctypes.CDLL(str(library))
        self._stream = ctypes.c_void_p()
        device = ctypes.c_int()
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuStreamCreate", ctypes.byref(self._stream), 1)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.cuda.cuStreamDestroy_v2(self._stream)
        self.call("cuCtxPopCurrent_v2", None)
        self.call("cuDevicePrimaryCtxRelease_v2", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Raises CudaError where the function does not return 0."""
        status = getattr(self.cuda, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(status, ctypes.byref(text))
            raise CudaError(name, (text.value or b"unknown error").decode(), status, self._finding())

    def _finding(self) -> str:
        try:
            function = self.cuda.software_cuda_finding
        except AttributeError:  # a real driver
            return ""
        function.restype = ctypes.c_char_p
        return function().decode()

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, len(text), 0)
        return text.value.decode()

    def driver_version(self) -> str:
        """The CUDA release of the driver: 12.6."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
        return value.value

    def upload(self, array: np.ndarray) -> Buffer:
        """Memory of its own with the array's values; freed with the buffer."""
        buffer = Buffer(self, array.shape, array.dtype)
        if array.size:
            held = np.ascontiguousarray(array)
            self.call("cuMemcpyHtoDAsync_v2", buffer.pointer, _address(held), ctypes.c_size_t(held.nbytes), self._stream)
        return buffer

    def launch(self, cubin: bytes, kernel: str, grid: Dims, block: Dims, arguments: Sequence[Argument], shared_bytes: int = 0) -> None:
        """Integers are passed as int32, floats as float32. Waits for the end. Raises CudaError."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        if shared_bytes > 48 << 10:
            self.call("cuFuncSetAttribute", function, 8, shared_bytes)
        values = [_value(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        try:
            self.call("cuLaunchKernel", function, *grid, *block, shared_bytes, self._stream, pointers, None)
            self.call("cuStreamSynchronize", self._stream)
        finally:
            self.cuda.cuModuleUnload(module)

    def download(self, buffer: Buffer) -> np.ndarray:
        result = np.empty(buffer.shape, buffer.dtype)
        if result.size:
            self.call("cuMemcpyDtoHAsync_v2", _address(result), buffer.pointer, ctypes.c_size_t(result.nbytes), self._stream)
            self.call("cuStreamSynchronize", self._stream)
        return result

    def run(
        self, cubin: bytes, kernel: str, grid: Dims, block: Dims, arguments: Sequence[np.ndarray | int | float], shared_bytes: int = 0
    ) -> list[np.ndarray]:
        """Launches once on copies of the arrays: the arrays among the arguments, as the kernel has left them."""
        held = [self.upload(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
        self.launch(cubin, kernel, grid, block, held, shared_bytes)
        return [self.download(argument) for argument in held if isinstance(argument, Buffer)]


class Buffer:
    """Device memory for an array; a null pointer for an empty one."""

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.device, self.shape, self.dtype, self.pointer = device, shape, dtype, ctypes.c_uint64()
        size = int(np.prod(shape)) * dtype.itemsize
        if size:
            device.call("cuMemAlloc_v2", ctypes.byref(self.pointer), ctypes.c_size_t(size))

    def __del__(self) -> None:
        if self.pointer:
            self.device.cuda.cuMemFree_v2(self.pointer)  # refused after a failure or the end of the context, which frees all


Argument = Buffer | int | float


def _value(argument: Argument) -> ctypes.c_uint64 | ctypes.c_int32 | ctypes.c_float:
    if isinstance(argument, Buffer):
        return argument.pointer
    return ctypes.c_int32(argument) if isinstance(argument, int) else ctypes.c_float(argument)


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
