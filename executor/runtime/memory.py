"""Content in anonymous memory: sealed when it is written, mapped when it is read.

Theory of operation. A blob arrives as a sealed memfd. It is mapped at once, privately and writably, and its
descriptor is closed: thousands of blobs must not eat up the program's descriptors. Pages are shared with the server
until somebody writes to them, so the last use of a blob can be handed the mapping itself, and only earlier uses copy.
Where tensors go to a GPU the mapping is shared and read-only instead: nobody keeps it, and the device reads its pages
as they are (pinning a private mapping would copy them).
"""

from __future__ import annotations

from _weakref import ref
from errno import EBUSY
from posix import close, fstat, pwrite, sendfile
from typing import Any, Callable

from kernel import (
    PAGE_BYTES,
    map_for_writing,
    map_private,
    map_read_only,
    memfd_create,
    memory_at,
    resize,
    seal,
    unmap,
)

# schema/limits.h, kReturnedBytesMax: of a program's returns in all, which the executor counts. Here it bounds one
# value's text or data, so that what has no chance is not even copied.
RETURNED_BYTES_MAX = 1024 * 1024 * 1024
_NAME = b"kcoral-returned"


class TooLarge(Exception):
    """What is returned would pass RETURNED_BYTES_MAX."""


class Writer:
    """A memfd being written. Close it when it was sent."""

    def __init__(self) -> None:
        self.fd = memfd_create(_NAME)
        self.size_bytes = 0

    def append(self, content: Any) -> None:
        """Appends a contiguous buffer of bytes."""
        rest = memoryview(content)
        self._check_room(rest.nbytes)
        if rest.nbytes == 0:
            return
        rest = rest.cast("B")
        while rest.nbytes > 0:
            written = pwrite(self.fd, rest, self.size_bytes)
            self.size_bytes += written
            rest = rest[written:]

    def fill(self, size_bytes: int, write: Callable[[int], None]) -> None:
        """Appends `size_bytes` that `write(address)` puts at that address, where all pages are there already. After
        it raised, the writer can only be closed."""
        self._check_room(size_bytes)
        if size_bytes == 0:
            return
        before = self.size_bytes % PAGE_BYTES
        resize(self.fd, self.size_bytes + size_bytes)
        mapping = map_for_writing(self.fd, self.size_bytes - before, before + size_bytes)
        try:
            write(mapping + before)
        finally:
            unmap(mapping, before + size_bytes)
        self.size_bytes += size_bytes

    def _check_room(self, size_bytes: int) -> None:
        if self.size_bytes + size_bytes > RETURNED_BYTES_MAX:
            raise TooLarge

    def seal(self) -> None:
        """Makes the content final. `fd` may be another one afterwards."""
        try:
            seal(self.fd)
        except OSError as error:
            if error.errno != EBUSY:
                raise
            # A fork of the program still has it mapped: what it holds is its own copy from now on.
            self._move()
            seal(self.fd)

    def _move(self) -> None:
        old, self.fd = self.fd, memfd_create(_NAME)
        copied = 0
        try:
            while copied < self.size_bytes:
                copied += sendfile(self.fd, old, copied, self.size_bytes - copied)
        finally:
            close(old)

    def close(self) -> None:
        close(self.fd)


class Blob:
    """The content of one upload, mapped. `uses_left` says how many instructions will still ask for it."""

    def __init__(self, fd: int, for_gpu: bool = False) -> None:
        """Takes the descriptor. `for_gpu`: nobody will `take` it, and a device may read it."""
        self.size_bytes = fstat(fd).st_size
        self.uses_left = 0
        self.address = 0  # of the content, while there is any
        self._is_ours = True
        if self.size_bytes > 0:
            self.address = (map_read_only if for_gpu else map_private)(fd, self.size_bytes)
        close(fd)

    def view(self) -> memoryview:
        """The content, to be read before this returns to the program."""
        if self.size_bytes == 0:
            return memoryview(b"")
        return memoryview(memory_at(self.address, self.size_bytes)).cast("B").toreadonly()

    def take(self) -> Any:
        """A writable buffer with the content, for the program to keep; it is nobody else's."""
        self.uses_left -= 1
        if self.uses_left > 0 or self.size_bytes == 0:
            return bytearray(self.view())
        self._is_ours = False
        address, size_bytes = self.address, self.size_bytes
        buffer = memory_at(address, size_bytes)
        _mappings[address] = ref(buffer, lambda _: _drop_mapping(address, size_bytes))
        return buffer

    def note_use(self) -> None:
        """An instruction is done with it; the last one leaves nothing mapped."""
        self.uses_left -= 1
        if self.uses_left <= 0:
            self.drop()

    def drop(self) -> None:
        """Nobody will ask for it again."""
        if self._is_ours and self.size_bytes > 0:
            unmap(self.address, self.size_bytes)
        self._is_ours, self.size_bytes = False, 0


# Mappings that were handed to the program, unmapped when the last array over them is gone.
_mappings: dict[int, ref] = {}


def _drop_mapping(address: int, size_bytes: int) -> None:
    _mappings.pop(address, None)
    unmap(address, size_bytes)


def read_all(fd: int) -> bytes:
    """The content of a memfd that was passed along; the descriptor is closed, its file position left alone."""
    blob = Blob(fd)
    blob.uses_left = 1
    return bytes(blob.take())


def sealed_copy(content: bytes) -> Writer:
    """Small content, sealed."""
    writer = Writer()
    writer.append(content)
    writer.seal()
    return writer
