"""Makes a forked runtime look like a script that was started fresh.

Theory of operation. Whatever can be set up once is set up in the zygote, after its preloads (which may have changed
any of it): environment variables, umask, `sys.path`, `sys.argv`, `__main__`, time zone, signal handlers, text
streams. A fork inherits it and cannot pass its changes on. What is left for the fork, and for the time between the
request and its answer, is little: descriptors, private directories, the devices that it may see. Random generators
are seeded by the zygote, anew after each fork, so that the next one starts with numbers of its own and does not wait
for them.

Output is unbuffered, as with `python -u`: what a program printed before it was killed has reached the pipe, and lines
of the program and of what it starts come in their true order.
"""

from __future__ import annotations

import builtins
import gc
import os
import sys
import time
from _signal import (
    SIG_DFL,
    SIG_IGN,
    SIG_SETMASK,
    SIGINT,
    SIGPIPE,
    SIGXFSZ,
    default_int_handler,
    getsignal,
    pthread_sigmask,
)
from _signal import signal as set_signal
from io import FileIO, TextIOWrapper
from os import O_CLOEXEC, O_RDONLY, dup2, mkdir
from os import open as open_fd
from resource import RLIMIT_NOFILE, getrlimit
from types import ModuleType
from typing import Any, Iterable, Mapping, Sequence

from kernel import buffer_c_output_by_lines, close_all_but, duplicate_from, flush_c_output
from namespaces import Places

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"

# Far from the numbers that programs count up from and from `close(3)` to `close(255)` of careful daemons.
_CHANNEL_FD = 1000
_SIGNAL_MAX = 64
_AHEAD_NICENESS = 10
# Python itself starts with these.
_environment = os.environ
_sys_members = vars(sys)
_members_of = vars
_START_HANDLERS = {SIGINT: default_int_handler, SIGPIPE: SIG_IGN, SIGXFSZ: SIG_IGN}


def program_environment(slot: Mapping[str, str], places: Places, visible_devices: str) -> dict[str, str]:
    """The environment of every program: the slot's (the executor's allow list and the operator's additions), and over
    it what is managed and cannot be overridden. `visible_devices`: as CUDA_VISIBLE_DEVICES names them."""
    environment = dict(slot)
    environment["KCORAL_DIR"] = places.work
    environment["HOME"] = places.home
    environment["TMPDIR"] = places.temporary
    environment[DEVICES_VARIABLE] = visible_devices
    # So that a Python which the program starts finds `kcoral.builtins`, too.
    python_path = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
    environment["PYTHONPATH"] = ":".join([*python_path, places.importable])
    return environment


def settle_zygote(environment: Mapping[str, str], places: Places) -> "Streams":
    """Sets up what every fork inherits, and returns its streams. Requires: the zygote itself uses none of it later."""
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    os.environ.update(environment)
    os.umask(0o022)
    time.tzset()
    own = (places.work, places.modules, places.importable)
    sys.path[:] = [*own, *[path for path in sys.path if path not in own]]
    sys.argv[:] = [""]
    sys.orig_argv[:] = [sys.executable]
    fresh_main()
    forget_temporary_directory()
    reset_signals(())
    set_signal(SIGINT, SIG_IGN)  # the terminal's Ctrl-C is the server's affair
    buffer_c_output_by_lines()
    seed_generators()
    return Streams()


def forget_temporary_directory() -> None:
    """It was chosen when somebody asked for it, before the program's own was there."""
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        vars(tempfile)["tempdir"] = None


def fresh_main() -> None:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main


