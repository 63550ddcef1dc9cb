"""Uploaded shared objects, loaded through TVM FFI where the server's Python has it.

Theory of operation. The content is written to a private file, since a loader wants a path, and loaded by
`tvm_ffi.load_module`. TVM FFI is found when the first library comes: importing it is the program's own need, so it
runs as the program's code does.
"""

from __future__ import annotations

from typing import Any

from boundary import Boundary
from errors import InstructionFailed, ending_message_of, message_of
from files import write_new_file

_MISSING = (
    "library uploads need TVM FFI in the server's Python, and it cannot be imported: "
    "install it there with `pip install apache-tvm-ffi`"
)


class Libraries:
    """The libraries of one program."""

    def __init__(self, directory: str, boundary: Boundary) -> None:
        self._directory = directory
        self._boundary = boundary
        self._count = 0

    def load(self, content: memoryview) -> Any:
        """The loaded library. Raises InstructionFailed."""
        tvm_ffi, raised = self._boundary.call(_import_tvm_ffi)
        if raised is not None:
            raise InstructionFailed("unavailable", _MISSING, raised)
        path = "%s/%d.so" % (self._directory, self._count)
        self._count += 1
        try:
            write_new_file(path, content, 0o700)
        except OSError as error:
            raise InstructionFailed("runtime", "the library cannot be stored: " + message_of(error)) from None
        library, raised = self._boundary.call(_load, tvm_ffi, path)
        if raised is not None:
            raise InstructionFailed("compile", "the library cannot be loaded: " + ending_message_of(raised), raised)
        return library

    def look_up(self, library: Any, name: str, id: str) -> Any:
        """The exported function of that name. Raises InstructionFailed."""
        function, raised = self._boundary.call(_function_of, library, name)
        if raised is not None or function is None:
            raise InstructionFailed("compile", "the library %r exports no function %r" % (id, name), raised)
        return function


def _import_tvm_ffi() -> Any:
    import tvm_ffi

    return tvm_ffi


def _load(tvm_ffi: Any, path: str) -> Any:
    return tvm_ffi.load_module(path)


def _function_of(library: Any, name: str) -> Any:
    return library.get_function(name)
