"""A disk that can be filled: a tmpfs in a mount namespace of its own, which ends with whoever made it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import threading
from typing import Iterator

MAKE = 'mount -t tmpfs -o "size=$1" none "$2" && echo ready && exec cat'
KEEP_FULL_S = 0.01


class CannotMount(Exception):
    """Mounting is not permitted here."""


class SmallDisk:
    """`inside`: where processes of the namespace, which `prefix` starts, see it. `path`: where everybody else does."""

    def __init__(self, holder: int, inside: pathlib.Path):
        self.inside = inside
        self.path = pathlib.Path(f"/proc/{holder}/root{inside}")
        self.prefix = ["nsenter", f"--mount=/proc/{holder}/ns/mnt", "--"]
        self._ballast = self.path / "ballast"
        self._filling: threading.Thread | None = None
        self._emptied = threading.Event()

    def fill(self) -> None:
        """To the last block, and keeps it full: whoever frees some does not get it back."""
        assert not self._filling
        self._emptied.clear()
        self._filling = threading.Thread(target=self._keep_full)
        self._filling.start()
        while self.free_bytes > 0:
            self._emptied.wait(KEEP_FULL_S)

    def empty(self) -> None:
        self._emptied.set()
        if self._filling:
            self._filling.join()
            self._filling = None
            self._ballast.unlink()

    def _keep_full(self) -> None:
        with open(self._ballast, "ab", buffering=0) as ballast:
            while not self._emptied.is_set():
                for piece_bytes in (1 << 20, 1 << 12):
                    with contextlib.suppress(OSError):
                        while ballast.write(b"." * piece_bytes):
                            pass
                self._emptied.wait(KEEP_FULL_S)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize


@contextlib.contextmanager
def small_disk(at: pathlib.Path, size_bytes: int) -> Iterator[SmallDisk]:
    at.mkdir()
    holder = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", MAKE, "sh", str(size_bytes), str(at)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        if holder.stdout.readline() != b"ready\n":
            raise CannotMount(holder.stderr.read().decode().strip())
        disk = SmallDisk(holder.pid, at)
        try:
            yield disk
        finally:
            disk.empty()
    finally:
        for pipe in (holder.stdin, holder.stdout, holder.stderr):
            pipe.close()
        holder.wait()
