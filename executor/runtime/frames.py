"""Frames between the executor, its zygote and its runtimes (docs/frames.md).

Theory of operation. A frame is one packet on a SOCK_SEQPACKET socket: a JSON object with a "type", and descriptors.
Large content rides beside it in sealed memfds. A Channel belongs to the process that made it: a fork of the program
that comes back into our code must not speak for its parent, so sending from any other process ends that process.
"""

from __future__ import annotations

from posix import _exit, close, getpid, write
from typing import Any, NoReturn, Optional, Sequence

from jsontext import parse, to_text
from kernel import receive_packet, send_packet


class Frame:
    """What came in one packet. The descriptors belong to whoever holds the frame."""

    __slots__ = ("type", "fields", "fds")

    def __init__(self, type: str, fields: dict[str, Any], fds: list[int]) -> None:
        self.type = type
        self.fields = fields
        self.fds = fds

    def close(self) -> None:
        for fd in self.fds:
            close(fd)
        self.fds = []


class Channel:
    """One end of a frame socket. Blocking; used by one thread."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._owner = getpid()

    def send(self, type: str, fields: Optional[dict[str, Any]] = None, fds: Sequence[int] = ()) -> None:
        """Sends one frame; the descriptors stay the caller's."""
        self._check_owner()
        body: dict[str, Any] = {"type": type}
        if fields is not None:
            body.update(fields)
        # Only text that is not ours can hold lone surrogates, and only in messages for people.
        send_packet(self.fd, to_text(body).encode("utf-8", "replace"), fds)

    def send_text(self, text: bytes) -> None:
        """Sends a frame that is JSON already and comes without descriptors: what is said often costs little."""
        self._check_owner()
        write(self.fd, text)

    def _check_owner(self) -> None:
        if getpid() != self._owner:
            _exit(0)

    def receive(self) -> Optional[Frame]:
        """Waits for the next frame; None once the other side has closed."""
        received = receive_packet(self.fd)
        if received is None:
            return None
        packet, fds = received
        body = parse(packet.decode("utf-8"))
        return Frame(body.pop("type"), body, fds)

    def receive_or_exit(self) -> Frame:
        """As `receive`, for those who have no purpose once the other side is gone."""
        frame = self.receive()
        if frame is None:
            end_process(0)
        return frame


def end_process(code: int) -> NoReturn:
    """Ends this process at once: nothing of the program (exit handlers, finalisers, threads) gets a say."""
    _exit(code)
