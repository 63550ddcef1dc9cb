"""What is left on a disk after a loss of power: the other half of `power_loss.cc`, which writes the journal.

What no sync made durable is undone, or all of it but a part that the seed chooses:

- nothing of it is left. That is the least that POSIX promises: a file's content is durable once the file is synced, its
  name once its directory is. (On ext4 and xfs a sync of a new file brings its name along; nothing is given on that.)
- the first so many calls are left: a file system that keeps their order.
- any of them are left, each 4 KiB page of a write and each change of a name for itself, and one page is torn between
  its sectors of 512 bytes: a disk that writes in an order of its own. Where a page was lost before one that was kept
  the file has zeros. The names of one call (a rename) change together.

What processes write that are not watched (the executors their locks) is left as it is, and so is what the next start
makes anew or removes (the control socket, a checkpoint of the content); but what a checkpoint shares with watched files
is lost with them. SQLite's -shm goes.
"""

from __future__ import annotations

import enum
import mmap
import os
import pathlib
import random
import shutil
import struct
from dataclasses import dataclass
from typing import Iterator

from harness import BUILD

LIBRARY = BUILD / "tests" / "fault" / "libkcoral_power_loss.so"
JOURNAL_BYTES_MAX = 4 << 30  # sparse
PAGE_BYTES = 4096
SECTOR_BYTES = 512
OF_OTHERS = "executors"  # a directory in which processes that are not watched write
VOLATILE = ("control.sock", "content/checkpoint", "content/checkpoint.tmp")  # not watched, as in power_loss.cc
DIRECTORY = 2**64 - 1
HEAD = struct.Struct("<QIIQQQQQQ")
JOURNAL_HEAD = struct.Struct("<QQ")


class Kind(enum.IntEnum):
    """As in power_loss.cc."""

    WRITE = 1
    RESIZE = 2
    ENTRIES = 3
    FILE_SYNC = 4
    DIRECTORY_SYNC = 5


class Left(enum.Enum):
    """Of what was not synced."""

    NOTHING = "nothing"
    FIRST = "the first calls"
    ANY = "any pages and names"


@dataclass
class Record:
    at: int
    kind: Kind
    names: list[str]  # with what was there before, for entries
    inodes: list[int]
    offset: int
    count: int
    length_before: int
    saved: bytes
    # What the call had made of it: found while it is undone.
    length_after: int = 0
    after: bytes = b""
    entries_after: tuple[int | None, ...] = ()


