"""From one program to the next in the same process, where the operator chose that (`--max-requests-per-worker`).

Theory of operation. What the next program would notice of the one before is put back to what it was before the first:
files, environment, working directory, uploaded modules, `__main__`, builtins, streams, hooks, signals, seeds. What
cannot be put back (a thread, a child, a descriptor or an ipc object left behind, other limits, signals that C code
handles, much memory) makes the process unfit: it says so, and is replaced.

It happens between any two programs, so what takes long is done only after a cheap look that something has changed:
which pid was the last one given in this namespace, the signals of /proc/self/status, the size of a directory (tmpfs
counts entries in it).

This is tidying up, not isolation. Modules that a program imported stay imported, with whatever it changed in them
(warning filters, logging handlers, the decimal context, an event loop, a start method), and so do fork and audit hooks
and what prctl, extended attributes and POSIX message queues keep, which cannot be taken back or found. A program that wants to reach its successors can. A fresh process for each program is the
default for that reason.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
from _locale import LC_ALL, setlocale
from _signal import (
    ITIMER_PROF,
    ITIMER_REAL,
    ITIMER_VIRTUAL,
    SIG_BLOCK,
    SIG_DFL,
    SIG_IGN,
    SIGCHLD,
    SIGINT,
    default_int_handler,
    pthread_sigmask,
    set_wakeup_fd,
    setitimer,
    valid_signals,
)
from _signal import signal as set_signal
from _thread import stack_size
from os import (
    O_CLOEXEC,
    O_DIRECTORY,
    O_NOFOLLOW,
    O_RDONLY,
    chdir,
    chmod,
    fstat,
    listdir,
    lstat,
    mkdir,
    pread,
    putenv,
    readlink,
    rmdir,
    scandir,
    unlink,
)
from os import close as close_fd
from os import open as open_fd
from resource import getrlimit
from stat import S_ISCHR
from time import sleep, tzset
from typing import Any, Optional

from environment import (
    Streams,
    forget_temporary_directory,
    fresh_main,
    own_directories,
    reset_signals,
    seed_generators,
    signal_handlers,
)
from errors import message_of, name_of, sources
from kernel import (
    clear_environment,
    environment_strings,
    ipc_object_count,
    reset_thread,
    set_status_flags,
    status_flags,
)
from namespaces import Places

_DIRECTORY = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
_SHARED_MEMORY = "/dev/shm"
_FILE_BYTES_MAX = 8192  # of the files of /proc that are read here
_SIGNAL_LINES = (b"SigPnd", b"ShdPnd", b"SigIgn", b"SigCgt")
_MEMORY_LINES = (b"RssAnon", b"RssShmem", b"VmSwap")
_SIGNALS_OF_LIBC = 3 << 31  # 32 and 33
# Restored in place, since others hold these very objects.
_LISTS = ("path", "argv", "orig_argv", "warnoptions")
# Those of packages stay, as the packages do that made them.
_HOOKS = ("meta_path", "path_hooks")
_KEPT = (*_LISTS, *_HOOKS, "modules", "path_importer_cache")
_ENDING_WAITS = 20
_SHOWN_MAX = 8
_ENDING_PAUSE_SECONDS = 0.001
_LIMIT_COUNT = 16  # RLIM_NLIMITS of Linux
_get_digits_max = getattr(sys, "get_int_max_str_digits", None)  # not in 3.10.0 to 3.10.6
_set_digits_max = getattr(sys, "set_int_max_str_digits", None)
_modules = sys.modules


class Unfit(Exception):
    """This process cannot serve another program; the message says why."""


class FirstState:
    """How the process was before its first program."""

    def __init__(self, places: Places, channel_fd: int, memory_bytes_max: int) -> None:
        """`memory_bytes_max`: what one program may hold, whatever was held before it; 0 for any amount."""
        self._places = places
        self._memory_bytes_max = memory_bytes_max
        self._channel_fd = channel_fd
        self._modules = dict(_modules)
        self._builtins = dict(vars(builtins))
        self._environ = os.environ
        self._environ_members = dict(vars(os.environ))
        self._environment = dict(vars(os.environ)["_data"])
        self._environment_strings = environment_strings()  # not the same: preloads may have called setenv
        self._sys = {name: value for name, value in vars(sys).items() if name not in _KEPT}
        self._lists = {name: list(getattr(sys, name)) for name in _LISTS}
        self._hooks = {name: list(getattr(sys, name)) for name in _HOOKS}
        self._flags = {fd: status_flags(fd) for fd in (0, 1, 2, channel_fd)}
        self._locale = setlocale(LC_ALL, None)
        self._own = own_directories(places)
        self._emptied = (places.work, places.temporary, _SHARED_MEMORY, *self._own)
        self._directories = {path: _facts_of_directory(path) for path in (*self._emptied, places.private)}
        # Not every file system counts entries: those in the second of these are empty.
        self._sizes_tell = self._directories[places.private][_SIZE] > self._directories[self._own[0]][_SIZE]
        self._signals = _signals_of(_status())
        self._last_pid = _last_pid()
        self._threads = frozenset(listdir("/proc/self/task"))  # more than one where the CUDA driver has its own
        self._descriptors = _descriptors()
        self._limits = _limits()
        self._priority: Optional[int] = None
        self._collects = (gc.get_threshold(), gc.get_debug(), list(gc.callbacks))
        self._switch_interval = sys.getswitchinterval()
        self._digits_max = _get_digits_max() if _get_digits_max is not None else 0

    def note_priority(self) -> None:
        """That of a program, once there is one: a process that waits for its first has a lower one."""
        if self._priority is None:
            self._priority = os.getpriority(os.PRIO_PROCESS, 0)

    def started_others(self) -> bool:
        """Whether the program may have started a thread or a process. A cheap look: they need not be there any more."""
        try:
            return _last_pid() != self._last_pid
        except OSError:
            return True

    def restore(self) -> Streams:
        """The streams of the next program. Raises Unfit."""
        try:
            # First what the program made goes, since finalisers are its code; and the descriptors of objects that nobody
            # holds any more are none that were left behind.
            self._restore_modules()
            gc.collect()
            self._check_what_runs()
            status = _status()
            self._check_memory(status)
            self._restore_signals(status)
            self._restore_interpreter()
            self._restore_environment()
            streams = Streams()
            self._check_what_is_held()
            self._empty_directories()
            seed_generators()
            self._seed_random()
            self._check_what_runs()
            return streams
        except OSError as error:
            raise Unfit("%s: %s" % (name_of(error), message_of(error))) from None

    def _check_what_runs(self) -> None:
        last_pid = _last_pid()
        if last_pid == self._last_pid:
            return  # no thread and no process was started
        self._last_pid = last_pid
        # A thread that was joined ends a moment later.
        for _ in range(_ENDING_WAITS):
            has_left_threads = not self._threads.issuperset(listdir("/proc/self/task"))
            if not has_left_threads:
                break
            sleep(_ENDING_PAUSE_SECONDS)
        if has_left_threads:
            raise Unfit("a thread was left behind")
        processes = [name for name in listdir("/proc") if name.isdigit()]
        if len(processes) > 2:  # kcoral-init and this one
            raise Unfit("a process was left behind")

    def _check_memory(self, status: dict[bytes, bytes]) -> None:
        """Half of what a program may hold is left for the next one at least."""
        held = sum([int(status[name].split()[0]) for name in _MEMORY_LINES]) * 1024
        if self._memory_bytes_max and held > self._memory_bytes_max // 2:
            raise Unfit("%d bytes of memory are still held" % held)

    def _check_what_is_held(self) -> None:
        descriptors = _descriptors()
        if descriptors != self._descriptors:
            changed = sorted({fd for fd, _ in descriptors.items() ^ self._descriptors.items()}, key=int)
            raise Unfit("descriptors were left behind, closed or replaced: " + ", ".join(changed[:_SHOWN_MAX]))
        if _limits() != self._limits or os.getpriority(os.PRIO_PROCESS, 0) != self._priority:
            raise Unfit("limits or the priority were changed")
        if ipc_object_count() > 0:
            raise Unfit("an ipc object was left behind")
        if _timers_are_left():
            raise Unfit("a timer was left behind")

    def _restore_signals(self, status: dict[bytes, bytes]) -> None:
        set_wakeup_fd(-1)
        for timer in (ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF):
            setitimer(timer, 0)
        # Always: whether C code handles these as well, or with which flags, is not to be seen.
        set_signal(SIGINT, default_int_handler)
        set_signal(SIGCHLD, SIG_DFL)
        if _signals_of(status) == self._signals:
            return
        for number in valid_signals():
            try:
                set_signal(number, SIG_IGN)  # drops what is pending
            except (OSError, ValueError):
                pass
        reset_signals(pthread_sigmask(SIG_BLOCK, ()))
        if _signals_of(_status()) != self._signals:
            raise Unfit("signals were left behind, or handled by what is not Python")

    def _restore_interpreter(self) -> None:
        vars(builtins).clear()
        vars(builtins).update(self._builtins)
        for name in [name for name in vars(sys) if name not in self._sys and name not in _KEPT]:
            del vars(sys)[name]
        vars(sys).update(self._sys)
        for name, values in self._lists.items():
            getattr(sys, name)[:] = values
        sys.setswitchinterval(self._switch_interval)
        sys.set_asyncgen_hooks(None, None)
        if _set_digits_max is not None:
            _set_digits_max(self._digits_max)
        stack_size(0)
        reset_thread()
        setlocale(LC_ALL, self._locale)
        gc.set_threshold(*self._collects[0])
        gc.set_debug(self._collects[1])
        gc.callbacks[:] = self._collects[2]
        for name, hooks in self._hooks.items():
            _put_back(getattr(sys, name), hooks)
        for fd, flags in self._flags.items():
            set_status_flags(fd, flags)
        sources.forget()

    def _restore_environment(self) -> None:
        os.environ = self._environ
        vars(os.environ).clear()
        vars(os.environ).update(self._environ_members)
        data = self._environ_members["_data"]
        data.clear()
        data.update(self._environment)
        if environment_strings() != self._environment_strings:  # C code need not go through os.environ
            clear_environment()
            for string in self._environment_strings:
                name, _, value = string.partition(b"=")
                putenv(name, value)
        os.umask(0o022)
        tzset()
        forget_temporary_directory()
        os.set_inheritable(self._channel_fd, False)

    def _restore_modules(self) -> None:
        for name, module in [*_modules.items()]:
            if name not in self._modules and self._is_of_the_program(name, module):
                del _modules[name]
        _modules.update(self._modules)
        fresh_main()
        zipimport = _modules.get("zipimport")
        for cache in (sys.path_importer_cache, getattr(zipimport, "_zip_directory_cache", {})):
            for path in [*cache]:
                if type(path) is str and path.startswith(self._tops()):
                    del cache[path]
        linecache = _modules.get("linecache")
        if linecache is not None:
            linecache.clearcache()

    def _is_of_the_program(self, name: str, module: Any) -> bool:
        """What it uploaded, wrote or made up, unlike what it imported from the installed packages."""
        # Those of C code below a package have none either.
        if getattr(module, "__spec__", None) is None and "." not in name:
            return True
        places = [getattr(module, "__file__", None)]
        try:
            places.extend(getattr(module, "__path__", ()))  # of a package without a file
        except TypeError:
            return True
        return any([type(place) is str and place.startswith(self._tops()) for place in places])

    def _seed_random(self) -> None:
        """As it does by itself in every fork."""
        random = _modules.get("random")
        if random is not None:
            random.seed()

    def _tops(self) -> tuple[str, ...]:
        return (self._places.work, self._places.temporary, _SHARED_MEMORY, self._places.private)

    def _empty_directories(self) -> None:
        chdir("/")
        private = self._places.private
        is_private_as_it_was = self._sizes_tell and _facts_of_directory(private) == self._directories[private]
        if not is_private_as_it_was or not self._has_own_directories():
            self._make_own_directories()
        for path in self._emptied:
            first = self._directories[path]
            if not self._sizes_tell or _facts_of_directory(path) != first:
                chmod(path, first[_MODE])
                _empty(path)
        chdir(self._places.work)

    def _has_own_directories(self) -> bool:
        """Those that were there at first, whatever is in them or became of their modes."""
        for path in self._own:
            try:
                inode = _facts_of_directory(path)[_INODE]
            except FileNotFoundError:
                return False
            if inode != self._directories[path][_INODE]:
                return False
        return True

    def _make_own_directories(self) -> None:
        private = self._places.private
        chmod(private, self._directories[private][_MODE])
        _empty(private)
        for path in self._own:
            mkdir(path, 0o700)
        for path in (*self._own, private):
            self._directories[path] = _facts_of_directory(path)


def _descriptors() -> dict[str, tuple[int, int]]:
    """The open ones and what they are of, the one that lists them aside, and those of the CUDA driver."""
    found = {}
    for name in listdir("/proc/self/fd"):
        try:
            facts = fstat(int(name))
            if S_ISCHR(facts.st_mode) and readlink("/proc/self/fd/" + name).startswith("/dev/nvidia"):
                continue
            found[name] = (facts.st_dev, facts.st_ino)
        except OSError:
            pass
    return found


def _limits() -> list[Any]:
    limits: list[Any] = [getrlimit(number) for number in range(_LIMIT_COUNT)]
    return [*limits, os.sched_getscheduler(0), os.sched_getaffinity(0)]


def _put_back(hooks: list[Any], first: list[Any]) -> None:
    """Whatever of `first` is missing, before what came later. By identity: comparing may call the program's code."""
    present = [id(each) for each in hooks]
    if any([id(each) not in present for each in first]):
        known = [id(each) for each in first]
        hooks[:] = [*first, *[each for each in hooks if id(each) not in known]]


