"""Content that a program refers to by its SHA-256: in memory, or in a file that is read when it is sent."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from .errors import ProgramError

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryBlob:
    """Immutable content in memory."""

    sha256: str
    content: bytes

    @classmethod
    def of(cls, content: bytes) -> MemoryBlob:
        return cls(hashlib.sha256(content).hexdigest(), content)

    @property
    def size(self) -> int:
        return len(self.content)

    def pieces(self) -> Iterator[bytes | memoryview]:
        view = memoryview(self.content)
        for start in range(0, len(view), _PIECE_BYTES):
            yield view[start : start + _PIECE_BYTES]


@dataclass(frozen=True, slots=True)
class FileBlob:
    """The content of a local file as it was when the blob was made. `pieces` fails if the file has changed since."""

    sha256: str
    size: int
    path: str
    version: tuple[int, int, int]

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileBlob:
        """Hashes the file. Raises ProgramError for a symlink or anything else that is no regular file."""
        name = os.path.abspath(os.fspath(path))
        digest = hashlib.sha256()
        size = 0
        with _open_regular(name) as file:
            version = _version(file.fileno())
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
                size += len(piece)
            if _version(file.fileno()) != version:
                raise ProgramError(f"{name} changed while it was read")
        return cls(digest.hexdigest(), size, name, version)

    def pieces(self) -> Iterator[bytes | memoryview]:
        left = self.size
        try:
            with _open_regular(self.path) as file:
                while _version(file.fileno()) == self.version and (piece := file.read(min(_PIECE_BYTES, left))):
                    left -= len(piece)
                    yield piece
        except OSError as error:
            raise ProgramError(f"{self.path} can no longer be read: {error.strerror}") from error
        if left:
            raise ProgramError(f"{self.path} changed after it was uploaded into the program")


Blob = MemoryBlob | FileBlob


def _open_regular(path: str) -> BinaryIO:
    if os.path.islink(path):
        raise ProgramError(f"{path} is a symlink; symlinks are not uploaded")
    # O_NONBLOCK: opening a FIFO that nobody writes must not wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ProgramError(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def _version(descriptor: int) -> tuple[int, int, int]:
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns
