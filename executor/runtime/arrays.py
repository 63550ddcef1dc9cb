"""Tensors in and out: PyTorch, NumPy, and whatever speaks DLPack.

Theory of operation. Neither library is needed: each is looked for among the modules that are loaded when a value is
looked at, since nothing can be an instance of a library that is not loaded. The content of a tensor is handed on as a
buffer over its own memory where it lies densely in row-major, little-endian order, and as a buffer over a copy where
it does not. A tensor on a GPU is read under the lease, by gpu_arrays.py.

NumPy's arrays are read with the methods of `ndarray` itself, PyTorch's below `__torch_function__`, so that a subclass
cannot say something else about its content.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional, Protocol, Sequence

from dlpack import ON_CUDA
from errors import InstructionFailed, message_of
from kernel import memory_at
from memory import Blob, Writer

# By name as on the wire: NumPy's name, or None where NumPy has no such type. PyTorch's names are the wire's.
_NUMPY_DTYPES = {
    "bool": "bool",
    "uint8": "uint8",
    "int8": "int8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "bfloat16": None,
    "float8_e4m3fn": None,
    "float8_e5m2": None,
    "complex64": "complex64",
    "complex128": "complex128",
}
_modules = sys.modules
_mro_of = type.__dict__["__mro__"].__get__
_name_of_type = type.__dict__["__name__"].__get__


class NotAnArray(Exception):
    """A value that is no number, array or tensor of the contract; the message says what it is."""


class Array(Protocol):
    """A dense array: row-major and little-endian."""

    dtype: str
    shape: Sequence[int]

    def write_to(self, writer: Writer) -> None:
        """Appends its content."""


class HostArray:
    """One whose content is a buffer."""

    __slots__ = ("dtype", "shape", "_content", "_owner")

    def __init__(self, dtype: str, shape: Sequence[int], content: Any, owner: Any) -> None:
        self.dtype = dtype
        self.shape = shape
        self._content = content
        self._owner = owner  # of the memory under the content

    def write_to(self, writer: Writer) -> None:
        writer.append(self._content)


class Gpu(Protocol):
    """What a GPU server does with tensors (gpu_arrays.py). What it raises of its own is a CudaError."""

    def make(self, blob: Blob, dtype: str, shape: Sequence[int]) -> Any:
        """A tensor on the GPU with the blob's content. Runs as the program's code does. Raises InstructionFailed."""

    def read_torch(self, torch: Any, tensor: Any, dtype: str) -> Array:
        """Of a tensor on a GPU. Raises NotAnArray."""

    def read_dlpack(self, value: Any) -> Array:
        """Of an object whose memory is on a GPU. Raises NotAnArray, or what the object raises."""


class ArrayCodec:
    """Reads and makes arrays."""

    def __init__(self, acquire_gpu: Callable[[], None], gpu: Optional[Gpu]) -> None:
        """`acquire_gpu` is called before a GPU's memory is read. `gpu`: None on a CPU server."""
        self._acquire_gpu = acquire_gpu
        self._gpu = gpu

    def read(self, value: Any) -> tuple[Any, Optional[Array]]:
        """A NumPy scalar as the Python number that it stands for, or an array. Raises NotAnArray."""
        kind = type(value)
        numpy, torch = _modules.get("numpy"), _modules.get("torch")
        if _is_subclass(kind, numpy, "generic"):
            return _read_numpy_scalar(numpy, value), None
        if _is_subclass(kind, numpy, "ndarray"):
            return None, _read_numpy(numpy, value)
        if _is_subclass(kind, torch, "Tensor"):
            return None, self._read_torch(torch, value)
        if hasattr(kind, "__dlpack__"):
            return None, self._read_dlpack(value, numpy, torch)
        raise NotAnArray("a value of type " + _name_of_type(kind) + " cannot be returned")

    def _read_torch(self, torch: Any, tensor: Any) -> Array:
        disabled = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction
        with disabled():
            dtype = str(tensor.dtype).partition(".")[2]
            if dtype not in _NUMPY_DTYPES:
                raise NotAnArray("a tensor of dtype " + dtype + " cannot be returned")
            if tensor.layout != torch.strided:
                raise NotAnArray("a tensor of layout " + str(tensor.layout) + " cannot be returned: make it dense")
            if tensor.device.type == "cuda" and self._gpu is not None:
                self._acquire_gpu()
                return self._gpu.read_torch(torch, tensor, dtype)
            dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
            size_bytes = dense.numel() * dense.element_size()
            address = dense.data_ptr()
            if size_bytes and not address:
                raise NotAnArray("a tensor without content (device " + str(tensor.device) + ") cannot be returned")
            return HostArray(dtype, tuple(dense.shape), memory_at(address, size_bytes) if size_bytes else b"", dense)

    def _read_dlpack(self, value: Any, numpy: Any, torch: Any) -> Array:
        if self._gpu is not None and int(type(value).__dlpack_device__(value)[0]) in ON_CUDA:
            self._acquire_gpu()
            return self._gpu.read_dlpack(value)
        if torch is not None:
            return self._read_torch(torch, torch.from_dlpack(value))
        if numpy is None:
            import numpy  # type: ignore[no-redef]
        return _read_numpy(numpy, numpy.from_dlpack(value))

    def make(self, blob: Blob, dtype: str, shape: Sequence[int]) -> Any:
        """A tensor with the blob's content: on the GPU of a server that has one, else PyTorch's where installed, else
        NumPy's.

        It imports them, so it runs as the program's code does. Raises InstructionFailed."""
        if self._gpu is not None:
            return self._gpu.make(blob, dtype, shape)
        content = blob.take()
        torch = find_torch()
        if torch is None:
            return _make_numpy(content, dtype, shape)
        torch_dtype = torch_dtype_of(torch, dtype)
        if len(content) == 0:
            return torch.empty(shape, dtype=torch_dtype)
        return torch.frombuffer(content, dtype=torch_dtype).reshape(shape)


