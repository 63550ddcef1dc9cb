"""64 submitters, 64 pollers and 8 cancellers on one server for a minute: nobody is forgotten, and nothing runs twice.

    python3 tests/fault/crowd_minute.py --seconds 60 --seed 7

Submitters send programs of all lengths, priorities and clients, by both paths, some of them twice at once, and go on
once theirs has ended: so the queue is short, and what is measured is the server and not a backlog. Pollers long-poll,
several at one request, and fetch the outcome; cancellers cancel. Each program says that it runs, in a FIFO outside its
sandbox.

What must hold: only the contract's own answers are seen, and no 5xx; a request has one outcome, for everybody who asks;
it ran at most once, exactly once if it completed, and never where it was cancelled while it was queued; the history has
exactly what was admitted. A long poll that could have told of an end is answered with it, not when its own wait is
over, and on the median within 50 ms of the end: from the time that the row gives it, which is before its commit, to the
last byte of the answer. How late the clients themselves came to their turns is printed beside that.

The crowd is spread over some processes with an event loop each: threads of one process would measure their common lock.
The seed repeats the choices; what the machine makes of them differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import pathlib
import random
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

from accounts import expect_end  # noqa: E402
from asking import Answered, Asking  # noqa: E402
from harness import PATIENCE_S, Reply, multipart, running_server  # noqa: E402
from rows import Row, State, rows_in  # noqa: E402
from runs import Run, noted_runs, noting_program  # noqa: E402
from told import Sent, Told, Violation, promise  # noqa: E402

PROCESSES = 4
SUBMITTERS, POLLERS, CANCELLERS = 64, 64, 8
WORKERS = 4
MEDIAN_MS_MAX = 50  # from an end to the answer that tells of it
# An answer that came as late as that after the end of a request, when the client's own wait was over, woke nobody.
LOST_S = 0.25
THINKING_S = 1.0  # of a submitter between two programs, on the average
LONGEST_POLL_S = 60
LAG_EVERY_S = 0.02


class Poll(NamedTuple):
    """A long poll and its answer. Times are the wall clock's."""

    id: str
    asked: float
    wait_s: float
    answered: float
    finished: float | None  # as the answer has it

    @property
    def is_over(self) -> bool:
        return self.answered >= self.asked + self.wait_s

    @property
    def late_s(self) -> float:
        return self.answered - max(self.asked, self.finished)

    @property
    def was_woken(self) -> bool:
        return self.finished is not None and self.finished > self.asked


@dataclass
class Seen:
    """What the members of one process saw."""

    sent: dict[str, Sent] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    answers: Counter = field(default_factory=Counter)  # by call and status
    lags_s: list[float] = field(default_factory=list)  # how late the process itself was


