"""The wall clock of a running server jumps a day forth and back, as an operator, NTP or a suspended machine makes it.

Only stamps may follow it: deadlines, long polls, waits in the queue and whoever waits for a worker go by the steady
clock. A request's own times never run backwards, durations are what they were, the history has everything and can be
paged through, and a server that starts with its clock set back takes up what an earlier one left.

The server and its executors get another clock from libfaketime, which leaves the steady one alone; the machine keeps
its own. (That a step forth does not age what is kept is tested at the store: `tests/unit/store/clock_step_test.cc`.)
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import tempfile
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Iterator

import pytest

import server_crash  # noqa: F401, which finds the harness
from harness import Program, Reply, Server, call, multipart, process, wait_until

LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
DAY_S = 86400
QUICK = "import time\ndef main():\n    return time.monotonic_ns()\n"
FOREVER = "import time\nwhile True:\n    time.sleep(0.01)\n"
SHORT_S = 20.0  # far from a day, on a busy machine too
TERMINAL = {"completed", "failed", "timed_out", "cancelled", "interrupted", "rejected"}


class SteppedServer(Server):
    """`ahead`: where its clock's lead over the machine's is written."""

    def __init__(self, directory: pathlib.Path, *flags: str):
        assert os.path.exists(LIBRARY), "libfaketime is missing: scripts/setup installs it"
        self.ahead = directory / "ahead"
        self.step_to(0)
        environment = {
            "LD_PRELOAD": LIBRARY,
            "FAKETIME_TIMESTAMP_FILE": str(self.ahead),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",
        }
        super().__init__(directory / "data", *flags, environment=environment)

    def step_to(self, ahead_s: int) -> None:
        """At one moment: nobody reads half of it."""
        new = self.ahead.with_suffix(".new")
        new.write_text(f"{ahead_s:+d}\n")
        new.chmod(0o644)
        new.rename(self.ahead)

    def send(self, program: Program, path: str = "/requests", **headers: str) -> Reply:
        content_type, body = multipart(program.document(), list(program.blobs.values()))
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", path, body, {"Content-Type": content_type, **sent})

    def submit(self, program: Program) -> str:
        reply = self.send(program)
        assert reply.status == 202, reply
        return reply.json()["request_id"]

    def status(self, id: str, wait_s: float = 0) -> dict:
        reply = self.request("GET", f"/requests/{id}?wait={wait_s}")
        assert reply.status == 200, reply
        return reply.json()

    def result(self, id: str) -> int:
        reply = self.request("GET", f"/requests/{id}/result")
        return replace(reply, headers={**reply.headers, "x-request-id": id}).result().value()

    def runs(self, id: str) -> None:
        wait_until(lambda: self.status(id)["state"] == "running", "it runs")

    def ended(self, id: str) -> dict:
        """Its status document, whose times and audit are sound."""
        document = self.status(id, wait_s=60)
        assert document["state"] in TERMINAL, document
        times = [document["submitted_at"], document["started_at"], document["finished_at"]]
        assert times == sorted(times), document
        assert 0 <= document["queue_ms"] < SHORT_S * 1000 and 0 <= document["elapsed_ms"] < SHORT_S * 1000, document
        records = json.loads(self.request("GET", f"/requests/{id}/audit").body)["records"]
        told = [record["at"] for record in records]
        assert told == sorted(told), records
        assert (records[0]["at"], records[-1]["at"] >= times[-1]) == (times[0], True), (records, document)
        return document

    def oldest_age_s(self) -> float:
        text = self.request("GET", "/metrics").body.decode()
        return float(re.search(r"^kcoral_queue_oldest_age_seconds (\S+)$", text, re.MULTILINE).group(1))


@pytest.fixture
def server() -> Iterator[SteppedServer]:
    """One worker, and a clock that can be stepped. Where executors, another user's processes, can read."""
    with tempfile.TemporaryDirectory(prefix="kcoral-clock-", dir="/var/tmp") as directory:
        os.chmod(directory, 0o755)
        server = SteppedServer(pathlib.Path(directory))
        server.start()
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.kill()
            remove_what_the_library_left()


def remove_what_the_library_left() -> None:
    """Of processes that have ended."""
    for path in pathlib.Path("/dev/shm").glob("*faketime_s*_*"):
        if process(int(path.name.rpartition("_")[2])) is None:
            path.unlink(missing_ok=True)


