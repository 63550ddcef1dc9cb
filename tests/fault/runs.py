"""What really ran: each program of these tests says so first of all, in a FIFO outside of its sandbox."""

from __future__ import annotations

import os
import pathlib
import threading
import uuid
from collections import defaultdict
from typing import NamedTuple

from harness import PATIENCE_S

# One that runs says so, sleeps, and raises or returns its token with as many bytes as it is to.
SOURCE = """
import os, time
def main(id, log, seconds, answer_bytes, fails, data):
    token = os.urandom(8).hex()
    fd = os.open(log, os.O_WRONLY)
    os.write(fd, f"{id} {token} {time.monotonic_ns()}\\n".encode())
    os.close(fd)
    print(token)
    time.sleep(seconds)
    if fails: raise ValueError(token)
    return [token, len(data), token.encode() * (answer_bytes // 16)]
"""


class Run(NamedTuple):
    token: str
    at_ns: int  # monotonic, as the program saw it


class Runs:
    """What really ran. A FIFO, since programs may write to one that they may only read as a file."""

    def __init__(self, directory: pathlib.Path):
        self.path = directory / "runs"
        os.mkfifo(self.path)
        os.chmod(self.path, 0o666)
        self._fd = os.open(self.path, os.O_RDWR)  # a reader that never goes, so that no program waits for one
        self._lock = threading.Condition()
        self._runs: dict[str, list[Run]] = defaultdict(list)
        self._marks: set[str] = set()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        text = b""
        while True:
            *lines, text = (text + os.read(self._fd, 65536)).split(b"\n")
            with self._lock:
                for line in lines:
                    first, *rest = line.decode().split()
                    if rest:
                        self._runs[first].append(Run(rest[0], int(rest[1])))
                    else:
                        self._marks.add(first)
                self._lock.notify_all()
                if b"end" in lines:
                    return

    def all(self) -> dict[str, list[Run]]:
        """By request, in the order in which they wrote; all that was written before this call."""
        mark = uuid.uuid4().hex
        os.write(self._fd, f"{mark}\n".encode())
        with self._lock:
            assert self._lock.wait_for(lambda: mark in self._marks, PATIENCE_S)
            return {id: list(runs) for id, runs in self._runs.items()}

    def close(self) -> None:
        os.write(self._fd, b"end\n")
        self._thread.join()
        os.close(self._fd)
