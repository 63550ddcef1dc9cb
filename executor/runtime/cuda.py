"""The CUDA driver, as far as the runtime itself needs it: the context of a program, its health, and copies.

Theory of operation. The driver library is called with `ctypes`, so neither PyTorch nor a particular toolkit is needed,
and a program that patches either does not reach us; calls into it release the interpreter's lock. Nothing here starts
CUDA unless `initialise` or `make_context` is called: loading the library does not, so a zygote may do that.

The program's GPU work may come from anybody (PyTorch, CuPy, its own contexts), so a copy happens in the context that
the device memory belongs to, and leaves the calling thread's current context as it was.

Copies between the device and ordinary memory go through the driver's own small staging buffers. Memory that is
registered (pinned) is read and written by the device itself. Registering costs a call and a page table walk, so only
large copies do it, and where it is refused the plain copy does.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import addressof, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from posix import getpid
from typing import Any, Optional

from errors import message_of, name_of
from kernel import PAGE_BYTES

# Registering and unregistering cost two calls into the kernel and a walk over the pages, which a small copy does not
# earn back. bench/gpu/tensor_check.py measures from where on it does.
REGISTERED_BYTES_MIN = 1024 * 1024

_LIBRARY = "libcuda.so.1"
_SUCCESS, _NOT_INITIALISED = 0, 3
_REGISTER_PORTABLE, _REGISTER_READ_ONLY = 1, 8
_POINTER_CONTEXT, _POINTER_DEVICE = 1, 9
_WARM_UP_BYTES = 4096
_LEGACY_STREAM = 0
_FORKED = (
    "CUDA was started before this process was forked, and cannot be used in a fork: start the process anew "
    "(multiprocessing with 'spawn', or subprocess), or do the GPU work in its parent"
)
_modules = sys.modules
_Text = c_char_p
_Bytes = c_char
_Int, _Unsigned, _Pointer, _DevicePointer = c_int, c_uint, c_void_p, c_uint64

# Every one is in each driver since CUDA 11.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, c_void_p),
    "cuGetErrorString": (c_int, c_void_p),
    "cuDeviceGetCount": (c_void_p,),
    "cuDevicePrimaryCtxGetState": (c_int, c_void_p, c_void_p),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuStreamSynchronize": (c_void_p,),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
}


class CudaError(Exception):
    """What the driver said: `name` as CUDA_ERROR_OUT_OF_MEMORY, `text` its description. From PyTorch `name` is the
    exception's."""

    def __init__(self, name: str, text: str, call: str) -> None:
        super().__init__("a CUDA error: " + text + " (" + name + " in " + call + ")")
        self.name = name
        self.text = text
        self.call = call


