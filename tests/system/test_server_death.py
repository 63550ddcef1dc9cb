"""Death of the server: kill -9 at random moments, while programs run and more wait, again and again on the same data.

What had been answered, what was admitted and what ran at that moment is told from outside: by the clients, by a copy of
the database as the dead server left it, and by /proc. KCORAL_DEATH_ROUNDS=50 is the full run; KCORAL_DEATH_SEED repeats
the programs and the draws of one, though no moment comes twice.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import random
import signal
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Callable, Iterator

import pytest

from harness import (
    PATIENCE_S,
    Process,
    Program,
    Reply,
    Server,
    call,
    executors_of,
    family,
    process,
    processes,
    wait_until,
)
from rows import Row, State, rows_in, rows_left_by
from test_lifecycle import QUICK

ROUNDS = int(os.environ.get("KCORAL_DEATH_ROUNDS", "4"))
SEED = int(os.environ.get("KCORAL_DEATH_SEED", random.SystemRandom().randrange(10**6)))

WORKERS = 10  # two cores have them ready within two seconds
PROGRAMS = 60  # of one round: ten run while fifty wait
SLEEP_SECONDS_MAX = 0.3
START_LOOKS_MAX = 150  # at the processes of a server that starts, each a few milliseconds
OLD_ANSWERS = 20  # of earlier rounds, asked for again in each


def may_become(before: Row, after: Row) -> bool:
    """Whether a start that came to nothing may have made this of it."""
    if before.state in (State.ASSIGNED, State.RUNNING):
        lost = State.QUEUED if before.attempt < before.max_attempts else State.INTERRUPTED
        return after.attempt == before.attempt and after.state in (before.state, lost)
    return after == before


@dataclass(frozen=True)
class Sent:
    """A program under an id of its own. Every fifth raises; the others return what they were sent, backwards."""

    id: str
    number: int
    data: bytes
    program: Program

    @property
    def outcome(self) -> State:
        return State.FAILED if self.number % 5 == 0 else State.COMPLETED

    def expect(self, reply: Reply) -> None:
        assert reply.status == 200, reply.body[:1000]
        result = reply.result()
        assert result.stdout == f"{self.number}\n"
        if self.outcome == State.COMPLETED:
            assert result.value() == [self.number, self.data[::-1]]
        else:
            assert (result.error["kind"], result.error["message"]) == ("runtime", str(self.number))


def drawn(draw: random.Random) -> Sent:
    source = (
        "import time\n"
        "def main(number, seconds, data):\n"
        "    print(number)\n"
        "    time.sleep(seconds)\n"
        "    if number % 5 == 0: raise ValueError(number)\n"
        "    return [number, data[::-1]]\n"
    )
    number, data = draw.randrange(10**9), draw.randbytes(draw.randrange(50_000))
    program = Program(options={"max_attempts": draw.choice((1, 1, 2))})
    content = program.add("upload", kind="bytes", id="data", blob=program.blob(data))
    arguments = [number, draw.uniform(0, SLEEP_SECONDS_MAX), content]
    program.give("value", program.call(program.module(source), "main", arguments))
    return Sent(str(uuid.UUID(int=draw.getrandbits(128), version=4)), number, data, program)


def user_namespace(pid: int | str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/user")
    except OSError:
        return None


class Killed:
    """Kills a server and knows what was below it, also what was forked there in the very last moment."""

    def __init__(self, server: Server):
        below = family(server.pid)
        self.identities = {(each.pid, each.started) for each in below}
        self.namespaces = {user_namespace(each.pid) for each in below} - {None, user_namespace("self")}
        os.kill(server.pid, signal.SIGKILL)

    def still_running(self, next_server: Server) -> list[Process]:
        # What is younger may be in a new namespace that was given the number of an old one.
        oldest = process(next_server.pid).started

        def is_old(each: Process) -> bool:
            is_forked = each.started < oldest and user_namespace(each.pid) in self.namespaces
            return is_forked or (each.pid, each.started) in self.identities

        return [each for each in processes() if each.state not in "ZX" and is_old(each)]


class Trial:
    """Servers that live and die on one data directory, and all that was ever said about its requests."""

    def __init__(self, server: Server, draw: random.Random):
        self.server = server
        self.draw = draw
        self.sent: dict[str, Sent] = {}
        self.answers: dict[str, Reply] = {}
        self.ended: dict[str, Row] = {}

    def post(self, sent: Sent) -> Reply:
        """Whatever was answered once must be answered again, byte for byte."""
        reply = self.server.post(sent.program, X_Request_ID=sent.id)
        first = self.answers.setdefault(sent.id, reply)
        assert (reply.status, reply.body) == (first.status, first.body), sent.id
        assert reply.headers["content-type"] == first.headers["content-type"]
        return reply

    def post_all(self, batch: list[Sent]) -> list[Reply]:
        with ThreadPoolExecutor(PROGRAMS) as clients:
            return list(clients.map(self.post, batch))

    def round(self, dies_again: bool) -> None:
        batch = [drawn(self.draw) for _ in range(PROGRAMS)]
        self.sent.update({sent.id: sent for sent in batch})
        killed = [self.die_under(batch)]
        left = self.look_at_what_is_left()
        assert [id for id in self.answers if id not in left or not left[id].state.is_terminal] == []
        if dies_again:
            killed.append(self.die_at_the_start())
            before, left = left, self.look_at_what_is_left()
            assert left.keys() == before.keys()
            assert [id for id in left if not may_become(before[id], left[id])] == []

        self.server.start()
        assert [each for one in killed for each in one.still_running(self.server)] == []
        now = wait_until(self.rows_if_all_ended, "what was admitted ends, whether or not somebody asks")
        assert now.keys() == left.keys()
        for id, row in left.items():
            self.expect_end(self.sent[id], row, now[id])
        for sent, reply in zip(batch, self.post_all(batch), strict=True):
            self.expect_answer(sent, now.get(sent.id), reply)
        self.ended = self.rows_if_all_ended()
        assert self.ended and self.ended.keys() == self.sent.keys()
        self.post_all(self.draw.sample(list(self.sent.values()), OLD_ANSWERS))
        self.tell(batch, left)

    def die_under(self, batch: list[Sent]) -> Killed:
        """Sends the programs and kills the server after some number of answers, or of admissions."""
        answered = threading.Semaphore(0)

        def client(sent: Sent) -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.post(sent)
                answered.release()

        with ThreadPoolExecutor(PROGRAMS) as clients:
            posts = [clients.submit(client, sent) for sent in batch]
            wanted, before = self.draw.randrange(1, PROGRAMS), len(self.answers)
            if self.draw.random() < 0.5:
                for _ in range(wanted):
                    assert answered.acquire(timeout=PATIENCE_S)
            else:
                wait_until(lambda: self.unfinished() + len(self.answers) - before >= wanted, "programs are admitted")
            # Some calls later, so that not every death comes right after an answer.
            for _ in range(self.draw.randrange(10)):
                self.server.health()
            killed = Killed(self.server)
            self.server.kill()
        for post in posts:
            post.result()
        return killed

    def die_at_the_start(self) -> Killed:
        """Starts it and kills it before it is ready: some looks later, at the latest when its executors start."""
        self.server.process = None
        looks = self.draw.randrange(START_LOOKS_MAX)

        def kill() -> Killed:
            wait_until(lambda: self.server.process, "the process starts")
            for _ in range(looks):
                if len(family(self.server.pid)) > WORKERS:
                    break
            return Killed(self.server)

        with ThreadPoolExecutor(1) as killer:
            killing = killer.submit(kill)
            with contextlib.suppress(AssertionError):
                self.server.start()
            killed = killing.result()
        self.server.kill()
        return killed

    def look_at_what_is_left(self) -> dict[str, Row]:
        rows = rows_left_by(self.server)
        assert {id: rows.get(id) for id in self.ended} == self.ended, "what has ended never changes"
        assert rows.keys() <= self.sent.keys()
        assert all(row.attempt <= row.max_attempts for row in rows.values())
        return rows

    def unfinished(self) -> int:
        load = self.server.health()["load"]
        return load["requests_in_progress"] + load["requests_waiting"]

    def rows_if_all_ended(self) -> dict[str, Row] | None:
        rows = rows_in(self.server.data_dir / "queue.sqlite3", "ro")
        return rows if all(row.state.is_terminal for row in rows.values()) else None

    def expect_end(self, sent: Sent, left: Row, now: Row) -> None:
        """What must have become of a request that the dead server left."""
        if left.state.is_terminal:
            assert now == left
        elif left.state == State.QUEUED or left.attempt < left.max_attempts:
            assert (now.state, now.attempt) == (sent.outcome, left.attempt + 1), (left, now)
        else:
            assert (now.state, now.attempt) == (State.INTERRUPTED, left.attempt), (left, now)

    def expect_answer(self, sent: Sent, row: Row | None, reply: Reply) -> None:
        """`row`: none of a request that came to be admitted only now."""
        if row and row.state == State.INTERRUPTED:
            assert "the server ended while it ran" in reply.error(500, "engine")
        else:
            sent.expect(reply)

    def tell(self, batch: list[Sent], left: dict[str, Row]) -> None:
        states = [left[sent.id].state.name.lower() if sent.id in left else "unknown" for sent in batch]
        print("killed with", ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items())))


@pytest.fixture
def new_server(data_dir) -> Iterator[Callable[..., Server]]:
    """Makes servers on one data directory; what a failed test leaves of them is killed."""
    made: list[Server] = []

    def make(*flags: str) -> Server:
        made.append(Server(data_dir, *flags))
        return made[-1]

    yield make
    for server in made:
        if server.process and server.process.poll() is None:
            server.kill()


@pytest.mark.parametrize(
    "rounds, flags",
    [(ROUNDS, ()), (max(1, ROUNDS // 5), ("--max-requests-per-worker", "50"))],
    ids=["fresh", "reused"],
)
def test_after_kill_9_at_any_moment_nothing_is_lost_doubled_or_changed(new_server, rounds, flags):
    print(f"\n{rounds} rounds, KCORAL_DEATH_SEED={SEED}")
    trial = Trial(new_server("--num-workers", str(WORKERS), *flags).start(), random.Random(SEED))
    for number in range(rounds):
        trial.round(dies_again=number % 3 == 1)
    trial.post_all(list(trial.sent.values()))
    assert trial.server.stop() == 0
    assert rows_left_by(trial.server) == trial.ended


def test_nothing_starts_before_every_executor_of_the_dead_server_is_gone(new_server):
    """Also when that takes long: here one is stopped, and cannot notice that its server has died."""
    server = new_server().start()
    ids = {"running": str(uuid.uuid4()), "queued": str(uuid.uuid4())}
    endless = call("import time\ndef main():\n    time.sleep(600)\n")
    with ThreadPoolExecutor(2) as clients:
        posts = [clients.submit(server.post, endless, X_Request_ID=ids["running"])]
        wait_until(lambda: server.health()["load"]["requests_in_progress"] == 1, "the program runs")
        posts.append(clients.submit(server.post, QUICK, X_Request_ID=ids["queued"]))
        wait_until(lambda: server.health()["load"]["requests_waiting"] == 1, "the other one waits")
        (executor,) = executors_of(server.data_dir)
        os.kill(executor, signal.SIGSTOP)
        killed = Killed(server)
        server.kill()
        assert all(isinstance(post.exception(), (OSError, http.client.HTTPException)) for post in posts)
    left = rows_left_by(server)
    assert left[ids["running"]].state in (State.ASSIGNED, State.RUNNING) and left[ids["queued"]].state == State.QUEUED

    again = new_server()
    with ThreadPoolExecutor(1) as starter:
        starting = starter.submit(again.start)
        try:
            wait_until(lambda: "waiting for an executor of an earlier server" in again.log(), "it waits")
            assert executor in [each.pid for each in killed.still_running(again)]
            assert family(again.pid) == [] and not starting.done()
            assert rows_left_by(again) == left
        finally:
            os.kill(executor, signal.SIGCONT)
        starting.result()
    assert killed.still_running(again) == []
    assert again.post(QUICK, X_Request_ID=ids["queued"]).result().value() == 42
    assert "the server ended while it ran" in again.post(endless, X_Request_ID=ids["running"]).error(500, "engine")
    assert again.stop() == 0