class Disk:
    """A directory that a process can be watched in. `state`: beside it; made here."""

    def __init__(self, root: pathlib.Path, state: pathlib.Path):
        self.root = pathlib.Path(os.path.realpath(root))
        self._graves = state / "graves"
        self._journal = state / "journal"
        self.state = state
        state.mkdir()
        self._forget()

    def environment(self, lies: str = "") -> dict[str, str]:
        """Of a process that is watched from its start. `lies`: syncs of paths with this text do nothing."""
        return {
            "LD_PRELOAD": str(LIBRARY),
            "KCORAL_POWER_LOSS_ROOT": str(self.root),
            "KCORAL_POWER_LOSS_STATE": str(self.state),
            "KCORAL_POWER_LOSS_LIES": lies,
        }

    def lose(self, draw: random.Random) -> str:
        """What is not synced goes. No process may have the directory open. Says what was lost."""
        records, synced = self._read()
        names = self._walk()
        self._expect_all_is_recorded(records, names)
        unsynced = [record for record in records if not self._is_synced(record, synced)]
        for path, inode in names.items():
            if inode != DIRECTORY:
                self._bury(path, inode)
        for record in reversed(unsynced):
            self._undo(record, names)
        left = draw.choice(list(Left))
        what = self._redo_some(unsynced, names, left, draw)
        self._make(names)
        self._forget()
        return f"{left.value} left of {len(unsynced)} unsynced calls{what}"

    # --- the journal ---

    def _forget(self) -> None:
        """What is there now is durable."""
        shutil.rmtree(self._graves, ignore_errors=True)
        self._graves.mkdir()
        with open(self._journal, "wb") as journal:
            journal.truncate(JOURNAL_BYTES_MAX)
            journal.write(JOURNAL_HEAD.pack(mmap.PAGESIZE, JOURNAL_BYTES_MAX))
        self._durable = {path: self._look(path) for path, inode in self._walk().items() if inode != DIRECTORY}

    def _read(self) -> tuple[list[Record], dict[int | str, int]]:
        """The calls, and how far each file and directory is synced."""
        records: list[Record] = []
        synced: dict[int | str, int] = {}
        with open(self._journal, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as journal:
            used, _ = JOURNAL_HEAD.unpack_from(journal)
            at = mmap.PAGESIZE
            while at < used:
                size, kind, name_bytes, *numbers, saved_bytes = HEAD.unpack_from(journal, at)
                inode, second, offset, count, length = numbers
                middle = at + HEAD.size + name_bytes
                names = [name.decode() for name in journal[at + HEAD.size : middle - 1].split(b"\0") if name]
                if kind == Kind.FILE_SYNC:
                    synced[inode] = max(offset, synced.get(inode, 0))
                elif kind == Kind.DIRECTORY_SYNC:
                    synced[names[0]] = max(offset, synced.get(names[0], 0))
                else:
                    saved = journal[middle : middle + saved_bytes]
                    inodes = [inode, second][: len(names)]
                    records.append(Record(at, Kind(kind), names, inodes, offset, count, length, saved))
                at += size
        return records, synced

    @staticmethod
    def _is_synced(record: Record, synced: dict[int | str, int]) -> bool:
        of = os.path.dirname(record.names[0]) if record.kind == Kind.ENTRIES else record.inodes[0]
        return record.at < synced.get(of, 0)

    # --- what is on the disk ---

    def _is_of_others(self, path: str) -> bool:
        below = os.path.relpath(path, self.root)
        return path.endswith("-shm") or below in VOLATILE or os.path.dirname(below) == OF_OTHERS

    def _walk(self) -> dict[str, int]:
        """Inodes by path, directories before what is in them."""
        found: dict[str, int] = {}
        if self.root.exists():
            found[str(self.root)] = DIRECTORY
        for directory, directories, files in os.walk(self.root):
            directories[:] = [name for name in directories if not self._is_of_others(os.path.join(directory, name))]
            found.update((os.path.join(directory, name), DIRECTORY) for name in directories)
            paths = [os.path.join(directory, name) for name in files]
            found.update((path, os.stat(path).st_ino) for path in paths if not self._is_of_others(path))
        return found

    @staticmethod
    def _look(path: str) -> tuple[int, int, int]:
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _expect_all_is_recorded(self, records: list[Record], names: dict[str, int]) -> None:
        """Nothing changed by ways that are not watched."""
        named = {name for record in records if record.kind == Kind.ENTRIES for name in record.names}
        written = {record.inodes[0] for record in records if record.kind != Kind.ENTRIES}
        for path, inode in names.items():
            if inode == DIRECTORY:
                continue
            before = self._durable.get(path)
            if before is None or before[0] != inode:
                assert path in named, f"{path} came unseen"
            elif inode not in written:
                assert before == self._look(path), f"{path} was written unseen"
        gone = self._durable.keys() - names.keys() - named
        assert not gone, f"went unseen: {gone}"

    def _grave(self, inode: int) -> pathlib.Path:
        return self._graves / str(inode)

    def _bury(self, path: str, inode: int) -> None:
        if not self._grave(inode).exists():
            os.link(path, self._grave(inode))

    # --- back, and forward again ---

    def _undo(self, record: Record, names: dict[str, int]) -> None:
        if record.kind == Kind.ENTRIES:
            record.entries_after = tuple(names.get(name) for name in record.names)
            _set(names, record.names, tuple(inode or None for inode in record.inodes))
            return
        with open(self._grave(record.inodes[0]), "r+b", buffering=0) as file:
            fd = file.fileno()
            record.length_after = os.fstat(fd).st_size
            if record.kind == Kind.WRITE:
                record.after = os.pread(fd, record.count, record.offset)
            if record.saved:
                assert os.pwrite(fd, record.saved, record.offset) == len(record.saved)
            os.truncate(fd, record.length_before)

    def _redo_some(self, unsynced: list[Record], names: dict[str, int], left: Left, draw: random.Random) -> str:
        if left == Left.NOTHING or not unsynced:
            return ""
        if left == Left.FIRST:
            count = draw.randrange(len(unsynced) + 1)
            for record in unsynced[:count]:
                self._redo(record, names, [(0, len(record.after))])
            return f": {count}"
        share = draw.choice((0.1, 0.5, 0.9))
        torn = draw.choice(unsynced)
        for record in unsynced:
            pages = [page for page in _pages(record) if draw.random() < share]
            if record is torn and pages:
                begin, end = pages.pop(draw.randrange(len(pages)))
                pages.append((begin, min(end, begin + SECTOR_BYTES * draw.randrange(PAGE_BYTES // SECTOR_BYTES))))
            if pages:
                self._redo(record, names, pages)
        return f": {share:.0%}"

    def _redo(self, record: Record, names: dict[str, int], pages: list[tuple[int, int]]) -> None:
        """`pages`: from where to where of what it wrote."""
        if record.kind == Kind.ENTRIES:
            _set(names, record.names, record.entries_after)
            return
        with open(self._grave(record.inodes[0]), "r+b", buffering=0) as file:
            if record.kind == Kind.RESIZE:
                os.truncate(file.fileno(), record.length_after)
            for begin, end in pages:
                os.pwrite(file.fileno(), record.after[begin:end], record.offset + begin)

    def _make(self, names: dict[str, int]) -> None:
        """Names as they are to be; what lies in a directory that is not there is gone."""
        wanted: dict[str, int] = {}
        for path in sorted(names):
            parent = os.path.dirname(path)
            if path == str(self.root) or wanted.get(parent) == DIRECTORY:
                wanted[path] = names[path]
        for path, inode in sorted(self._walk().items(), reverse=True):
            if wanted.get(path) == inode:
                continue
            if inode == DIRECTORY:
                shutil.rmtree(path)  # with what is of others
            else:
                os.unlink(path)
        for path, inode in sorted(wanted.items()):
            if os.path.lexists(path):
                continue
            if inode == DIRECTORY:
                os.mkdir(path, 0o700)
            else:
                os.link(self._grave(inode), path)
        for path in self.root.glob("*-shm"):
            path.unlink()


def _set(names: dict[str, int], paths: list[str], inodes: tuple[int | None, ...]) -> None:
    for path, inode in zip(paths, inodes, strict=True):
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def _pages(record: Record) -> Iterator[tuple[int, int]]:
    """Of what it wrote; one of no bytes for a change of another kind."""
    if record.kind != Kind.WRITE:
        yield 0, 0
        return
    begin = 0
    while begin < len(record.after):
        end = min(len(record.after), begin + PAGE_BYTES - (record.offset + begin) % PAGE_BYTES)
        yield begin, end
        begin = end
