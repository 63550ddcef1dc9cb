"""Rows of requests, read from the database itself."""

from __future__ import annotations

import contextlib
import enum
import pathlib
import shutil
import sqlite3
import tempfile
import uuid
from typing import NamedTuple

from harness import Server


class State(enum.IntEnum):
    """Contract section 9, with the database's numbers."""

    QUEUED = 0
    ASSIGNED = 1
    RUNNING = 2
    COMPLETED = 3
    FAILED = 4
    TIMED_OUT = 5
    CANCELLED = 6
    INTERRUPTED = 7
    REJECTED = 8

    @property
    def is_terminal(self) -> bool:
        return self >= State.COMPLETED


class Row(NamedTuple):
    """What must not change once the request has ended."""

    state: State
    attempt: int
    max_attempts: int
    submitted_us: int
    finished_us: int | None
    program_sha256: bytes
    error_kind: str
    error_message: str
    answer_id: int | None


def rows_in(database: pathlib.Path, mode: str) -> dict[str, Row]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode={mode}", uri=True)) as connection:
        if mode == "rw" and not connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
            return {}  # it was only begun
        rows = connection.execute(f"SELECT request_id, {', '.join(Row._fields)} FROM requests").fetchall()
        assert mode == "ro" or connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    return {str(uuid.UUID(bytes=id)): Row(State(state), *rest) for id, state, *rest in rows}


def rows_left_by(server: Server) -> dict[str, Row]:
    """As a server that has ended, or does nothing, left them. In a copy, since a look may recover the database."""
    with tempfile.TemporaryDirectory() as directory:
        for path in server.data_dir.glob("queue.sqlite3*"):
            shutil.copy(path, directory)
        return rows_in(pathlib.Path(directory, "queue.sqlite3"), "rw")
