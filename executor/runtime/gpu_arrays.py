"""Tensors of a GPU server: uploads become PyTorch's on the GPU, and what lies on a GPU is returned from there.

Theory of operation. Content goes straight between the device and the memory that is shared with the server: an upload
is read from the mapping of its blob, a return is written into the pages of the memfd that the executor gets. No tensor
in ordinary memory comes between. (Small returns go through a buffer: a page of a memfd that is mapped costs more than
one that is written.) What is not dense in row-major order is made so on the GPU by PyTorch; where that is not loaded,
or cannot represent it, by NumPy after the copy.

A value may still be in the making when it is returned. A copy waits for all of its context, whatever the stream, so
GPU work that failed is noticed here. That is a CudaError (kind `runtime`), not a value without an encoding (kind
`serialization`).
"""

from __future__ import annotations

import sys
from ctypes import addressof, c_char
from typing import Any, Optional, Sequence

from arrays import Array, HostArray, NotAnArray, find_torch, torch_dtype_of
from cuda import REGISTERED_BYTES_MIN, CudaError, Driver, torch_failed
from dlpack import Strided, Unsupported, read_capsule
from errors import InstructionFailed, message_of
from memory import RETURNED_BYTES_MAX, Blob, Writer

_LEGACY_DEFAULT_STREAM = 1  # as DLPack numbers them
_SPAN_BYTES_MAX = 1 << 49  # all that a GPU can address
_COPYING_BYTES_MAX = 8 * 1024 * 1024
_Bytes = c_char
_modules = sys.modules