class Driver:
    """The driver library of this process. Thread-safe as the library itself is."""

    _loaded: Optional[Driver] = None

    def __init__(self, library: Any) -> None:
        """`library`: as from ctypes.CDLL."""
        self.copies_out = 0  # how many have ended well
        self._started_in: Optional[int] = None  # the process whose CUDA we started
        self._functions: dict[str, Any] = {}
        for name, arguments in _FUNCTIONS.items():
            function = library[name]
            function.restype = _Int
            function.argtypes = arguments
            self._functions[name] = function

    @staticmethod
    def load() -> Optional[Driver]:
        """The process's one Driver; None where no driver is installed, or one from before CUDA 11. Starts nothing."""
        if Driver._loaded is None:
            try:
                Driver._loaded = Driver(ctypes.CDLL(_LIBRARY))
            except (OSError, AttributeError):
                return None
        return Driver._loaded

    def initialise(self) -> None:
        """Starts CUDA in this process, for good: its forks cannot use it. Raises CudaError."""
        self._call("cuInit", 0)
        self._started_in = getpid()

    def make_context(self) -> None:
        """Makes the primary context of the first visible device, for the rest of the process, and does each kind of
        operation once, so that a program does not wait for what is loaded at its first. Raises CudaError, and then
        holds no context (PyTorch may).

        Requires: no program ran in this process yet, and preloads are imported."""
        self.initialise()
        context = self._retain(0)
        try:
            self._warm_up(context)
            torch = _modules.get("torch")
            if torch is not None and torch.version.cuda is not None:
                _warm_up_torch(torch)
        except BaseException:
            self._functions["cuDevicePrimaryCtxRelease_v2"](0)
            raise

    def is_active(self) -> bool:
        """Whether a device has a primary context in this process, whoever made it. Starts nothing."""
        return len(self._active_devices()) > 0

    def synchronise(self) -> None:
        """Waits for all that was started in the primary contexts. Raises CudaError if something of it failed in a way
        that broke its context (an illegal address, a failed device assertion)."""
        for device in self._active_devices():
            context = self._retain(device)
            try:
                with _Current(self, context):
                    self._call("cuCtxSynchronize")
            finally:
                self._functions["cuDevicePrimaryCtxRelease_v2"](device)

    def copy_in(self, device_address: int, host_address: int, size_bytes: int, stream: int) -> bool:
        """Copies to the device, after what was queued on `stream` before. The host memory may be read-only.

        Whether it is done; else the host memory must stay as it is until the stream has come so far. That is so for
        small copies: the first work of a process on a device that others use, too, waits for the device to turn to it,
        and meanwhile the program can go on. Requires: size_bytes > 0; the stream's device is the memory's. Raises
        CudaError."""
        with _MemoryContext(self, device_address):
            with _Registered(self, host_address, size_bytes, _REGISTER_READ_ONLY) as registered:
                self._call("cuMemcpyHtoDAsync_v2", device_address, host_address, size_bytes, stream)
                if registered.was_wanted:
                    self._call("cuStreamSynchronize", stream)
                return registered.was_wanted

    def copy_out(self, host_address: int, device_address: int, size_bytes: int) -> None:
        """Copies from the device, after all that was started in the memory's context, whatever the stream.

        Requires: size_bytes > 0. Raises CudaError, also if something of what it waited for had failed."""
        with _MemoryContext(self, device_address):
            self._call("cuCtxSynchronize")
            with _Registered(self, host_address, size_bytes, 0):
                self._call("cuMemcpyDtoH_v2", host_address, device_address, size_bytes)
        self.copies_out += 1

    def _active_devices(self) -> list[int]:
        count = _Int()
        result = self._functions["cuDeviceGetCount"](byref(count))
        if result == _NOT_INITIALISED:
            return []
        self._check(result, "cuDeviceGetCount")
        active = []
        for device in range(count.value):
            flags, state = _Unsigned(), _Int()
            self._call("cuDevicePrimaryCtxGetState", device, byref(flags), byref(state))
            if state.value != 0:
                active.append(device)
        return active

    def _retain(self, device: int) -> int:
        """Requires: a release follows for each."""
        context = _Pointer()
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        assert context.value is not None
        return context.value

    def _warm_up(self, context: int) -> None:
        """One copy there and back, in the driver alone."""
        host = (_Bytes * _WARM_UP_BYTES)()
        memory = _DevicePointer()
        with _Current(self, context):
            self._call("cuMemAlloc_v2", byref(memory), _WARM_UP_BYTES)
            try:
                self.copy_in(memory.value, addressof(host), _WARM_UP_BYTES, _LEGACY_STREAM)
                self.copy_out(addressof(host), memory.value, _WARM_UP_BYTES)
            finally:
                self._functions["cuMemFree_v2"](memory)

    def _attribute(self, attribute: int, value: Any, device_address: int) -> Any:
        self._call("cuPointerGetAttribute", byref(value), attribute, device_address)
        return value.value

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(self._functions[name](*arguments), name)

    def _check(self, result: int, call: str) -> None:
        if result != _SUCCESS:
            name = self._describe("cuGetErrorName", result) or "%d" % result
            text = _FORKED if self._is_of_a_fork(result, call) else self._describe("cuGetErrorString", result)
            raise CudaError(name, text or "unknown", call)

    def _is_of_a_fork(self, result: int, call: str) -> bool:
        """Whether a call failed because CUDA was started in a parent of this process. Starting it says so itself."""
        is_inherited = self._started_in is not None and self._started_in != getpid()
        return result == _NOT_INITIALISED and (call == "cuInit" or is_inherited)

    def _describe(self, function: str, result: int) -> str:
        text = _Text()
        if self._functions[function](result, byref(text)) != _SUCCESS or text.value is None:
            return ""
        return text.value.decode("utf-8", "replace")


