"""A disk that fills up under a server with all kinds of work, and has room again; over HTTP, on a small tmpfs.

While it is full nothing is admitted, and whoever submits is told so (503, with Retry-After) and finds the id free
later; what can be read is read as before; what runs ends, in the end in a state that is true. Once there is room all
goes on by itself within half a minute, in which RocksDB has to get over its own error. Nothing is lost and nothing runs
twice, also when the server is killed, stopped or started meanwhile; one that cannot start says why.
"""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import replace
from typing import Iterator

import pytest

import server_crash  # noqa: F401, which finds the harness
from accounts import expect_audit, expect_sound_runs
from harness import Reply, Server, multipart, wait_until
from rows import Row, State
from runs import Run, Runs, noted_runs, noting_program
from small_disk import CannotMount, SmallDisk, small_disk
from told import Sent, Told

DISK_BYTES = 128 << 20
WORKERS = 4
AT_ONCE_S = 10.0  # a call that does not wait for anything is answered by then
ROOM_PATIENCE_S = 30.0  # how long it takes at most until all goes on
REFUSED_AT_LAST = 200  # some little room is left within the files that are there


@pytest.fixture
def disk(tmp_path: pathlib.Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
            yield disk
    except CannotMount as error:
        pytest.skip(f"mounting is not permitted here: {error}")


@pytest.fixture
def site(disk: SmallDisk) -> Iterator["Site"]:
    with noted_runs() as runs:
        site = Site(disk, runs)
        try:
            site.start()
            yield site
        finally:
            if site.server.process.poll() is None:
                site.server.kill()


class Site:
    """A server on a small disk, and the clients' side of it."""

    def __init__(self, disk: SmallDisk, runs: Runs):
        self.disk = disk
        self.runs = runs
        self.gate = runs.path.parent / "gate"  # programs that were to wait for it end when it is there
        flags = ["--num-workers", str(WORKERS), "--shutdown-grace-seconds", "1", "--expose", str(runs.path.parent)]
        self.server = Server(disk.inside / "data", *flags, prefix=disk.prefix)
        self.told = Told()
        self.told.server = self.server
        self.large: set[str] = set()  # whose answers may find no room

    def start(self) -> None:
        self.server.start()

    def rows(self) -> dict[str, Row]:
        """By a process on that side: SQLite follows the links of a path, and those of /proc lead it astray."""
        script = "import pickle, sys; from rows import *; pickle.dump(rows_in(sys.argv[1], 'ro'), sys.stdout.buffer)"
        command = [*self.disk.prefix, sys.executable, "-c", script, str(self.server.data_dir / "queue.sqlite3")]
        read = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert read.returncode == 0, read.stderr.decode()
        return pickle.loads(read.stdout)

    def prepare(self, *, waits: bool = True, content: bytes = b"", **more) -> Sent:
        """`waits`: for the gate."""
        id = str(uuid.uuid4())
        gate = self.gate if waits else None
        program = noting_program(id, self.runs.path, gate=gate, content=content, **more)
        return Sent(id, 0, program, len(content), synchronous=False)

    def send(self, sent: Sent, path: str = "/requests") -> Reply:
        content_type, body = multipart(sent.program.document(), list(sent.program.blobs.values()))
        return self.server.request("POST", path, body, {"Content-Type": content_type, "X-Request-ID": sent.id})

    def submitted(self, **more) -> Sent:
        sent = self.prepare(**more)
        assert self.admits(sent)
        return sent

    def admits(self, sent: Sent) -> bool:
        """Else it must say why not, and when to come again."""
        began = time.monotonic()
        reply = self.send(sent)
        assert time.monotonic() - began < AT_ONCE_S
        if reply.status == 202:
            self.told.remember(sent)
            self.told.note_status(sent, reply.json(), None)
            return True
        expect_no_room(reply)
        return False

    def state(self, sent: Sent, wait: float = 0) -> State:
        reply = self.told.ask(sent, "GET", f"?wait={wait}")
        assert reply.status == 200, reply
        return self.told.note_status(sent, reply.json(), sent.ended)

    def states(self) -> dict[str, int]:
        return dict(Counter(self.state(sent).name.lower() for sent in self.told.sent.values()))

    def run_all(self, sent: list[Sent]) -> None:
        wait_until(lambda: all(self.state(each) == State.RUNNING for each in sent), "they run")

    def fill(self) -> Sent:
        """Until the server takes nothing more; answers what it refused."""
        self.disk.fill()
        for _ in range(REFUSED_AT_LAST):
            sent = self.prepare(waits=False, content=uuid.uuid4().bytes * 1000)
            if not self.admits(sent):
                return sent
        raise AssertionError("the disk did not fill up")

    def all_ends(self) -> dict[str, Row]:
        sent = self.told.sent.values()
        wait_until(lambda: all(self.state(each).is_terminal for each in sent), "what was admitted ends")
        return self.rows()

    def expect_all_true(self) -> None:
        """Everything has ended: what was said of it must be what happened."""
        rows, runs = self.all_ends(), self.runs.all()
        assert rows.keys() == self.told.sent.keys(), "lost, or from nowhere"
        for id, row in rows.items():
            sent = self.told.sent[id]
            expect_sound_runs(sent, row, runs.get(id, []))
            assert self.state(sent) == row.state
            reply = self.told.ask(sent, "GET", "/result")
            self.told.note_answer(sent, reply)
            reply = replace(reply, headers={**reply.headers, "x-request-id": id})
            self._expect_outcome(sent, row, runs.get(id, []), reply)
            expect_audit(self.told, sent, row)

    def _expect_outcome(self, sent: Sent, row: Row, runs: list[Run], reply: Reply) -> None:
        if row.state == State.CANCELLED:
            reply.error(409, "cancelled")
        elif row.state == State.FAILED:
            assert sent.id in self.large, (row, reply.body[:1000])
            assert "could not be stored" in reply.error(500, "engine")
            assert len(runs) == 1
        else:
            assert row.state == State.COMPLETED, row
            token, data_bytes, content = reply.result().value()
            assert (token, data_bytes) == (runs[-1].token, sent.data_bytes)
            assert content == token.encode() * (len(content) // 16)


def expect_no_room(reply: Reply) -> None:
    assert "no space is left on the disk" in reply.error(503, "busy")
    assert int(reply.headers["retry-after"]) > 0


def test_a_full_disk_refuses_and_all_goes_on_once_there_is_room(site: Site):
    running = [
        site.submitted(answer_bytes=12 << 20),
        site.submitted(answer_bytes=2 << 20),
        site.submitted(printed_bytes=6 << 20, output_limit_bytes=8 << 20),
        site.submitted(),
    ]
    site.large = {each.id for each in running[:3]}
    queued = [site.submitted(waits=False, priority=priority) for priority in (0, 0, 1, 2)]
    site.run_all(running)

    refused = [site.fill()]
    refused += [site.prepare(waits=False), site.prepare(waits=False)]
    expect_no_room(site.send(refused[1]))
    expect_no_room(site.send(refused[2], "/execute"))
    for each in refused:
        site.told.ask(each, "GET").error(404, "not_found")
    expect_readable(site)
    cancelling = [threading.Thread(target=cancel, args=(site, each)) for each in (queued[0], running[3])]
    for each in cancelling:
        each.start()
    site.gate.touch()
    for each in running + queued:
        began = time.monotonic()
        site.state(each, wait=0.5)
        assert time.monotonic() - began < AT_ONCE_S
    expect_readable(site)
    # RocksDB's own, which it has to get over by itself: it meets it as soon as answers are tried again.
    wait_until(lambda: "Background IO error" in site.server.log(), "RocksDB's background error")
    print(f"\nwhile it is full: {site.states()}, {site.disk.free_bytes} bytes are free")

    site.disk.empty()
    began = time.monotonic()
    wait_until(lambda: all(each.admitted or site.admits(each) for each in refused), "room", ROOM_PATIENCE_S)
    print(f"admitted again after {time.monotonic() - began:.1f} s")
    for each in cancelling:
        each.join(AT_ONCE_S)
        assert not each.is_alive()
    site.expect_all_true()
    print(f"in the end: {site.states()}")
    assert site.server.stop() == 0


def cancel(site: Site, sent: Sent) -> None:
    """Whatever it is told must be true in the end; that there is no room is an answer, too."""
    reply = site.told.ask(sent, "DELETE")
    if reply.status == 503:
        assert "no space is left on the disk" in reply.error(503, "busy")
    else:
        site.told.note_cancel(sent, reply)


def expect_readable(site: Site) -> None:
    began = time.monotonic()
    assert site.server.health()["status"] == "ok"
    assert b"kcoral_requests{" in site.server.request("GET", "/metrics").body
    for sent in site.told.sent.values():
        site.state(sent)
        assert site.told.ask(sent, "GET", "/audit").status == 200
        assert site.told.ask(sent, "GET", "/program").body == sent.program.document()
        assert site.told.ask(sent, "GET", "/output").status == 200
    listed = json.loads(site.server.request("GET", "/requests?limit=1000").body)["requests"]
    assert {each["request_id"] for each in listed} == site.told.sent.keys()
    assert time.monotonic() - began < AT_ONCE_S


def test_a_server_that_ends_and_starts_on_a_full_disk_loses_nothing(site: Site):
    running = [site.submitted(max_attempts=10) for _ in range(WORKERS)]
    site.submitted(waits=False)
    site.run_all(running)
    site.fill()
    site.server.kill()
    start_on_full_disk(site)
    if site.server.process.poll() is None:
        began = time.monotonic()
        site.server.stop()
        assert time.monotonic() - began < ROOM_PATIENCE_S
    site.disk.empty()
    site.start()
    site.run_all(running)
    site.fill()
    began = time.monotonic()
    site.server.stop()  # its programs do not end by themselves
    assert time.monotonic() - began < ROOM_PATIENCE_S
    site.disk.empty()
    site.gate.touch()
    site.start()
    site.expect_all_true()
    assert site.server.stop() == 0


def start_on_full_disk(site: Site) -> None:
    """It starts, or says why it cannot."""
    said = len(site.server.log())
    try:
        site.start()
    except AssertionError:
        assert site.server.process.wait(AT_ONCE_S) == 1
        assert "space" in site.server.log()[said:].splitlines()[-1], site.server.log()[said:]
        print(f"\nit does not start: {site.server.log()[said:]}")
    else:
        expect_readable(site)
        print(f"\nit starts: {site.states()}")
