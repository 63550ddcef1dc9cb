"""Uploaded source: Python that is executed, CUDA C that is handed on.

Theory of operation. An uploaded Python module is a real one: its source lies in a file of its name, in a directory on
`sys.path`; it is compiled with that file's name and executed in a module that `sys.modules` knows. So tracebacks and
`inspect.getsource` show its lines, its classes pickle, and a spawned child of `multiprocessing` imports it. Its name
is made from the upload's id with a prefix that no other module has.

CUDA source is text; a name selected from it is a descriptor for a compiler of the program's to consume (CudaFunction
in `kcoral.builtins`).
"""

from __future__ import annotations

import builtins
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any

from boundary import Boundary
from errors import InstructionFailed, ending_message_of, message_of, sources
from files import write_new_file
from kcoral.builtins import CompileFailed, Unavailable

_PREFIX = "kcoral_upload_"
_NAME_CHARACTERS_MAX = 100  # file names have at most 255 bytes
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_loaded_modules = sys.modules
_path_caches = sys.path_importer_cache


class PreparedModule:
    """One that is stored and compiled, and not executed yet."""

    __slots__ = ("module", "code")

    def __init__(self, module: ModuleType, code: Any) -> None:
        self.module = module
        self.code = code


class PythonModules:
    """The Python modules of one program."""

    def __init__(self, directory: str, boundary: Boundary) -> None:
        self._directory = directory
        self._boundary = boundary
        self._names: set[str] = set()

    def prepare(self, id: str, source: str) -> PreparedModule:
        """Does what runs none of its code. Raises InstructionFailed."""
        name = self._name_for(id)
        path = self._directory + "/" + name + ".py"
        try:
            write_new_file(path, memoryview(source.encode("utf-8")), 0o600)
        except OSError as error:
            raise InstructionFailed("runtime", "the source cannot be stored: " + message_of(error)) from None
        sources.remember(path, source)
        module = ModuleType(name)
        spec = ModuleSpec(name, SourceFileLoader(name, path), origin=path)
        spec.has_location = True
        # Its builtins are the program's: `exec` would give it those of whoever calls.
        module.__dict__.update(
            __builtins__=builtins.__dict__, __file__=path, __spec__=spec, __loader__=spec.loader, __package__=""
        )
        # It is a new file in a directory that the program may have looked into before.
        self.forget_directories(self._directory)
        code, raised = self._boundary.call(_compile, source, path)
        if raised is not None:
            raise _loading_failed(raised)
        return PreparedModule(module, code)

    def execute(self, prepared: PreparedModule) -> ModuleType:
        """The executed module. Raises InstructionFailed."""
        module = prepared.module
        name = module.__name__
        _loaded_modules[name] = module
        _, raised = self._boundary.call(_execute, prepared.code, module.__dict__)
        if raised is not None:
            _loaded_modules.pop(name, None)
            raise _loading_failed(raised)
        return module

    def forget_directories(self, root: str) -> None:
        """Lets the import system look again at a directory and those below it: it remembers what it saw, and notices a
        change only once the clock of the file system has moved on."""
        for path in [*_path_caches]:
            if type(path) is str and (path == root or path == "" or path.startswith(root + "/")):
                _path_caches.pop(path, None)

    def look_up(self, module: ModuleType, name: str, id: str) -> Any:
        """The object of that name in an uploaded module. Raises InstructionFailed."""
        if name in module.__dict__:
            return module.__dict__[name]
        if "__getattr__" in module.__dict__:  # PEP 562
            value, raised = self._boundary.call(module.__dict__["__getattr__"], name)
            if raised is None:
                return value
            if not issubclass(type(raised), AttributeError):
                raise _loading_failed(raised)
        raise InstructionFailed("parse", "the module %r defines no name %r" % (id, name))

    def _name_for(self, id: str) -> str:
        safe = _PREFIX + "".join([each if each in _SAFE else "_" for each in id[:_NAME_CHARACTERS_MAX]])
        name, number = safe, 1
        while name in self._names:
            number += 1
            name = "%s_%d" % (safe, number)
        self._names.add(name)
        return name


def _compile(source: str, path: str) -> Any:
    # A byte order mark before the source is no part of it, as in a file that Python runs.
    return compile(source.removeprefix("\ufeff"), path, "exec", dont_inherit=True)


def _execute(code: Any, namespace: dict[str, Any]) -> None:
    exec(code, namespace)


def _loading_failed(raised: BaseException) -> InstructionFailed:
    failure = failure_of_builtin(raised)
    if failure is not None:
        return failure
    if issubclass(type(raised), Exception):
        return InstructionFailed("parse", message_of(raised), raised)
    return InstructionFailed("parse", ending_message_of(raised), raised)


def call_failed(raised: BaseException) -> InstructionFailed:
    """The error of a `run` whose function raised."""
    failure = failure_of_builtin(raised)
    if failure is not None:
        return failure
    kind = type(raised)
    if issubclass(kind, AssertionError):
        return InstructionFailed("correctness", message_of(raised), raised)
    if issubclass(kind, Exception):
        return InstructionFailed("runtime", message_of(raised), raised)
    return InstructionFailed("runtime", ending_message_of(raised), raised)


def failure_of_builtin(raised: BaseException) -> InstructionFailed | None:
    """What `kcoral.builtins` says about itself, whoever called it, and failures that are ours already."""
    kind = type(raised)
    if kind is InstructionFailed:
        return raised  # type: ignore[return-value]
    if issubclass(kind, Unavailable):
        return InstructionFailed("unavailable", message_of(raised), raised)
    if issubclass(kind, CompileFailed):
        return InstructionFailed("compile", message_of(raised), raised)
    return None
