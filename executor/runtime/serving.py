"""The zygote's service: a fresh runtime for each `prepare`, and word of every process that ended.

Theory of operation. One thread waits on the control socket and on a pidfd of each child. A `prepare` costs two
children in a fresh pid namespace: kcoral-init, then the runtime (namespaces.py says how). The zygote itself never
runs a program and never reads one; it holds the program's socket only until the fork has it. When the control socket
closes it exits, and as pid 1 of its own namespace takes everything with it.

Before it says that it is ready it rehearses: one runtime is prepared and ended again, so that an environment that
refuses namespaces is found at the start, with its reason, and not by the first program.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
from typing import Any, NoReturn

from environment import Streams, seed_generators
from frames import Channel, Frame, end_process
from kernel import pidfd_open
from namespaces import Namespaces, Places, Refused
from preload import PreloadFailed
from runtime import run

_REHEARSAL_SECONDS = 10.0
_RUNTIME_BROKE = 70  # EX_SOFTWARE


class Process:
    """A child that is not reaped yet."""

    __slots__ = ("id", "name", "pid", "pidfd")

    def __init__(self, id: Any, name: str, pid: int) -> None:
        self.id = id
        self.name = name  # "init" or "runtime"
        self.pid = pid
        self.pidfd = pidfd_open(pid)


class Zygote:
    """Serves one control socket. Requires: the preloads are imported, and `settle_zygote` was called."""

    def __init__(
        self, channel: Channel, namespaces: Namespaces, places: Places, streams: Streams, config: dict[str, Any]
    ) -> None:
        """`config`: docs/frames.md, "Executor and zygote"."""
        self._channel = channel
        self._reuse = config["reuse"]
        self._memory_bytes_max = config["memory_bytes_max"]
        self._namespaces = namespaces
        self._places = places
        self._streams = streams
        self._processes: dict[int, Process] = {}  # by pidfd
        self._poll = select.poll()

    def rehearse(self) -> None:
        """Raises PreloadFailed with what a person should know if no runtime can be prepared."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_REHEARSAL_SECONDS)
        silent = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        processes: list[Process] = []
        try:
            processes = self._start("rehearsal", [theirs.fileno(), silent, silent], False)
            theirs.close()
            said = ours.recv(4096)
            if b'"ready"' not in said:
                raise PreloadFailed("no program can be run here: " + said.decode("utf-8", "replace"))
        except (OSError, Refused) as error:
            raise PreloadFailed("no program can be run here: %s" % error) from error
        finally:
            seed_generators()
            ours.close()
            theirs.close()
            os.close(silent)
            for process in reversed(processes):  # the runtime ends with its socket; kcoral-init never by itself
                _kill(process.pid)
                os.waitpid(process.pid, 0)
                os.close(process.pidfd)

    def serve(self) -> NoReturn:
        """Ends with the control socket."""
        # What exists now is never garbage: keeping the collector from it leaves its pages shared with every fork.
        gc.collect()
        gc.disable()
        gc.freeze()
        self._poll.register(self._channel.fd, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._channel.fd:
                    self._take(self._channel.receive_or_exit())
                else:
                    self._reap(self._processes[fd])

    def _take(self, frame: Frame) -> None:
        try:
            if frame.type != "prepare":
                raise ValueError("the executor sent a frame of the unknown type " + frame.type)
            self._prepare(frame)
        finally:
            frame.close()

    def _prepare(self, frame: Frame) -> None:
        id, ahead = frame.fields["id"], frame.fields.get("ahead") is True
        if len(frame.fds) != 3:
            fault = "a prepare with %d descriptors" % len(frame.fds)
            self._channel.send("prepare_failed", {"id": id, "message": fault})
            return
        try:
            processes = self._start(id, frame.fds, ahead)
        except (OSError, Refused) as error:
            self._channel.send("prepare_failed", {"id": id, "message": str(error)})
            return
        for process in processes:
            self._processes[process.pidfd] = process
            self._poll.register(process.pidfd, select.POLLIN)
        self._channel.send("prepared", {"id": id}, [process.pidfd for process in processes])
        seed_generators()

    def _start(self, id: Any, fds: list[int], ahead: bool) -> list[Process]:
        """kcoral-init and the runtime of a fresh pid namespace. Raises OSError or Refused, leaving no process."""
        started: list[tuple[str, int]] = []
        processes: list[Process] = []
        try:
            self._namespaces.new_pid_namespace()
            try:
                started.append(("init", self._namespaces.start_init()))
                runtime = os.fork()
                if runtime == 0:
                    self._become_runtime(fds, ahead)
                started.append(("runtime", runtime))
            finally:
                self._namespaces.own_pid_namespace()
            for name, pid in started:
                processes.append(Process(id, name, pid))
            return processes
        except (OSError, Refused):
            # The runtime first: the first process of a namespace does not end before the others are reaped.
            for _, pid in reversed(started):
                _kill(pid)
                os.waitpid(pid, 0)
            for process in processes:
                os.close(process.pidfd)
            raise

    def _become_runtime(self, fds: list[int], ahead: bool) -> NoReturn:
        try:
            run(fds, ahead, self._reuse, self._memory_bytes_max, self._namespaces, self._places, self._streams)
        finally:
            # Whatever happened: no fork of the zygote goes on as one.
            end_process(_RUNTIME_BROKE)

    def _reap(self, process: Process) -> None:
        status = os.waitpid(process.pid, 0)[1]
        self._poll.unregister(process.pidfd)
        os.close(process.pidfd)
        del self._processes[process.pidfd]
        how = {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}
        self._channel.send("exited", {"id": process.id, "process": process.name, **how})


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
