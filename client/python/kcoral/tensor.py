"""Tensors on their way into and out of their wire form: contiguous, row-major, little-endian bytes.

NumPy, PyTorch and ml_dtypes are used where they are present and never required. Functions here are thread-safe.
"""

from __future__ import annotations

import ctypes
import math
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
}

# What NumPy knows only through the ml_dtypes package.
_EXTENSION_DTYPES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2"})

# Buffer formats (as the struct module spells them) of objects that are neither NumPy's nor PyTorch's, e.g. array.array.
_BUFFER_DTYPES = {
    ("?", 1): "bool",
    **{(code, size): f"int{8 * size}" for code in "bhilqn" for size in (1, 2, 4, 8)},
    **{(code, size): f"uint{8 * size}" for code in "BHILQN" for size in (1, 2, 4, 8)},
    ("e", 2): "float16",
    ("f", 4): "float32",
    ("d", 8): "float64",
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense tensor in its wire form, for when no array library here can hold it.

    Returned tensors are of this type where NumPy is missing, or where their dtype is bfloat16 or float8 and ml_dtypes
    is missing; one can be uploaded as it is. `data` is contiguous, row-major and little-endian. Immutable.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(dimension) for dimension in self.shape))
        object.__setattr__(self, "data", bytes(self.data))
        expected = byte_length(self.dtype, self.shape)
        if len(self.data) != expected:
            raise ValueError(f"a {self.dtype} tensor of shape {self.shape} has {expected} bytes, not {len(self.data)}")


def byte_length(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor. Raises ValueError for an unknown dtype or a negative dimension."""
    if dtype not in ITEM_BYTES:
        raise ValueError(f"{dtype!r} is no dtype of the contract: {' '.join(ITEM_BYTES)}")
    if any(dimension < 0 for dimension in shape):
        raise ValueError(f"shape {shape} has a negative dimension")
    return math.prod(shape) * ITEM_BYTES[dtype]


def encode(value: Any, dtype: str | None = None, shape: Any = None) -> Tensor:
    """A snapshot of `value` in wire form.

    `value` is a NumPy array, a PyTorch tensor (copied from its device), a `Tensor`, anything with `__array__` or
    `__dlpack__`, a typed buffer such as `array.array`; or raw bytes, described by `dtype` and `shape`.
    Raises TypeError for anything else, ValueError when `dtype` and `shape` do not fit.
    """
    if isinstance(value, (bytes, bytearray, memoryview)) and (dtype is not None or shape is not None):
        if dtype is None or shape is None:
            raise TypeError("a tensor given as raw bytes needs both dtype and shape")
        return Tensor(dtype, tuple(shape), bytes(value))
    if dtype is not None or shape is not None:
        raise TypeError("dtype and shape describe raw bytes; an array brings its own")
    if isinstance(value, Tensor):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(value)
    numpy = numpy_module()
    if numpy is not None:
        if isinstance(value, numpy.ndarray | numpy.generic) or hasattr(value, "__array__"):
            return _from_numpy(numpy, numpy.asarray(value))
        if hasattr(value, "__dlpack__"):
            return _from_numpy(numpy, numpy.from_dlpack(value))
    return _from_buffer(value)


def decode(dtype: str, shape: tuple[int, ...], data: memoryview) -> Any:
    """The array that `data` holds: a NumPy array on that very memory, else a `Tensor` with a copy of it."""
    numpy = numpy_module()
    numpy_dtype = None if numpy is None else _numpy_dtype(numpy, dtype)
    if numpy is None or numpy_dtype is None:
        return Tensor(dtype, shape, bytes(data))
    if not data:
        return numpy.empty(shape, dtype=numpy_dtype)
    return numpy.frombuffer(data, dtype=numpy_dtype).reshape(shape)


def numpy_module() -> ModuleType | None:
    """NumPy, or None where it is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _numpy_dtype(numpy: ModuleType, name: str) -> Any:
    if name not in _EXTENSION_DTYPES:
        return numpy.dtype(name).newbyteorder("<")
    try:
        import ml_dtypes
    except ImportError:
        return None
    return numpy.dtype(getattr(ml_dtypes, name))


def _from_numpy(numpy: ModuleType, array: Any) -> Tensor:
    name = array.dtype.name
    if name not in ITEM_BYTES:
        raise TypeError(f"arrays of dtype {array.dtype} cannot be uploaded; the contract's are: {' '.join(ITEM_BYTES)}")
    if name not in _EXTENSION_DTYPES:
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Tensor(name, array.shape, array.tobytes())


def _from_torch(tensor: Any) -> Tensor:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise TypeError(
            f"tensors of dtype {tensor.dtype} cannot be uploaded; the contract's are: {' '.join(ITEM_BYTES)}"
        )
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # Copied from memory, not through NumPy: that works for bfloat16 and float8, and where NumPy is missing.
    size = dense.numel() * dense.element_size()
    data = ctypes.string_at(dense.data_ptr(), size) if size else b""
    return Tensor(name, tuple(dense.shape), data)


def _from_buffer(value: Any) -> Tensor:
    if isinstance(value, (bytes, bytearray)):
        raise TypeError("a tensor given as raw bytes needs both dtype and shape")
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"a {type(value).__name__} is no tensor: give a NumPy array, a PyTorch tensor, an object with __array__ or "
            "__dlpack__, or raw bytes with dtype and shape"
        ) from None
    code = view.format.lstrip("@=<") if sys.byteorder == "little" else view.format.lstrip("<")
    dtype = _BUFFER_DTYPES.get((code, view.itemsize))
    if dtype is None:
        raise TypeError(f"a buffer of format {view.format!r} has no dtype of the contract")
    return Tensor(dtype, view.shape or (), view.tobytes())
