"""Tensors of libraries that we do not know: a DLPack capsule, read as the C structure that it points to.

Theory of operation. A capsule owns its tensor until somebody consumes it. We only look, so the tensor lives as long as
the capsule does. The structure is the program's word: one that points nowhere ends the program's own process.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p, py_object
from typing import Any, Sequence

ON_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged

_NAME = b"dltensor"
_DIMENSIONS_MAX = 64  # of NumPy and PyTorch
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL, _E4M3FN, _E5M2 = 0, 1, 2, 4, 5, 6, 10, 12
# By type code and bits.
_DTYPES = {
    (_BOOL, 8): "bool",
    (_UINT, 8): "uint8",
    (_INT, 8): "int8",
    (_INT, 16): "int16",
    (_UINT, 16): "uint16",
    (_INT, 32): "int32",
    (_UINT, 32): "uint32",
    (_INT, 64): "int64",
    (_UINT, 64): "uint64",
    (_FLOAT, 16): "float16",
    (_FLOAT, 32): "float32",
    (_FLOAT, 64): "float64",
    (_BFLOAT, 16): "bfloat16",
    (_E4M3FN, 8): "float8_e4m3fn",
    (_E5M2, 8): "float8_e5m2",
    (_COMPLEX, 64): "complex64",
    (_COMPLEX, 128): "complex128",
}


class _Tensor(Structure):
    """DLTensor"""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("dimensions", c_int32),
        ("type_code", c_uint8),
        ("type_bits", c_uint8),
        ("type_lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype = c_void_p
_pointer_in.argtypes = [py_object, c_char_p]


class Unsupported(Exception):
    """A tensor whose elements have no name in the contract."""


class Strided:
    """What a capsule's tensor says about itself. Strides and offsets are in bytes."""

    __slots__ = ("dtype", "item_bytes", "shape", "strides", "address", "is_dense", "size_bytes")

    def __init__(self, dtype: str, item_bytes: int, shape: Sequence[int], strides: Sequence[int], address: int) -> None:
        self.dtype = dtype
        self.item_bytes = item_bytes
        self.shape = shape
        self.strides = strides
        self.address = address  # of the element at index 0 of each dimension
        self.size_bytes = item_bytes
        for dimension in shape:
            self.size_bytes *= dimension
        dense = _dense_strides(shape, item_bytes)
        self.is_dense = self.size_bytes == 0 or all(
            [length == 1 or stride == wanted for length, stride, wanted in zip(shape, strides, dense)]
        )

    def span(self) -> tuple[int, int]:
        """The memory that it lies in: the first byte relative to `address`, and how many. Requires: it is not empty."""
        first, last = 0, self.item_bytes
        for length, stride in zip(self.shape, self.strides):
            if stride < 0:
                first += (length - 1) * stride
            else:
                last += (length - 1) * stride
        return first, last - first


def read_capsule(capsule: Any) -> Strided:
    """Raises Unsupported, or ValueError for what is no capsule of a tensor. Requires: the capsule is kept."""
    address = _pointer_in(capsule, _NAME)
    tensor = _Tensor.from_address(address)
    dtype = _DTYPES.get((tensor.type_code, tensor.type_bits))
    if dtype is None or tensor.type_lanes != 1:
        fact = (tensor.type_code, tensor.type_bits, tensor.type_lanes)
        raise Unsupported("a tensor of the DLPack type (code %d, %d bits, %d lanes) cannot be returned" % fact)
    item_bytes = tensor.type_bits // 8
    if not 0 <= tensor.dimensions <= _DIMENSIONS_MAX:
        raise Unsupported("a tensor with %d dimensions cannot be returned" % tensor.dimensions)
    dimensions = range(tensor.dimensions)
    shape = [tensor.shape[at] for at in dimensions]
    if any([length < 0 for length in shape]):
        raise Unsupported("a tensor with a negative dimension cannot be returned")
    if tensor.strides:
        # As an address is computed from it: CuPy divides negative ones as if they had no sign, and writes 2**62 - 1 for
        # -1 of four bytes (https://github.com/cupy/cupy/issues/10172).
        strides = [c_int64(tensor.strides[at] * item_bytes).value for at in dimensions]
    else:
        strides = _dense_strides(shape, item_bytes)
    return Strided(dtype, item_bytes, shape, strides, (tensor.data or 0) + tensor.byte_offset)


def _dense_strides(shape: Sequence[int], item_bytes: int) -> list[int]:
    strides = [item_bytes] * len(shape)
    for at in range(len(shape) - 1, 0, -1):
        strides[at - 1] = strides[at] * shape[at]
    return strides
