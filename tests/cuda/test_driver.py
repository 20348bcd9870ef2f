"""The software driver behaves as a driver: what is asynchronous, what fails and how, graphs, limits, the boards that it can be."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from tests.cuda import host_code
from tests.cuda.launcher import CudaError, Device

SOURCE = """
extern "C" __global__ void __launch_bounds__(64) twice(float *a, int n) {
  if (threadIdx.x < n) a[threadIdx.x] *= 2;
}
extern "C" __global__ void __launch_bounds__(64) broken(float *a, int n) { a[n + threadIdx.x] = 1; }
extern "C" __global__ void __launch_bounds__(64) wide(float *a, int n) {
  extern __shared__ float room[];
  room[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = room[63 - threadIdx.x];
}
"""
CUBIN = host_code.empty_cubin(87, SOURCE.encode())
U64: TypeAlias = ctypes.c_uint64
POINTER: TypeAlias = ctypes.c_void_p
BYTES = ctypes.c_size_t(256)


class Raw:
    """A device with the kernels loaded and 64 floats of device memory."""

    def __init__(self, device: Device) -> None:
        self.device, self.call = device, device.call
        self.module, self.memory, self.stream = POINTER(), U64(), POINTER()
        self.call("cuModuleLoadData", ctypes.byref(self.module), CUBIN)
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), BYTES)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)

    def pinned(self) -> tuple[np.ndarray, POINTER]:
        pointer = POINTER()
        self.call("cuMemHostAlloc", ctypes.byref(pointer), BYTES, 2)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (64,)), pointer

    def launch(
        self,
        name: str = "twice",
        *,
        threads: int = 64,
        shared: int = 0,
        n: int = 64,
        memory: U64 | None = None,
        stream: POINTER | None = None,
    ) -> None:
        function, count = POINTER(), ctypes.c_int(n)
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
        parameters = (POINTER * 2)(ctypes.addressof(memory or self.memory), ctypes.addressof(count))
        self.call("cuLaunchKernel", function, 1, 1, 1, threads, 1, 1, shared, stream or self.stream, parameters, None)

    def to_device(self, pointer: POINTER) -> None:
        self.call("cuMemcpyHtoDAsync_v2", self.memory, pointer, BYTES, self.stream)

    def to_host(self, pointer: POINTER) -> None:
        self.call("cuMemcpyDtoHAsync_v2", pointer, self.memory, BYTES, self.stream)

    def wait(self) -> None:
        self.call("cuStreamSynchronize", self.stream)


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Raw]:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA", str(tmp_path))
    host_code.build(SOURCE, CUBIN, tmp_path)
    with Device(host_code.driver()) as device:
        yield Raw(device)


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def test_nothing_is_done_before_somebody_waits(raw: Raw) -> None:
    values, pointer = raw.pinned()
    values[:] = 1
    raw.to_device(pointer)
    raw.launch()
    raw.to_host(pointer)
    assert (values == 1).all()
    raw.wait()
    assert (values == 2).all()


def test_a_copy_from_pageable_memory_takes_what_is_there_now(raw: Raw) -> None:
    values = np.ones(64, np.float32)
    raw.to_device(address(values))
    values[:] = 5
    raw.launch()
    raw.to_host(address(values))  # waits, since the memory is pageable
    assert (values == 2).all()


def test_a_copy_from_pinned_memory_takes_what_is_there_later(raw: Raw) -> None:
    values, pointer = raw.pinned()
    values[:] = 1
    raw.to_device(pointer)
    values[:] = 5
    raw.launch()
    raw.to_host(pointer)
    raw.wait()
    assert (values == 10).all()


def test_an_event_orders_two_streams(raw: Raw) -> None:
    values, pointer = raw.pinned()
    values[:] = 1
    other, event = POINTER(), POINTER()
    raw.call("cuStreamCreate", ctypes.byref(other), 1)
    raw.call("cuEventCreate", ctypes.byref(event), 2)
    raw.to_device(pointer)
    raw.launch()
    raw.call("cuEventRecord", event, raw.stream)
    raw.launch(n=32)  # after the event: nobody waits for it
    raw.call("cuStreamWaitEvent", other, event, 0)
    raw.call("cuMemcpyDtoHAsync_v2", pointer, raw.memory, BYTES, other)
    raw.call("cuStreamSynchronize", other)
    assert (values == 2).all()
    raw.call("cuEventSynchronize", event)
    raw.call("cuEventDestroy_v2", event)


def test_the_null_stream_waits_for_blocking_ones(raw: Raw) -> None:
    values, stream = np.ones(64, np.float32), POINTER()
    raw.call("cuStreamCreate", ctypes.byref(stream), 0)
    raw.call("cuMemcpyHtoDAsync_v2", raw.memory, address(values), BYTES, stream)
    raw.launch(stream=stream)
    raw.call("cuMemcpyDtoHAsync_v2", address(values), raw.memory, BYTES, None)
    assert (values == 2).all()


def test_a_graph_runs_as_often_as_it_is_launched(raw: Raw) -> None:
    values, pointer = raw.pinned()
    values[:] = 1
    graph, executable = POINTER(), POINTER()
    raw.to_device(pointer)
    raw.call("cuStreamBeginCapture_v2", raw.stream, 1)
    raw.launch()
    raw.launch()
    raw.to_host(pointer)
    raw.call("cuStreamEndCapture", raw.stream, ctypes.byref(graph))
    raw.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    raw.call("cuGraphDestroy", graph)
    raw.wait()
    assert (values == 1).all(), "what is captured does not run"
    raw.call("cuGraphLaunch", executable, raw.stream)
    raw.call("cuGraphLaunch", executable, raw.stream)
    raw.wait()
    assert (values == 16).all()
    raw.call("cuGraphExecDestroy", executable)


def test_waiting_breaks_a_capture(raw: Raw) -> None:
    graph = POINTER()
    raw.call("cuStreamBeginCapture_v2", raw.stream, 1)
    with pytest.raises(CudaError, match="cuStreamSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        raw.wait()
    with pytest.raises(CudaError, match="cuStreamEndCapture: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"):
        raw.call("cuStreamEndCapture", raw.stream, ctypes.byref(graph))
    raw.wait()


@pytest.mark.parametrize(("mode", "here", "elsewhere"), [(0, False, False), (1, False, True), (2, True, True)])
def test_who_can_have_memory_during_a_capture(raw: Raw, mode: int, here: bool, elsewhere: bool) -> None:
    """By the capture's mode: nobody, other threads (what the runtime asks for: sessions are made while others capture), all."""

    def allocated() -> bool:
        address = U64()
        try:
            raw.call("cuMemAlloc_v2", ctypes.byref(address), BYTES)
        except CudaError as error:
            assert "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" in str(error)
            return False
        raw.call("cuMemFree_v2", address)
        return True

    def in_another_thread() -> bool:
        context = POINTER()
        raw.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        raw.call("cuCtxPushCurrent_v2", context)
        found = allocated()
        raw.call("cuDevicePrimaryCtxRelease_v2", 0)
        return found

    raw.call("cuStreamBeginCapture_v2", raw.stream, mode)
    with ThreadPoolExecutor(1) as threads:
        assert (allocated(), threads.submit(in_another_thread).result()) == (here, elsewhere)


def test_a_failed_kernel_spoils_the_context(raw: Raw) -> None:
    raw.launch("broken", n=1)
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as error:
        raw.wait()
    assert "kernel broken, block (0,0,0): thread (63,0,0) writes 4 bytes" in error.value.finding
    assert "line 5" in error.value.finding
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        raw.call("cuMemAlloc_v2", ctypes.byref(U64()), BYTES)


def test_a_new_context_is_sound_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA", str(tmp_path))
    host_code.build(SOURCE, CUBIN, tmp_path)
    for kernel in ("broken", "twice"):
        with Device(host_code.driver()) as device:
            raw = Raw(device)
            raw.launch(kernel, n=1)
            if kernel == "twice":
                raw.wait()
                continue
            with pytest.raises(CudaError):
                raw.wait()


def test_a_pointer_to_host_memory_is_found_without_checks_too(raw: Raw) -> None:
    values = np.ones(64, np.float32)
    raw.launch(memory=U64(values.ctypes.data))
    with pytest.raises(CudaError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as error:
        raw.wait()
    assert "parameter 0 points to no memory of the device" in error.value.finding


def test_kernels_use_pinned_memory_as_it_is(raw: Raw) -> None:
    values, pointer = raw.pinned()
    values[:] = 3
    device_pointer = U64()
    raw.call("cuMemHostGetDevicePointer_v2", ctypes.byref(device_pointer), pointer, 0)
    raw.launch(memory=device_pointer)
    assert (values == 3).all()
    raw.wait()
    assert (values == 6).all()


def test_the_host_cannot_read_device_memory(raw: Raw) -> None:
    values = np.zeros(64, np.float32)
    raw.to_device(address(values))
    raw.wait()
    with open("/proc/self/maps") as maps:
        spans = [(*(int(end, 16) for end in line.split()[0].split("-")), line.split()[1]) for line in maps]
    assert next(rights for first, end, rights in spans if first <= raw.memory.value < end) == "---p"


def test_pointers_know_what_they_point_to(raw: Raw) -> None:
    kind = ctypes.c_uint()
    _, pinned = raw.pinned()
    raw.call("cuPointerGetAttribute", ctypes.byref(kind), 2, U64(raw.memory.value + 8))
    assert kind.value == 2
    raw.call("cuPointerGetAttribute", ctypes.byref(kind), 2, U64(pinned.value or 0))
    assert kind.value == 1
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_VALUE"):
        raw.call("cuPointerGetAttribute", ctypes.byref(kind), 2, U64(np.zeros(3).ctypes.data))


def test_fresh_memory_is_not_a_number(raw: Raw) -> None:
    values = np.zeros(64, np.float32)
    raw.to_host(address(values))
    assert np.isnan(values).all()


LIMITS = {
    "more threads than the kernel's bound": ({"threads": 65}, "CUDA_ERROR_INVALID_VALUE"),
    "no thread": ({"threads": 0}, "CUDA_ERROR_INVALID_VALUE"),
    "shared memory that was not asked for": ({"name": "wide", "shared": (48 << 10) + 4}, "CUDA_ERROR_INVALID_VALUE"),
}


@pytest.mark.parametrize("what", LIMITS)
def test_limits_of_a_launch(raw: Raw, what: str) -> None:
    arguments, error = LIMITS[what]
    with pytest.raises(CudaError, match=error):
        raw.launch(**arguments)  # type: ignore[arg-type]


def test_more_shared_memory_has_to_be_asked_for(raw: Raw) -> None:
    function, values = POINTER(), np.arange(64, dtype=np.float32)
    raw.call("cuModuleGetFunction", ctypes.byref(function), raw.module, b"wide")
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_VALUE"):
        raw.call("cuFuncSetAttribute", function, 8, (163 << 10) + 1)
    raw.call("cuFuncSetAttribute", function, 8, 163 << 10)
    raw.to_device(address(values))
    raw.launch("wide", shared=163 << 10)
    raw.to_host(address(values))
    assert (values == np.arange(64)[::-1]).all()


def test_too_many_registers(raw: Raw, tmp_path: Path) -> None:
    cubin = _cubin_with_registers("twice", 255)
    host_code.build(SOURCE.replace("(64) twice", "(1024) twice"), cubin, tmp_path)
    raw.call("cuModuleLoadData", ctypes.byref(raw.module), cubin)
    raw.launch(threads=256)
    with pytest.raises(CudaError, match="CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"):
        raw.launch(threads=288)


def _cubin_with_registers(kernel: str, registers: int) -> bytes:
    """An ELF file of two sections: the names, and the kernel's code (of no byte), which says how many registers it has."""
    names = f"\0.shstrtab\0.text.{kernel}\0".encode()
    names += bytes(-len(names) % 8)
    header = bytearray(host_code.empty_cubin(87)[:64])
    header[32:64] = bytes(32)
    header[40:48] = (64 + len(names)).to_bytes(8, "little")
    header[48:52] = (87).to_bytes(4, "little")
    header[60:62], header[62:64] = (2).to_bytes(2, "little"), (0).to_bytes(2, "little")

    def section(name: int, size: int, info: int) -> bytes:
        words = [name.to_bytes(4, "little"), (1).to_bytes(4, "little"), bytes(16), (64).to_bytes(8, "little"), size.to_bytes(8, "little")]
        return b"".join([*words, bytes(4), info.to_bytes(4, "little"), bytes(16)])

    return bytes(header) + names + section(1, len(names), 0) + section(11, 0, registers << 24)


IMAGES = {
    "for another GPU": (host_code.empty_cubin(86), "CUDA_ERROR_NO_BINARY_FOR_GPU"),
    "not ELF": (b"\0" * 64, "CUDA_ERROR_INVALID_IMAGE"),
    "for a CPU": (b"\x7fELF\x02\x01\x01" + b"\0" * 11 + b"\x3e\0" + b"\0" * 44, "CUDA_ERROR_INVALID_IMAGE"),
    "without host code": (host_code.empty_cubin(87, b"nobody built this"), "CUDA_ERROR_FILE_NOT_FOUND"),
}


@pytest.mark.parametrize("what", IMAGES)
def test_images_that_do_not_load(raw: Raw, what: str) -> None:
    image, error = IMAGES[what]
    with pytest.raises(CudaError, match=error):
        raw.call("cuModuleLoadData", ctypes.byref(POINTER()), image)


def test_memory_runs_out(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA_MEMORY", str(1 << 20))
    with pytest.raises(CudaError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        raw.call("cuMemAlloc_v2", ctypes.byref(U64()), ctypes.c_size_t(1 << 20))


@pytest.mark.parametrize("sm, optin, registers", [(53, 48, 32), (62, 48, 32), (72, 96, 64), (87, 163, 64), (110, 227, 64)])
def test_the_boards(raw: Raw, sm: int, optin: int, registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA_SM", str(sm))
    attribute = raw.device.attribute
    assert (attribute(75) * 10 + attribute(76), attribute(97) >> 10, attribute(12) >> 10) == (sm, optin, registers)
    assert attribute(18) == 1
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA_DEVICE", "discrete")
    assert attribute(18) == 0


def test_no_device(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTC_SOFTWARE_CUDA_DEVICES", "0")
    with pytest.raises(CudaError, match="CUDA_ERROR_NO_DEVICE"):
        raw.call("cuInit", 0)


def test_a_call_without_a_context(raw: Raw) -> None:
    raw.call("cuCtxPopCurrent_v2", None)
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_CONTEXT"):
        raw.wait()
    context = POINTER()
    raw.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    raw.call("cuCtxPushCurrent_v2", context)
    raw.call("cuDevicePrimaryCtxRelease_v2", 0)
    raw.wait()