def find_torch() -> Any:
    """PyTorch, or None where it is not installed. Runs as the program's code does. Raises InstructionFailed."""
    try:
        import torch
    except ModuleNotFoundError as missing:
        if missing.name == "torch":
            return None
        raise InstructionFailed("unavailable", "PyTorch cannot be imported: " + message_of(missing), missing)
    except Exception as error:
        raise InstructionFailed("unavailable", "PyTorch cannot be imported: " + message_of(error), error)
    return torch


def torch_dtype_of(torch: Any, name: str) -> Any:
    """Raises InstructionFailed."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise InstructionFailed("unavailable", "the server's PyTorch " + torch.__version__ + " has no dtype " + name)
    return dtype


def _is_subclass(kind: type, module: Any, name: str) -> bool:
    """Asks no metaclass: those may be the program's."""
    base = getattr(module, name, None)
    for each in _mro_of(kind):
        if each is base:
            return True
    return False


def _numpy_name(dtype: Any) -> str:
    name = dtype.name
    return name if name in _NUMPY_DTYPES else ""


def _read_numpy_scalar(numpy: Any, scalar: Any) -> Any:
    dtype = numpy.generic.dtype.__get__(scalar)
    if dtype.kind == "b":
        return numpy.generic.item(scalar) is True
    if dtype.kind in "iu":
        return int(numpy.generic.item(scalar))
    if dtype.kind == "f" or (_numpy_name(dtype) and dtype.kind != "c"):
        return float(numpy.generic.item(scalar))
    raise NotAnArray("a NumPy scalar of dtype " + str(dtype) + " cannot be returned")


def _read_numpy(numpy: Any, array: Any) -> HostArray:
    ndarray = numpy.ndarray
    plain = ndarray.view(array, ndarray)
    dtype = plain.dtype
    name = _numpy_name(dtype)
    if not name:
        raise NotAnArray("an array of dtype " + str(dtype) + " cannot be returned")
    if not dtype.isnative:
        plain = plain.astype(dtype.newbyteorder("="))
    if not plain.flags.c_contiguous:
        plain = plain.copy(order="C")
    shape = plain.shape
    if plain.size == 0:
        return HostArray(name, shape, b"", None)
    flat = plain.reshape(-1).view("uint8")
    return HostArray(name, shape, memoryview(flat), flat)


def _make_numpy(content: Any, dtype: str, shape: Sequence[int]) -> Any:
    try:
        import numpy
    except ImportError as missing:
        message = "tensors need PyTorch or NumPy in the server's Python, and neither can be imported"
        raise InstructionFailed("unavailable", message, missing)
    name = _NUMPY_DTYPES[dtype]
    if name is None:
        raise InstructionFailed("unavailable", "a tensor of dtype " + dtype + " needs PyTorch in the server's Python")
    if len(content) == 0:
        return numpy.empty(shape, dtype=name)
    return numpy.frombuffer(content, dtype=name).reshape(shape)
