"""What really ran: each program of these tests says so first of all, in a FIFO outside of its sandbox."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import threading
import uuid
from collections import defaultdict
from typing import Iterator, NamedTuple

from harness import PATIENCE_S, Program

# One that runs says so, prints, sleeps, waits for a file to be there, and raises or returns its token with as many
# bytes as it is to.
SOURCE = """
import os, time
def main(id, log, seconds, gate, printed_bytes, answer_bytes, fails, data):
    token = os.urandom(8).hex()
    fd = os.open(log, os.O_WRONLY)
    os.write(fd, f"{id} {token} {time.monotonic_ns()}\\n".encode())
    os.close(fd)
    print(token + "." * printed_bytes, flush=True)
    time.sleep(seconds)
    while gate and not os.path.exists(gate): time.sleep(0.01)
    if fails: raise ValueError(token)
    return [token, len(data), token.encode() * (answer_bytes // 16)]
"""


def noting_program(
    id: str, log: pathlib.Path, *, seconds: float = 0, gate: pathlib.Path | None = None, printed_bytes: int = 0,
    answer_bytes: int = 0, fails: bool = False, content: bytes = b"", **options: object,
) -> Program:  # fmt: skip
    """One that says in `log` that it runs as `id`."""
    program = Program(options=options or None)
    data = program.add("upload", kind="bytes", id="data", blob=program.blob(content))
    arguments = [id, str(log), seconds, gate and str(gate), printed_bytes, answer_bytes, fails, data]
    program.give("value", program.call(program.module(SOURCE), "main", arguments))
    return program


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


@contextlib.contextmanager
def noted_runs() -> Iterator[Runs]:
    """In a directory of its own, which a server is to `--expose`: not below /tmp, of which each program has its own."""
    with tempfile.TemporaryDirectory(prefix="kcoral-runs-", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        runs = Runs(pathlib.Path(directory))
        try:
            yield runs
        finally:
            runs.close()