def seconds_of(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


class Members:
    """Those of one process."""

    def __init__(self, port: int, log: pathlib.Path, seed: str, seconds: float):
        self._port = port
        self._log = log
        self._draw = random.Random(seed)
        self._end = time.monotonic() + seconds
        self._told = Told()
        self._seen = Seen(sent=self._told.sent)
        self._to_poll: asyncio.Queue[Sent | None] = asyncio.Queue()
        self._to_cancel: asyncio.Queue[Sent | None] = asyncio.Queue()
        self._ends: dict[str, asyncio.Event] = {}

    async def run(self) -> Seen:
        lagging = asyncio.create_task(self._measure_lag())
        submitters = [self._submits(self._fork_draw()) for _ in range(SUBMITTERS // PROCESSES)]
        pollers = [self._polls(self._fork_draw()) for _ in range(POLLERS // PROCESSES)]
        cancellers = [self._cancels(self._fork_draw()) for _ in range(CANCELLERS // PROCESSES)]
        everybody = asyncio.gather(*pollers, *cancellers)
        submitting = asyncio.gather(*submitters)
        await asyncio.wait([everybody, submitting], return_when=asyncio.FIRST_COMPLETED)  # whoever fails ends it all
        if submitting.done():
            await submitting
            for queue, members in ((self._to_poll, pollers), (self._to_cancel, cancellers)):
                for _ in members:
                    queue.put_nowait(None)
        await everybody
        lagging.cancel()
        return self._seen

    def _fork_draw(self) -> random.Random:
        return random.Random(self._draw.getrandbits(64))

    async def _measure_lag(self) -> None:
        while True:
            due = time.monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            self._seen.lags_s.append(time.monotonic() - due)

    async def _ask(self, client: Asking, call: str, *allowed: int, path: str, **more) -> Answered:
        try:
            async with asyncio.timeout(LONGEST_POLL_S + PATIENCE_S):
                answered = await client.ask(call.split()[0], path, **more)
        except TimeoutError:
            raise Violation(f"{call}, as {path} {more.get('X_Request_ID', '')}: no answer") from None
        status = answered.reply.status
        self._seen.answers[f"{call}: {status}"] += 1
        promise(status in allowed, f"{call} {path}: {status} {answered.reply.body[:500]!r}")
        return answered

    # --- submitters ---

    async def _submits(self, draw: random.Random) -> None:
        clients = [Asking(self._port), Asking(self._port)]
        while time.monotonic() < self._end:
            await asyncio.sleep(min(draw.expovariate(1 / THINKING_S), self._end - time.monotonic()))
            sent, paths = self._program(draw)
            self._ends[sent.id] = asyncio.Event()
            if sent.synchronous:  # whose admission nobody is told of
                self._announce(sent, draw)
            await asyncio.gather(*(self._send(client, sent, path) for client, path in zip(clients, paths)))
            if not sent.synchronous:
                self._announce(sent, draw)
            await self._ends[sent.id].wait()

    def _program(self, draw: random.Random) -> tuple[Sent, tuple[str, ...]]:
        """And the paths by which it is sent: two of them at once now and then."""
        ways = {("/requests",): 12, ("/execute",): 4, ("/requests", "/requests"): 2, ("/requests", "/execute"): 1}
        paths = draw.choices(list(ways), list(ways.values()))[0]
        id = str(uuid.UUID(int=draw.getrandbits(128), version=4))
        content = draw.randbytes(draw.choice((0, 0, 100, 40_000)))
        program = noting_program(
            id,
            self._log,
            seconds=draw.choice((0, 0, 0, 0.01, 0.05, 0.1, 0.4)),
            answer_bytes=draw.choice((0, 0, 100, 60_000)),
            fails=draw.random() < 0.1,
            content=content,
            priority=draw.choice((-1, 0, 0, 0, 5)),
            max_attempts=draw.randint(1, 3),
        )
        return self._told.remember(Sent(id, 0, program, len(content), synchronous="/requests" not in paths)), paths

    async def _send(self, client: Asking, sent: Sent, path: str) -> None:
        content_type, body = multipart(sent.program.document(), list(sent.program.blobs.values()))
        headers = {
            "Content_Type": content_type,
            "X_Request_ID": sent.id,
            "X_KCoral_Client": f"client {int(sent.id[:8], 16) % 8}",
        }
        call = f"POST {path}"
        if path == "/execute":
            reply = (await self._ask(client, call, 200, 409, path=path, body=body, **headers)).reply
            if reply.status == 409:
                reply.error(409, "cancelled")
            self._told.note_answer(sent, reply)
        else:
            reply = (await self._ask(client, call, 202, path=path, body=body, **headers)).reply
            self._told.note_status(sent, reply.json(), None)

    def _announce(self, sent: Sent, draw: random.Random) -> None:
        for _ in range(draw.randint(1, 8)):
            self._to_poll.put_nowait(sent)
        if draw.random() < 0.2:
            self._to_cancel.put_nowait(sent)

    # --- pollers ---

    async def _polls(self, draw: random.Random) -> None:
        client = Asking(self._port)
        while sent := await self._to_poll.get():
            while not await self._poll(client, sent, draw.choice((0.05, 0.5, 10, LONGEST_POLL_S))):
                pass
            self._ends[sent.id].set()
            reply = (await self._ask(client, "GET /result", 200, 409, path=f"/requests/{sent.id}/result")).reply
            if reply.status == 409:
                reply = Reply(reply.status, {**reply.headers, "x-request-id": sent.id}, reply.body)
                reply.error(409, "cancelled")
            self._told.note_answer(sent, reply)

    async def _poll(self, client: Asking, sent: Sent, wait_s: float) -> bool:
        """True once it has ended."""
        before = sent.ended
        path = f"/requests/{sent.id}?wait={wait_s}"
        allowed = (200,) if sent.admitted else (200, 404)
        answered = await self._ask(client, "GET ?wait", *allowed, path=path)
        if answered.reply.status == 404:  # on its way
            await asyncio.sleep(0.005)
            return False
        document = answered.reply.json()
        state = self._told.note_status(sent, document, before)
        finished = seconds_of(document["finished_at"]) if document["finished_at"] else None
        self._seen.polls.append(Poll(sent.id, answered.asked, wait_s, answered.answered, finished))
        return state.is_terminal

    # --- cancellers ---

    async def _cancels(self, draw: random.Random) -> None:
        client = Asking(self._port)
        while sent := await self._to_cancel.get():
            if draw.random() < 0.5:
                await self._poll(client, sent, draw.uniform(0, 0.3))
            allowed = (200, 409) if sent.admitted else (200, 404, 409)
            reply = (await self._ask(client, "DELETE", *allowed, path=f"/requests/{sent.id}")).reply
            if reply.status == 404:
                self._to_cancel.put_nowait(sent)
                await asyncio.sleep(0.005)
            else:
                self._told.note_cancel(sent, reply)


def run_members(*arguments) -> Seen:
    return asyncio.run(Members(*arguments).run())


class Report(NamedTuple):
    states: Counter
    answers: Counter
    woken_ms: list[float]  # from an end to the answer, where the end came during the poll; sorted
    lags_ms: list[float]  # sorted
    waited_s: float  # in all long polls
    lost: list[Poll]

    @property
    def median_ms(self) -> float:
        return percentile(self.woken_ms, 50)


def percentile(sorted_values: list[float], percent: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * percent / 100))]


def crowd_minute(seconds: float, seed: int) -> Report:
    """Raises what was violated."""
    with noted_runs() as runs:
        with running_server("--num-workers", str(WORKERS), "--expose", str(runs.path.parent)) as server:
            told = Told()
            told.server = server
            with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("fork")) as processes:
                members = [
                    processes.submit(run_members, server.port, runs.path, f"{seed}/{number}", seconds)
                    for number in range(PROCESSES)
                ]
                seen = [member.result() for member in members]
            for each in seen:
                told.sent.update(each.sent)
            return look_back(told, seen, runs.all())


def look_back(told: Told, seen: list[Seen], runs: dict[str, list[Run]]) -> Report:
    """All accounts, once everything has ended."""
    rows = rows_in(told.server.data_dir / "queue.sqlite3", "ro")
    promise(rows.keys() == told.sent.keys(), "requests were lost, or came from nowhere")
    promise(runs.keys() <= rows.keys(), "ran without being admitted")
    for id, row in rows.items():
        expect_single_run(told, told.sent[id], row, runs.get(id, []))
    expect_whole_history(told)
    polls = [poll for each in seen for poll in each.polls]
    return Report(
        states=Counter(row.state.name.lower() for row in rows.values()),
        answers=sum((each.answers for each in seen), Counter()),
        woken_ms=sorted(poll.late_s * 1000 for poll in polls if poll.was_woken),
        lags_ms=sorted(lag * 1000 for each in seen for lag in each.lags_s),
        waited_s=sum(poll.answered - poll.asked for poll in polls),
        lost=[poll for poll in polls if is_lost(poll, rows[poll.id])],
    )


def expect_single_run(told: Told, sent: Sent, row: Row, runs: list[Run]) -> None:
    promise(row.state.is_terminal and row.attempt <= 1, f"{sent.id}: {row}")
    if row.state != State.CANCELLED:
        promise(len(runs) == 1, f"{sent.id}: {row} ran as {runs}")
    elif row.attempt == 0:
        promise(not runs, f"{sent.id}: cancelled while it was queued, and ran: {runs}")
    expect_end(told, sent, row, runs)


def expect_whole_history(told: Told) -> None:
    listed, cursor = [], ""
    while cursor is not None:
        page = json.loads(told.server.request("GET", f"/requests?limit=100{cursor and '&cursor=' + cursor}").body)
        listed += [document["request_id"] for document in page["requests"]]
        cursor = page["next_cursor"]
    promise(len(listed) == len(set(listed)), "the history has a request twice")
    promise(set(listed) == told.sent.keys(), "the history has not exactly what was admitted")


def is_lost(poll: Poll, row: Row) -> bool:
    """Whether it was answered because its wait was over, with the end there for long, and while it waited."""
    promise(poll.finished is not None or poll.is_over, f"answered early, and with nothing: {poll}")
    return poll.is_over and poll.asked + poll.wait_s - max(poll.asked, row.finished_us / 1e6) > LOST_S


def show(report: Report, seconds: float) -> None:
    print(f"{report.states.total()} requests: {dict(sorted(report.states.items()))}")
    print(f"answers: {dict(sorted(report.answers.items()))}, {report.answers.total() / seconds:.0f} a second")
    print(f"on the average {report.waited_s / seconds:.0f} pollers waited")
    for what, values in (("from an end to its poller", report.woken_ms), ("the clients' own lag", report.lags_ms)):
        figures = ", ".join(f"p{percent} {percentile(values, percent):.1f}" for percent in (50, 90, 99))
        print(f"{what}, ms: {figures}, max {values[-1]:.1f} ({len(values)} samples)", flush=True)


def check(report: Report) -> None:
    promise(not report.lost, f"woken by nothing but their own wait: {report.lost}")
    promise(report.median_ms <= MEDIAN_MS_MAX, f"on the median {report.median_ms:.1f} ms from an end to its poller")


def main() -> int:
    parser = argparse.ArgumentParser(description="A crowd of clients, and what each of them was promised.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    print(f"{arguments.seconds:g} s, seed {arguments.seed}, load {os.getloadavg()[0]:.1f} before", flush=True)
    report = crowd_minute(arguments.seconds, arguments.seed)
    show(report, arguments.seconds)
    check(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
