"""Uploaded shared objects, loaded through TVM FFI where the server's Python has it.

Theory of operation. The content is written to a private file, since a loader wants a path, and loaded by
`tvm_ffi.load_module`. TVM FFI is found when the first library comes: importing it is the program's own need, so it
runs as the program's code does.

A function of a library holds no reference to the library in every version of TVM FFI, and calling one whose library was
unloaded ends the process. So what was loaded stays until the program's end.

The dynamic loader knows a library by its path, also when the file there is another one by now. So no two libraries of
one process have the same path, in processes that serve several programs neither.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from boundary import Boundary
from errors import InstructionFailed, ending_message_of, message_of
from files import write_new_file

_MISSING = (
    "library uploads need TVM FFI in the server's Python, and it cannot be imported: "
    "install it there with `pip install apache-tvm-ffi`"
)
_ELF_64 = b"\x7fELF\x02\x01"  # little-endian
_FILE_HEADER = Struct("<32xQ14xHH")  # of it: the program headers' offset, size, count
_PROGRAM_HEADER = Struct("<I4xQ16xQ")  # of it: type, offset, size in the file
_LOADED_SEGMENT = 1  # PT_LOAD


class Libraries:
    """The libraries of one program."""

    _written = 0  # by this process

    def __init__(self, directory: str, boundary: Boundary) -> None:
        self._directory = directory
        self._boundary = boundary
        self._loaded: list[Any] = []

    def load(self, content: memoryview) -> Any:
        """The loaded library. Raises InstructionFailed."""
        tvm_ffi, raised = self._boundary.call(_import_tvm_ffi)
        if raised is not None:
            raise InstructionFailed("unavailable", _MISSING, raised)
        if _is_cut(content):
            raise InstructionFailed("compile", "the library cannot be loaded: its end is missing")
        path = "%s/%d.so" % (self._directory, Libraries._written)
        Libraries._written += 1
        try:
            write_new_file(path, content, 0o700)
        except OSError as error:
            raise InstructionFailed("runtime", "the library cannot be stored: " + message_of(error)) from None
        library, raised = self._boundary.call(_load, tvm_ffi, path)
        if raised is not None:
            raise InstructionFailed("compile", "the library cannot be loaded: " + ending_message_of(raised), raised)
        self._loaded.append(library)
        return library

    def look_up(self, library: Any, name: str, id: str) -> Any:
        """The exported function of that name. Raises InstructionFailed."""
        function, raised = self._boundary.call(_function_of, library, name)
        if raised is not None or function is None:
            raise InstructionFailed("compile", "the library %r exports no function %r" % (id, name), raised)
        return function


def _is_cut(content: memoryview) -> bool:
    """Whether a part to be mapped is missing: the dynamic loader maps it all the same, and the process ends by SIGBUS.
    What else is wrong with a file the loader says itself."""
    if bytes(content[: len(_ELF_64)]) != _ELF_64 or content.nbytes < _FILE_HEADER.size:
        return False
    at, header_bytes, count = _FILE_HEADER.unpack_from(content)
    if header_bytes < _PROGRAM_HEADER.size or at + count * header_bytes > content.nbytes:
        return False
    for index in range(count):
        kind, offset, size_bytes = _PROGRAM_HEADER.unpack_from(content, at + index * header_bytes)
        if kind == _LOADED_SEGMENT and offset + size_bytes > content.nbytes:
            return True
    return False


def _import_tvm_ffi() -> Any:
    import tvm_ffi

    return tvm_ffi


def _load(tvm_ffi: Any, path: str) -> Any:
    return tvm_ffi.load_module(path)


def _function_of(library: Any, name: str) -> Any:
    return library.get_function(name)
