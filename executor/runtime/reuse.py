"""From one program to the next in the same process, where the operator chose that (`--max-requests-per-worker`).

Theory of operation. What the next program would notice of the one before is put back to what it was before the first:
files, environment, working directory, uploaded modules, `__main__`, builtins, streams, hooks, signals, seeds. What cannot
be put back (a thread, a child, a descriptor or an ipc object left behind, other limits) makes the process unfit: it says
so, and is replaced.

This is tidying up, not isolation. Modules that a program imported stay imported, with whatever it changed in them, and
a program that wants to reach its successors can. A fresh process for each program is the default for that reason.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
from _locale import LC_ALL, setlocale
from _signal import ITIMER_PROF, ITIMER_REAL, ITIMER_VIRTUAL, SIGINT, default_int_handler, setitimer
from _signal import signal as set_signal
from os import O_CLOEXEC, O_DIRECTORY, O_NOFOLLOW, O_RDONLY, chdir, chmod, fstat, listdir, mkdir, rmdir, scandir, unlink
from os import close as close_fd
from os import open as open_fd
from os import stat as stat_of
from resource import getrlimit
from typing import Any, Iterator

from environment import fresh_main, own_directories, reset_signals, seed_generators
from errors import message_of, name_of, sources
from namespaces import Places

_DIRECTORY = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
_SHARED_MEMORY = "/dev/shm"
_IPC_LISTS = ("/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg")
_HOOKS = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__", "excepthook", "displayhook",
          "unraisablehook", "breakpointhook", "__excepthook__", "dont_write_bytecode")  # fmt: skip
_LISTS = ("path", "argv", "orig_argv", "meta_path", "path_hooks", "warnoptions")
_LAST = ("last_type", "last_value", "last_traceback", "last_exc")
_LIMIT_COUNT = 16  # RLIM_NLIMITS of Linux
_modules = sys.modules


class Unfit(Exception):
    """This process cannot serve another program; the message says why."""


class FirstState:
    """How the process was before its first program."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._modules = dict(_modules)
        self._builtins = dict(vars(builtins))
        self._environment = dict(os.environ)
        self._hooks = {name: getattr(sys, name) for name in _HOOKS}
        self._lists = {name: list(getattr(sys, name)) for name in _LISTS}
        self._locale = setlocale(LC_ALL, None)
        self._modes = [(path, stat_of(path).st_mode & 0o7777) for path in self._tops()]
        self._descriptors = _descriptors()
        self._limits = _limits()
        self._collects = (gc.get_threshold(), gc.get_debug())

    def restore(self) -> None:
        """Raises Unfit."""
        try:
            self._check_what_runs()
            self._restore_interpreter()
            gc.collect()  # descriptors of objects that nobody holds any more are none that were left behind
            self._check_what_is_held()
            self._empty_directories()
            seed_generators()
        except OSError as error:
            raise Unfit("%s: %s" % (name_of(error), message_of(error))) from None

    def _check_what_runs(self) -> None:
        if len(listdir("/proc/self/task")) != 1:
            raise Unfit("a thread was left behind")
        processes = [name for name in listdir("/proc") if name.isdigit()]
        if len(processes) > 2:  # kcoral-init and this one
            raise Unfit("a process was left behind")

    def _check_what_is_held(self) -> None:
        if _descriptors() != self._descriptors:
            raise Unfit("descriptors were left behind, closed or replaced")
        if _limits() != self._limits:
            raise Unfit("limits or the priority were changed")
        for path in _IPC_LISTS:
            if _line_count(path) > 1:  # its heading
                raise Unfit("an ipc object was left behind")

    def _restore_interpreter(self) -> None:
        for timer in (ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF):
            setitimer(timer, 0)
        reset_signals()
        set_signal(SIGINT, default_int_handler)
        vars(builtins).clear()
        vars(builtins).update(self._builtins)
        for name, value in self._hooks.items():
            setattr(sys, name, value)
        for name, values in self._lists.items():
            getattr(sys, name)[:] = values
        for name in _LAST:
            vars(sys).pop(name, None)
        self._restore_modules()
        sources.forget()
        for name in [name for name in os.environ if name not in self._environment]:
            del os.environ[name]
        os.environ.update(self._environment)
        os.umask(0o022)
        setlocale(LC_ALL, self._locale)
        gc.set_threshold(*self._collects[0])
        gc.set_debug(self._collects[1])

    def _restore_modules(self) -> None:
        for name, module in [*_modules.items()]:
            if name not in self._modules and self._is_of_the_program(module):
                del _modules[name]
        _modules.update(self._modules)
        fresh_main()
        for path in [*sys.path_importer_cache]:
            if type(path) is str and any([path.startswith(top) for top in self._tops()]):
                del sys.path_importer_cache[path]
        linecache = _modules.get("linecache")
        if linecache is not None:
            linecache.clearcache()

    def _is_of_the_program(self, module: Any) -> bool:
        """What it uploaded or wrote, unlike what it imported from the installed packages."""
        file = getattr(module, "__file__", None)
        return type(file) is not str or any([file.startswith(top) for top in self._tops()])

    def _tops(self) -> tuple[str, ...]:
        return (self._places.work, self._places.temporary, _SHARED_MEMORY, self._places.private)

    def _empty_directories(self) -> None:
        chdir("/")
        for path, mode in self._modes:
            _empty(path)
            chmod(path, mode)
        for path in own_directories(self._places):
            mkdir(path, 0o700)
        chdir(self._places.work)


def _descriptors() -> dict[str, tuple[int, int]]:
    """The open ones and what they are of, the one that lists them aside."""
    found = {}
    for name in listdir("/proc/self/fd"):
        try:
            facts = fstat(int(name))
            found[name] = (facts.st_dev, facts.st_ino)
        except OSError:
            pass
    return found


def _limits() -> list[Any]:
    return [*[getrlimit(number) for number in range(_LIMIT_COUNT)], os.getpriority(os.PRIO_PROCESS, 0),
            os.sched_getaffinity(0)]  # fmt: skip


def _line_count(path: str) -> int:
    try:
        with open(path, "rb") as file:
            return file.read().count(b"\n")
    except FileNotFoundError:  # a kernel without them
        return 0


def _empty(path: str) -> None:
    """Removes all that is in a directory, however deep it is."""
    levels: list[tuple[int, str]] = [(open_fd(path, _DIRECTORY), "")]
    try:
        while levels:
            directory, name = levels[-1]
            below = _remove_files(directory)
            if below is not None:
                chmod(below, 0o700, dir_fd=directory)
                levels.append((open_fd(below, _DIRECTORY, dir_fd=directory), below))
                continue
            levels.pop()
            close_fd(directory)
            if levels:
                rmdir(name, dir_fd=levels[-1][0])
    finally:
        for directory, _ in levels:
            close_fd(directory)


def _remove_files(directory: int) -> str | None:
    """Removes what can be removed at once; the name of a directory that is not empty, if there is one."""
    while True:
        removed = 0
        for name, is_directory in _entries(directory):
            try:
                rmdir(name, dir_fd=directory) if is_directory else unlink(name, dir_fd=directory)
                removed += 1
            except OSError:
                if not is_directory:
                    raise
                return name
        if removed == 0:
            return None


def _entries(directory: int) -> Iterator[tuple[str, bool]]:
    with scandir(directory) as listing:
        return iter([(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing])