class _Current:
    """A context that is the calling thread's current one for a while."""

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver = driver
        self._context = context

    def __enter__(self) -> None:
        self._driver._call("cuCtxPushCurrent_v2", self._context)

    def __exit__(self, *raised: Any) -> None:
        self._driver._functions["cuCtxPopCurrent_v2"](byref(_Pointer()))


class _MemoryContext:
    """The context that device memory belongs to, current for a while."""

    def __init__(self, driver: Driver, device_address: int) -> None:
        self._driver = driver
        self._retained: Optional[int] = None
        context = driver._attribute(_POINTER_CONTEXT, _Pointer(), device_address)
        if context is None:
            # Memory from a pool or mapped by address belongs to a device and to none of its contexts.
            device = driver._attribute(_POINTER_DEVICE, _Int(), device_address)
            context = driver._retain(device)
            self._retained = device
        self._current = _Current(driver, context)

    def __enter__(self) -> None:
        try:
            self._current.__enter__()
        except BaseException:
            self._release()
            raise

    def __exit__(self, *raised: Any) -> None:
        self._current.__exit__()
        self._release()

    def _release(self) -> None:
        if self._retained is not None:
            self._driver._functions["cuDevicePrimaryCtxRelease_v2"](self._retained)


class _Registered:
    """Host memory that is registered for the time of a copy, if it is large and the driver agrees.

    Requires: all of its pages are the caller's, and stay mapped."""

    def __init__(self, driver: Driver, address: int, size_bytes: int, flags: int) -> None:
        self._driver = driver
        self._start = address - address % PAGE_BYTES
        end = address + size_bytes
        self._size_bytes = end + -end % PAGE_BYTES - self._start
        self._flags = _REGISTER_PORTABLE | flags
        self.was_wanted = size_bytes >= REGISTERED_BYTES_MIN
        self._done = False

    def __enter__(self) -> _Registered:
        if self.was_wanted:
            register = self._driver._functions["cuMemHostRegister_v2"]
            self._done = register(self._start, self._size_bytes, self._flags) == _SUCCESS
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._done:
            self._driver._functions["cuMemHostUnregister"](self._start)


def _warm_up_torch(torch: Any) -> None:
    """What PyTorch loads at its first operations. Afterwards its allocator is as it was at its start: no memory, no
    statistics. No generator is touched: those of the GPU seed themselves when CUDA starts."""
    try:
        torch.cuda.init()
        host = torch.empty(_WARM_UP_BYTES, dtype=torch.uint8)
        device = torch.empty(_WARM_UP_BYTES, dtype=torch.uint8, device="cuda")
        device.copy_(host)
        numbers = device.view(torch.float32)
        numbers.add_(1.0)
        host.copy_(device)
        del device, numbers
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
    except Exception as error:
        raise torch_failed(error, "PyTorch's first operations") from error


def torch_failed(error: Exception, doing: str) -> CudaError:
    """PyTorch's word for a CUDA error, without the advice that follows it on further lines."""
    text = message_of(error).split("\n")[0].removeprefix("CUDA error: ")
    return CudaError(name_of(error), text, doing)
