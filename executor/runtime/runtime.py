"""The runtime: the process of one program, from the fork to its end.

Theory of operation. The zygote forked it into the program's pid namespace. It enters the rest of the sandbox, becomes
a fresh script, says `ready`, and waits (a runtime may stand by for a long time). Then it is handed one program with
its blobs, runs the instructions, and waits to be killed, or where processes are used again to be told to get ready for
another program. It never returns into the interpreter's own ending, so threads and exit handlers of the program neither
delay nor change the answer.

Nothing of the program is read before `enter_program` succeeded.
"""

from __future__ import annotations

from posix import close
from typing import Any, NoReturn, Optional, Sequence

import gpu_memory
from boundary import Boundary
from cuda import CudaError, Driver
from environment import Streams, become_fresh, lower_priority
from errors import InstructionFailed, message_of, name_of
from frames import Channel, Frame, end_process
from instructions import Execution, count_uses
from jsontext import parse
from memory import Blob, read_all
from namespaces import Namespaces, Places, Refused
from reuse import FirstState, Unfit

_FAILED = 70  # EX_SOFTWARE: our own code failed, and could not even say so


def run(
    fds: Sequence[int],
    ahead: bool,
    reuse: bool,
    memory_bytes_max: int,
    namespaces: Namespaces,
    places: Places,
    streams: Streams,
) -> NoReturn:
    """Becomes the runtime that serves the socket `fds[0]`, with `fds[1:3]` as its output. `ahead`: no program waits for
    it yet. `reuse`: it may be given more than one, each of which may hold `memory_bytes_max` (0 for any amount).

    Called in a fork, whose caller ends it should this raise."""

    def look() -> Optional[FirstState]:
        return FirstState(places, channel.fd, memory_bytes_max) if reuse else None

    try:
        if ahead:
            lower_priority()
        namespaces.enter_program()
        channel = Channel(become_fresh(fds[0], fds[1], fds[2], places))
        first = look()
        boundary = Boundary(streams)
    except BaseException as error:
        message = message_of(error) if type(error) is Refused else name_of(error) + ": " + message_of(error)
        Channel(fds[0]).send("setup_failed", {"message": message})
        end_process(1)
    try:
        while True:
            channel.send_text(b'{"type":"ready"}')
            frame = channel.receive_or_exit()
            while frame.type != "program":
                frame.close()
                if _prepare_cuda(channel, frame.type):
                    first = look()  # the driver has threads and descriptors of its own now
                frame = channel.receive_or_exit()
            if first is not None:
                first.note_priority()
            instructions, blobs = _receive_program(channel, frame)
            needs_lease = frame.fields["needs_lease"]
            kept = first if frame.fields["keep"] else None
            execution = Execution(
                channel, boundary, places, instructions, blobs, needs_lease, lambda: _may_pass_lease_on(kept)
            )
            execution.run_program()
            if kept is None:
                _wait_to_be_ended(channel)
            obstacle = _obstacle_of(execution)
            _wait_for(channel, "recycle")
            if obstacle is not None:
                raise obstacle
            lease, index = execution.lease, execution.index
            del execution  # with what the program made
            while blobs:
                blobs.popitem()[1].drop()
            boundary.start_over(kept.restore())
            if lease.held:
                gpu_memory.give_back()
                lease.release(index)
            gpu_memory.seed_generator()
    except (Unfit, InstructionFailed) as reason:
        channel.send("unfit", {"message": message_of(reason)})
        _wait_to_be_ended(channel)
    except BaseException:
        end_process(_FAILED)


def _may_pass_lease_on(kept: Optional[FirstState]) -> bool:
    """Whether a program whose work on its devices has ended may leave them to others at once. Not where its process is
    ended with it, which takes the devices once more; nor while a thread or process that it left may go on; and much
    memory is given back while nobody measures."""
    return kept is not None and not kept.started_others() and not gpu_memory.holds_much()


def _obstacle_of(execution: Execution) -> Optional[Exception]:
    """What keeps this process from serving another program, after one that may have failed; then it keeps the lease to
    its end. Otherwise nothing of the program runs on its devices any more."""
    if execution.is_spent:
        return Unfit("its program ended by more than an exception of its own")
    try:
        execution.give_device_back()
    except InstructionFailed as failure:
        return failure
    return None


def _prepare_cuda(channel: Channel, step: str) -> bool:
    """What the executor asks for before there is a program, on a GPU server. Whether CUDA did anything here."""
    if step not in ("initialise", "make_context"):
        return False
    try:
        driver = Driver.load()
        if driver is None:
            raise CudaError("CUDA_ERROR_STUB_LIBRARY", "libcuda.so.1 cannot be loaded", "dlopen")
        if step == "initialise":
            driver.initialise()
            channel.send_text(b'{"type":"initialised"}')
        else:
            driver.make_context()
            channel.send_text(b'{"type":"context_made"}')
    except Exception as error:
        channel.send("context_failed", {"message": message_of(error)})
    return True


def _wait_to_be_ended(channel: Channel) -> NoReturn:
    while True:
        channel.receive_or_exit().close()


def _wait_for(channel: Channel, type: str) -> Frame:
    frame = channel.receive_or_exit()
    while frame.type != type:
        frame.close()
        frame = channel.receive_or_exit()
    return frame


def _receive_program(channel: Channel, frame: Frame) -> tuple[list[dict[str, Any]], dict[str, Blob]]:
    program = parse(read_all(frame.fds[0]).decode("utf-8"))
    blobs: dict[str, Blob] = {}
    while len(blobs) < frame.fields["blobs"]:
        more = channel.receive_or_exit()
        for digest, fd in zip(more.fields["sha256"], more.fds):
            if digest in blobs:
                close(fd)
            else:
                blobs[digest] = Blob(fd, frame.fields["needs_lease"])
    count_uses(program["instructions"], blobs)
    return program["instructions"], blobs