def _timers_are_left() -> bool:
    """Of timer_create; see proc_pid_timers(5)."""
    try:
        return _read("/proc/self/timers") != b""
    except FileNotFoundError:  # a kernel that does not tell
        return False


_INODE, _MODE, _SIZE = 0, 1, 2  # of what follows


def _facts_of_directory(path: str) -> tuple[int, int, int]:
    """Its inode, permissions and size."""
    facts = lstat(path)
    return facts.st_ino, facts.st_mode & 0o7777, facts.st_size


def _read(path: str) -> bytes:
    fd = open_fd(path, O_RDONLY | O_CLOEXEC)
    content = pread(fd, _FILE_BYTES_MAX, 0)
    close_fd(fd)
    return content


def _last_pid() -> bytes:
    """The last pid that was given to a thread or process of this pid namespace; see proc_loadavg(5)."""
    return _read("/proc/loadavg").rsplit(b" ", 1)[-1]


def _status() -> dict[bytes, bytes]:
    """The lines of /proc/self/status by their names; see proc_pid_status(5)."""
    lines = [line.partition(b":") for line in _read("/proc/self/status").split(b"\n")]
    return {name: value for name, _, value in lines}


def _signals_of(status: dict[bytes, bytes]) -> list[int]:
    """Which signals are pending, ignored and caught, without those that libc keeps for itself (it catches them once
    there was a thread); and how Python handles each."""
    return [*[int(status[name], 16) & ~_SIGNALS_OF_LIBC for name in _SIGNAL_LINES], *signal_handlers()]


def _empty(path: str) -> None:
    """Removes all that is in a directory, however deep it is. After an error descriptors are left open: this process is
    unfit then, and ends."""
    top = open_fd(path, _DIRECTORY)
    levels: list[tuple[int, str, list[str]]] = [(top, "", _remove_files(top))]
    while levels:
        directory, name, below = levels[-1]
        if below:
            child = below.pop()
            chmod(child, 0o700, dir_fd=directory)
            opened = open_fd(child, _DIRECTORY, dir_fd=directory)
            levels.append((opened, child, _remove_files(opened)))
            continue
        levels.pop()
        close_fd(directory)
        if levels:
            rmdir(name, dir_fd=levels[-1][0])


def _remove_files(directory: int) -> list[str]:
    """Removes all but the directories that are not empty, and names those."""
    below: list[str] = []
    with scandir(directory) as listing:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
    for name, is_directory in entries:
        if not is_directory:
            unlink(name, dir_fd=directory)
            continue
        try:
            rmdir(name, dir_fd=directory)
        except OSError:
            below.append(name)
    return below