def forever(**options) -> Program:
    program = Program(options=options or None)
    program.module(FOREVER)
    return program


def timed(call, *arguments, **more) -> tuple[float, object]:
    """How long it took by the steady clock, and what it answered."""
    began = time.monotonic()
    answer = call(*arguments, **more)
    return time.monotonic() - began, answer


@pytest.mark.parametrize("steps_s", [(DAY_S,), (-DAY_S,), (DAY_S, -DAY_S, 0)], ids=["forth", "back", "forth and back"])
def test_what_runs_and_what_waits_notices_nothing(server: SteppedServer, steps_s: tuple[int, ...]):
    began = time.monotonic()
    running = server.submit(forever(timeout_seconds=3))
    server.runs(running)
    queued = [server.submit(call(QUICK)) for _ in range(2)]
    with ThreadPoolExecutor() as clients:
        to_its_end = [clients.submit(timed, server.status, id, wait_s=60) for id in (running, queued[-1])]
        short = clients.submit(timed, server.status, running, wait_s=1)
        executed = clients.submit(server.send, call(QUICK), "/execute")
        wait_until(lambda: server.health()["load"]["requests_waiting"] == 3, "all of them wait")
        for step_s in steps_s:
            server.step_to(step_s)
            assert server.oldest_age_s() < SHORT_S
        expect_short_poll(short)
        assert server.ended(running)["state"] == "timed_out"
        assert 3 <= time.monotonic() - began < SHORT_S
        assert server.status(running)["elapsed_ms"] >= 3000
        for id in queued:
            assert server.ended(id)["state"] == "completed"
        assert executed.result().result().status == "COMPLETED"
        for took_s, document in (poll.result() for poll in to_its_end):
            assert document["state"] in TERMINAL and took_s < SHORT_S
    assert server.stop() == 0


def expect_short_poll(poll: Future) -> None:
    took_s, document = poll.result()
    assert document["state"] == "running"
    assert 1 <= took_s < 3, "as long as it was to wait, and hardly longer"


def test_the_history_has_everything_and_can_be_paged_through(server: SteppedServer):
    sent = []
    for ahead_s in (0, DAY_S, -DAY_S, 0, 40 * DAY_S, 0):
        server.step_to(ahead_s)
        for _ in range(2):
            sent.append(server.submit(call(QUICK)))
        for id in sent[-2:]:
            server.ended(id)
    listed, cursor = [], ""
    while cursor is not None:
        page = json.loads(server.request("GET", f"/requests?limit=5{cursor and '&cursor=' + cursor}").body)
        listed += page["requests"]
        cursor = page["next_cursor"]
    assert sorted(each["request_id"] for each in listed) == sorted(sent)
    stamps = [each["submitted_at"] for each in listed]
    assert stamps == sorted(stamps, reverse=True)
    since = stamps[3]  # the two of 40 days ahead, the two of a day, and no others
    found = json.loads(server.request("GET", f"/requests?since={since}").body)["requests"]
    assert {each["request_id"] for each in found} == {sent[2], sent[3], sent[8], sent[9]}
    assert server.stop() == 0


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S], ids=["back", "forth"])
def test_a_server_that_starts_with_another_clock_takes_up_what_was_left(server: SteppedServer, step_s: int):
    running = server.submit(forever(max_attempts=2, timeout_seconds=2))
    server.runs(running)
    queued = [server.submit(call(QUICK)) for _ in range(3)]
    server.kill()
    server.step_to(step_s)
    server.start()
    documents = {id: server.status(id, wait_s=60) for id in [running, *queued]}
    assert [documents[id]["state"] for id in [running, *queued]] == ["timed_out", *["completed"] * 3]
    assert documents[running]["attempt"] == 2
    for document in documents.values():
        times = [document["submitted_at"], document["started_at"], document["finished_at"]]
        assert times == sorted(times), document
        assert 0 <= document["queue_ms"] and 0 <= document["elapsed_ms"] < SHORT_S * 1000, document
    starts = [server.result(id) for id in queued]
    assert starts == sorted(starts), "in the order of their submission"
    again = str(uuid.uuid4())
    assert server.send(call(QUICK), "/execute", X_Request_ID=again).status == 200
    server.ended(again)
    assert server.stop() == 0