class Streams:
    """The text streams that the program started with, for flushing them whatever it did to `sys.stdout`."""

    def __init__(self) -> None:
        # Objects over descriptor numbers: in each fork these are the program's own pipes.
        files: Any = (FileIO(1, "w", closefd=False), FileIO(2, "w", closefd=False))
        self._stdout = _text_stream(files[0], "strict")
        self._stderr = _text_stream(files[1], "backslashreplace")
        self._first = (("stdout", self._stdout, files[0]), ("stderr", self._stderr, files[1]))
        sys.stdin = sys.__stdin__ = TextIOWrapper(FileIO(0, "r", closefd=False), encoding="utf-8")
        sys.stdout = sys.__stdout__ = self._stdout
        sys.stderr = sys.__stderr__ = self._stderr

    def flush_if_unchanged(self) -> bool:
        """Flushes, where the program prints to what it printed to at first, as that was then: this keeps nothing back,
        and runs none of the program's code. False where something is different, and `flush` has to be called."""
        try:
            for name, stream, file in self._first:
                # Objects of the interpreter's own types answer these themselves, unless they got members of their own.
                is_first = _sys_members[name] is stream and stream.buffer is file and stream.write_through
                if not is_first or _members_of(stream) or len(_members_of(file)) > 1:  # its "name"
                    return False
        except BaseException:  # detached, closed, or a dictionary with keys of the program's own
            return False
        flush_c_output()
        return True

    def flush(self) -> None:
        """Flushes what the program prints to now, and what it printed to at first. Runs the program's code."""
        for find in (lambda: sys.stdout, lambda: sys.stderr, lambda: self._stdout, lambda: self._stderr):
            try:
                find().flush()
            except Exception:
                pass  # None, closed, or something that is no stream: then nothing is to be flushed
        flush_c_output()


def _text_stream(file: Any, errors: str) -> TextIOWrapper:
    return TextIOWrapper(file, encoding="utf-8", errors=errors, write_through=True)


def become_fresh(channel_fd: int, stdout_fd: int, stderr_fd: int, places: Places) -> int:
    """Sets up the rest in a fork. Returns where the channel's descriptor went."""
    channel_fd = _keep_only(channel_fd, stdout_fd, stderr_fd)
    set_signal(SIGINT, default_int_handler)
    for directory in own_directories(places):
        try:
            mkdir(directory, 0o700)
        except FileExistsError:
            pass
    gc.enable()
    return channel_fd


def show_devices(devices: Sequence[int]) -> None:
    """Which of the slot's several devices are the program's. Requires: CUDA was not started in this process."""
    _environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the server and nvidia-smi number them
    _environment[DEVICES_VARIABLE] = ",".join([str(device) for device in devices])


def own_directories(places: Places) -> tuple[str, ...]:
    return (places.home, places.modules, places.libraries)


def lower_priority() -> None:
    """Of a fork that nobody waits for yet, while a program may be running beside it. The executor brings it forward."""
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + _AHEAD_NICENESS)


def _keep_only(channel_fd: int, stdout_fd: int, stderr_fd: int) -> int:
    """Empty standard input, the pipes as output, the channel on a high number, and no other descriptor."""
    highest = getrlimit(RLIMIT_NOFILE)[0]
    kept = duplicate_from(channel_fd, min(_CHANNEL_FD, highest - 1))
    empty = open_fd("/dev/null", O_RDONLY | O_CLOEXEC)
    # None of the three may be one of 0 to 2, which would be overwritten: the zygote keeps those taken.
    dup2(empty, 0)
    dup2(stdout_fd, 1)
    dup2(stderr_fd, 2)
    close_all_but(kept)
    return kept


def reset_signals(mask: Iterable[int]) -> None:
    """Handlers as a fresh interpreter has them, with `mask` blocked in the end."""
    for number in range(1, _SIGNAL_MAX + 1):
        wanted = _START_HANDLERS.get(number, SIG_DFL)
        try:
            if getsignal(number) != wanted:
                set_signal(number, wanted)
        except (OSError, ValueError):
            pass  # SIGKILL, SIGSTOP and those that libc keeps for itself
    pthread_sigmask(SIG_SETMASK, mask)


def signal_handlers() -> list[int]:
    """Of each signal the identity of its handler: comparing handlers themselves may call the program's code."""
    return [id(getsignal(number)) for number in range(1, _SIGNAL_MAX + 1)]


def seed_generators() -> None:
    """Forks of one zygote must not draw the same numbers: called in the zygote between them. (CUDA's generators seed
    themselves when CUDA starts, and `random` does in every fork.)"""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
