"""What a program's process is made with, and where its things lie.

Theory of operation (executor/sandbox/namespaces.h). For each program the zygote calls `new_pid_namespace`, so that
its next child is pid 1 of a fresh pid namespace; starts kcoral-init as that child; forks the runtime, which is pid 2;
and calls `own_pid_namespace`, so that later children are ordinary ones. The runtime calls `enter_program` before it
reads anything of the program: its own mounts, limits, no capabilities, the seccomp filter.

`SandboxNamespaces` does this through libkcoral_sandbox.so. Anything with the same methods can stand in for it in a
test.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p, create_string_buffer
from os import O_CLOEXEC, O_RDONLY, posix_spawn
from os import open as open_fd
from typing import Any, Protocol

_ERROR_BYTES = 512


class Places:
    """Where a program's things lie, as it sees them."""

    def __init__(self, work: str, private: str, temporary: str, importable: str) -> None:
        self.work = work  # the request's own directory
        self.temporary = temporary
        self.private = private
        self.home = private + "/home"
        self.modules = private + "/modules"  # sources of uploaded modules
        self.libraries = private + "/libraries"
        self.importable = importable  # holds the package `kcoral` that programs import


class Refused(Exception):
    """The kernel did not give us a namespace; the message says which and why."""


class Namespaces(Protocol):
    def new_pid_namespace(self) -> None:
        """The next child is pid 1 of a fresh pid namespace, later ones live in it. Raises Refused."""

    def own_pid_namespace(self) -> None:
        """Later children live in the caller's own pid namespace. Raises Refused."""

    def start_init(self) -> int:
        """Starts kcoral-init; its process id as the caller sees it. Raises OSError."""

    def enter_program(self) -> None:
        """Turns the calling process into one that may run a program. Raises Refused."""


class _Limits(ctypes.Structure):
    """struct kcoral_program_limits"""

    _fields_ = [
        ("work_bytes", c_uint64),
        ("tmp_bytes", c_uint64),
        ("shm_bytes", c_uint64),
        ("private_bytes", c_uint64),
        ("file_size_bytes", c_uint64),
        ("open_files", c_uint64),
        ("processes", c_uint64),
        ("cpu_seconds", c_uint64),
    ]


class SandboxNamespaces:
    """The real ones. Single-threaded, as the library is."""

    def __init__(self, library: str, init: str, limits: dict[str, int], seccomp_filter: bytes) -> None:
        """Requires: called by the zygote, in the pid namespace to which `own_pid_namespace` returns."""
        self._limits = _Limits(**limits)
        self._filter = create_string_buffer(seccomp_filter, len(seccomp_filter))
        self._filter_bytes = len(seccomp_filter)
        self._init = init
        self._own_pid_namespace = open_fd("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC)
        functions = ctypes.CDLL(library)
        self._new = functions.kcoral_new_pid_namespace
        self._new.argtypes = [c_int, c_char_p, c_size_t]
        self._own = functions.kcoral_own_pid_namespace
        self._own.argtypes = [c_int, c_char_p, c_size_t]
        self._enter = functions.kcoral_enter_program
        self._enter.argtypes = [c_void_p, c_void_p, c_size_t, c_char_p, c_size_t]

    def new_pid_namespace(self) -> None:
        _call(self._new, self._own_pid_namespace)

    def own_pid_namespace(self) -> None:
        _call(self._own, self._own_pid_namespace)

    def start_init(self) -> int:
        return posix_spawn(self._init, [self._init], {})

    def enter_program(self) -> None:
        _call(self._enter, byref(self._limits), self._filter, self._filter_bytes)


def _call(function: Any, *arguments: Any) -> None:
    error = create_string_buffer(_ERROR_BYTES)
    if function(*arguments, error, _ERROR_BYTES) != 0:
        raise Refused(error.value.decode("utf-8", "replace"))