class GpuArray:
    """A dense array on a GPU."""

    __slots__ = ("dtype", "shape", "_address", "_size_bytes", "_owner", "_driver")

    def __init__(
        self, dtype: str, shape: Sequence[int], address: int, size_bytes: int, owner: Any, driver: Driver
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self._address = address
        self._size_bytes = size_bytes
        self._owner = owner  # of the memory
        self._driver = driver

    def write_to(self, writer: Writer) -> None:
        """Raises CudaError."""
        if self._size_bytes >= REGISTERED_BYTES_MIN:
            writer.fill(self._size_bytes, lambda host: self._driver.copy_out(host, self._address, self._size_bytes))
            return
        if self._size_bytes > 0:
            buffer = (_Bytes * self._size_bytes)()
            self._driver.copy_out(addressof(buffer), self._address, self._size_bytes)
            writer.append(memoryview(buffer).cast("B"))


class GpuArrays:
    """See arrays.Gpu."""

    def __init__(self, driver: Optional[Driver]) -> None:
        """Without a driver every call fails with `unavailable`."""
        self._given_driver = driver
        self._copying: list[Blob] = []
        self._copying_bytes = 0

    @property
    def _driver(self) -> Driver:
        if self._given_driver is None:
            raise InstructionFailed("unavailable", "the server has GPUs to lease, and no CUDA driver (libcuda.so.1)")
        return self._given_driver

    def make(self, blob: Blob, dtype: str, shape: Sequence[int]) -> Any:
        torch = _torch_with_gpu()
        torch_dtype = torch_dtype_of(torch, dtype)
        tensor = torch.empty(shape, dtype=torch_dtype, device="cuda")
        if blob.size_bytes > 0:
            # The memory may be what queued work still uses: PyTorch hands it out in the order of this stream.
            stream = torch.cuda.current_stream(tensor.device).cuda_stream
            if not self._driver.copy_in(tensor.data_ptr(), blob.address, blob.size_bytes, stream):
                self._note_copying(blob)
                return tensor
        blob.note_use()
        return tensor

    def _note_copying(self, blob: Blob) -> None:
        """Its content must stay mapped until the copy has ended, which is found out seldom."""
        self._copying.append(blob)
        self._copying_bytes += blob.size_bytes
        if self._copying_bytes > _COPYING_BYTES_MAX:
            self._driver.synchronise()
            for each in self._copying:
                each.note_use()
            self._copying, self._copying_bytes = [], 0

    def read_torch(self, torch: Any, tensor: Any, dtype: str) -> Array:
        try:
            dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
            size_bytes = dense.numel() * dense.element_size()
            address = dense.data_ptr()
        except Exception as error:
            self._raise_if_cuda_failed(torch, error)
            raise
        if size_bytes > 0 and not address:
            raise NotAnArray("a tensor without content cannot be returned")
        return GpuArray(dtype, tuple(dense.shape), address, size_bytes, dense, self._driver)

    def read_dlpack(self, value: Any) -> Array:
        torch = _modules.get("torch")
        try:
            capsule = type(value).__dlpack__(value, stream=_LEGACY_DEFAULT_STREAM)
            tensor = read_capsule(capsule)
            if tensor.is_dense:
                return GpuArray(tensor.dtype, tensor.shape, tensor.address, tensor.size_bytes, capsule, self._driver)
            if torch is not None and torch.cuda.is_initialized() and _fits_torch(tensor):
                return self.read_torch(torch, torch.from_dlpack(capsule), tensor.dtype)
            return self._gather(tensor)
        except Unsupported as refusal:
            raise NotAnArray(message_of(refusal)) from None
        except NotAnArray:
            raise
        except Exception as error:
            self._raise_if_cuda_failed(torch, error)
            raise

    def _gather(self, tensor: Strided) -> Array:
        """Copies all of the memory that the tensor is scattered over. Requires: the capsule is kept meanwhile."""
        import numpy

        first, span_bytes = tensor.span()
        if span_bytes > RETURNED_BYTES_MAX:
            message = "an array scattered over %d MiB of the GPU: make it contiguous" % (span_bytes >> 20)
            raise NotAnArray(message)
        host = (_Bytes * span_bytes)()
        self._driver.copy_out(addressof(host), tensor.address + first, span_bytes)
        items = numpy.ndarray(tensor.shape, "V%d" % tensor.item_bytes, host, -first, tensor.strides)
        dense = numpy.ascontiguousarray(items).reshape(-1).view("uint8")
        return HostArray(tensor.dtype, tensor.shape, memoryview(dense), dense)

    def _raise_if_cuda_failed(self, torch: Any, error: Exception) -> None:
        """Raises what is behind `error`: CudaError where GPU work had failed, whoever noticed it; NotAnArray where
        memory ran out."""
        if type(error) is CudaError:
            return
        if _is_out_of_memory(torch, error):
            message = "the GPU has too little memory left to make it contiguous: " + message_of(error)
            raise NotAnArray(message) from error
        if self._driver.is_active():
            self._driver.synchronise()
        accelerator_error = getattr(torch, "AcceleratorError", ())
        if isinstance(error, accelerator_error) or message_of(error).startswith("CUDA error"):
            raise torch_failed(error, "making a tensor contiguous") from error


def _fits_torch(tensor: Strided) -> bool:
    """PyTorch has no negative strides, which a reversed array has. Given one, or what no memory can span, it ends the
    process (up to 2.12; https://github.com/pytorch/pytorch/issues/188023)."""
    first, span_bytes = tensor.span()
    return first == 0 and span_bytes <= _SPAN_BYTES_MAX


def _torch_with_gpu() -> Any:
    """PyTorch, with CUDA started. Raises InstructionFailed."""
    torch = find_torch()
    if torch is None:
        message = "tensors on a GPU need PyTorch in the server's Python, and it is not installed"
        raise InstructionFailed("unavailable", message)
    if torch.version.cuda is None:
        message = "tensors on a GPU need PyTorch with CUDA, and the server's PyTorch " + torch.__version__
        raise InstructionFailed("unavailable", message + " was built without it")
    try:
        torch.cuda.init()
    except Exception as error:
        message = "the server's PyTorch cannot use the GPU: " + message_of(error)
        raise InstructionFailed("unavailable", message, error) from None
    return torch


def _is_out_of_memory(torch: Any, error: Exception) -> bool:
    if torch is None:
        return False
    kind = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    return isinstance(error, kind)
