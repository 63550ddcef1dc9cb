"""Servers that are killed at named points, under clients of every kind, on one data directory; and what was promised.

A round: a server that is to die at one failpoint (`base/failpoint.h`), clients that send, send again, cancel and ask,
and executors that are killed now and then. When the server is dead, the rows that it left, all that clients were told
and all that executors really ran (each program says so in a FIFO outside, first of all) must fit together. A server
without such an end is started then, and once everything has ended they must fit again, byte for byte.

    python3 tests/fault/server_crash.py --rounds 500 --seed 7
    python3 tests/fault/server_crash.py --rounds 500 --seed 7 --power-loss

With --power-loss the machine goes with the server: what the server had not synced is lost, or all but a part of it
(`power_loss.py`). All promises are the same: what clients were told holds, and whatever ran stands in the rows. Now and
then only the server dies, and the machine later on, so that the next one must not rely on what was left to it unsynced.

In the end of a round nothing may be left of what the server had started.

The seed repeats the choices: points, programs, and who is killed when; what the clients' threads make of them differs.
The first round with a violation ends the run, and its directory stays.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Iterator, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

from accounts import expect_end, expect_sound_runs  # noqa: E402
from crowd import Crowd  # noqa: E402
from harness import KCORAL, PATIENCE_S, Server, executors_of, sandboxes_with, wait_until  # noqa: E402
from power_loss import Disk  # noqa: E402
from rows import Row, rows_in, rows_left_by  # noqa: E402
from runs import Run, Runs  # noqa: E402
from told import Sent, Told, Violation, promise  # noqa: E402

WORKERS = 3
ROUNDS_OF_A_DIRECTORY = 100  # history accumulates, and the disk has its bounds
POINT_PATIENCE_S = 3.0  # then the server is killed wherever it is
EXECUTOR_POINT_S = 1.0  # while executors die at theirs
OLD_ONES = 10  # requests of earlier rounds, looked at again in each
KILLS_WITHOUT_LOSS = 0.25  # of all deaths, where power is lost at the others
RETENTION_FLAG = "--artifact-capacity-bytes"


@dataclass
class Plan:
    """What a round is to be."""

    number: int
    point: str | None
    nth: int
    draw: random.Random
    is_heavy: bool  # large blobs and answers
    kills_executors: bool
    at_start: bool  # the server that is to die starts on what another one left
    prunes: bool  # old outcomes go meanwhile

    @property
    def is_about_loss(self) -> bool:
        return self.point is None or self.point.startswith(("scheduler.loss.", "store.requeue."))

    @property
    def is_of_executors(self) -> bool:
        return self.point is not None and self.point.startswith("executor.")

    @property
    def setting(self) -> str:
        return f"{self.point}:{self.nth}" if self.point else "note"


def known_points() -> list[str]:
    """The server's own table."""
    with tempfile.TemporaryDirectory() as directory:
        command = [str(KCORAL), "server", "--device", "cpu", "--data-dir", directory + "/data", "--port", "0"]
        asked = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "KCORAL_FAILPOINT": "?"})
    found = re.search(r'there is no "\?"; there are: (.+)', asked.stderr)
    assert asked.returncode == 1 and found, asked
    return found.group(1).split()


def can_prune() -> bool:
    return RETENTION_FLAG in subprocess.run([str(KCORAL), "server", "--help"], capture_output=True, text=True).stdout


@dataclass
class PowerLoss:
    """That power is lost, and what is lost with it.

    `lies`: syncs of paths with this text in them do nothing, so that there are violations.
    """

    seed: int
    lies: str = ""


class Trial:
    """Rounds on one data directory."""

    def __init__(self, directory: pathlib.Path, power_loss: PowerLoss | None):
        self.directory = directory
        self.power_loss = power_loss
        self.disk = Disk(directory / "data", directory / "power") if power_loss else None
        outside = directory / "outside"
        outside.mkdir()
        for path in (directory, outside):
            path.chmod(0o755)
        self.runs = Runs(outside)
        self.told = Told()
        self.ended: dict[str, Row] = {}
        self.passed: set[str] = set()
        self.killed: Counter[str] = Counter()
        self._ended_runs: dict[str, list[Run]] = {}
        self.copy = directory / "copy"
        self._log_read = 0
        self.lost: list[str] = []  # of this round

    @property
    def server(self) -> Server:
        return self.told.server

    def _new_server(self, plan: Plan | None) -> Server:
        flags = ["--num-workers", str(WORKERS), "--expose", str(self.runs.path.parent)]
        if plan and plan.prunes:
            flags += [RETENTION_FLAG, str(1 << 20)]
        environment = {"KCORAL_FAILPOINT": plan.setting if plan else "note"}
        if self.disk:
            environment |= self.disk.environment(self.power_loss.lies)
        return Server(self.directory / "data", *flags, environment=environment)

    def close(self) -> None:
        if self.server and self.server.process and self.server.process.poll() is None:
            self.server.kill()
        self.runs.close()

    def _after_death(self, number: int, when: str) -> None:
        """Everything of it ends, and its machine may have gone with it."""
        wait_until(lambda: not executors_of(self.server.data_dir), "its executors end")
        wait_until(lambda: not sandboxes_with(self.runs.path.parent), "the sandboxes of its executors end")
        if not self.disk:
            return
        draw = random.Random(f"{self.power_loss.seed}/{number}/{when}")
        if draw.random() >= KILLS_WITHOUT_LOSS:
            self.lost.append(self.disk.lose(draw))

    # --- a round ---

    def round(self, plan: Plan) -> str:
        begun = time.monotonic()
        self.lost.clear()
        if plan.at_start:
            self._lives(replace(plan, point=None, prunes=False), plan.draw.uniform(0.05, 0.6))
            self._after_death(plan.number, "before")
            self._look_at_what_is_left()
        self.told.is_pruning = plan.prunes
        was_killed = self._lives(plan, EXECUTOR_POINT_S if plan.is_of_executors else POINT_PATIENCE_S)
        if plan.prunes:
            self.told.prunable |= self.told.sent.keys()
        self.told.is_pruning = False
        life_s = time.monotonic() - begun
        self._after_death(plan.number, "meanwhile")
        left = self._look_at_what_is_left()
        self._look_at_the_copy(left)
        now = self._restart_and_look(plan, left)
        for sent in self.told.sent.values():
            sent.beginning = b""
            sent.program.blobs.clear()
        mine = [sent for sent in self.told.sent.values() if sent.number == plan.number]
        states = Counter(now[sent.id].state.name.lower() if sent.id in now else "unknown" for sent in mine)
        where = " at the start" if plan.at_start else ""
        how = "died there" if was_killed else "killed"
        return (
            f"{plan.setting}{where}: {how} after {life_s:.1f} s, all in {time.monotonic() - begun:.1f} s; "
            f"{len(mine)} sent: {dict(sorted(states.items()))}" + "".join(f"; {each}" for each in self.lost)
        )

    def _lives(self, plan: Plan, life_s: float) -> bool:
        """A server, from its start to its death; true if it died at the plan's point."""
        self.told.server = self._new_server(plan)
        try:
            self.server.start()
        except AssertionError:
            self.server.process.wait(PATIENCE_S)
        else:
            crowd = Crowd(self.told, plan.draw, plan.number, self.runs.path, plan.is_heavy, self.copy)
            crowd.start()
            if plan.kills_executors:
                self._kill_executors(plan)
            try:
                self.server.process.wait(life_s)
            except subprocess.TimeoutExpired:
                self.server.process.kill()
            self.server.process.wait()
            crowd.join()
        code = self.server.process.returncode
        promise(code == -signal.SIGKILL, f"the server ended by itself, with {code}")
        self.server.process.stdout.close()
        return self._read_log(plan)

    def _kill_executors(self, plan: Plan) -> None:
        """While programs run, unless the server dies first."""
        with contextlib.suppress(OSError, HTTPException):
            wait_until(lambda: self.server.health()["load"]["requests_in_progress"], "programs run")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.process.wait(plan.draw.uniform(0, 0.3))
        held = executors_of(self.server.data_dir)
        count = len(held) if plan.is_about_loss else plan.draw.randint(0, len(held))
        for pid in plan.draw.sample(held, count):
            with contextlib.suppress(ProcessLookupError):
                self._kill_executor(pid)

    def _kill_executor(self, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            # It is still that one, and not another process by the same number.
            if pid in executors_of(self.server.data_dir):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)

    def _read_log(self, plan: Plan | None) -> bool:
        with open(self.server.log_path, "rb") as log:
            log.seek(self._log_read)
            text = log.read().decode(errors="replace")
            self._log_read = log.tell()
        for name, what in re.findall(r"^failpoint (\S+) (passed|kills)$", text, re.MULTILINE):
            self.passed.add(name)
            self.killed[name] += what == "kills"
        return plan is not None and f"failpoint {plan.point} kills" in text

    # --- what must hold ---

    def _look_at_what_is_left(self) -> dict[str, Row]:
        """The rows of a dead server, held against what clients were told and what ran."""
        rows = rows_left_by(self.server) if (self.server.data_dir / "queue.sqlite3").exists() else {}
        runs = self.runs.all()
        promise(rows.keys() <= self.told.sent.keys(), "there are requests that nobody sent")
        promise(runs.keys() <= rows.keys(), f"ran without being admitted: {runs.keys() - rows.keys()}")
        self._expect_ended_unchanged(rows)
        for sent in self.told.sent.values():
            row = rows.get(sent.id)
            promise(row or not sent.admitted, f"{sent.id}: admitted, and lost")
            promise(sent.answer is None or (row and row.state.is_terminal), f"{sent.id}: answered, and {row}")
            promise(sent.ended in (None, row and row.state), f"{sent.id}: ended as {sent.ended!r}, and {row}")
            if row:
                expect_sound_runs(sent, row, runs.get(sent.id, []))
        return rows

    def _look_at_the_copy(self, left: dict[str, Row]) -> None:
        """A backup that is there is whole, and knows nothing that the server did not know."""
        promise(not self.copy.with_name("copy.incomplete").exists(), "half a backup was left behind")
        if not self.copy.exists():
            return
        rows = rows_in(self.copy / "queue.sqlite3", "rw")
        promise(rows.keys() <= left.keys(), f"only the backup has {rows.keys() - left.keys()}")
        for id, row in rows.items():
            now = left[id]
            if now.answer_id is None:
                now = now._replace(answer_id=row.answer_id)
            promise(now == row or not row.state.is_terminal, f"{id}: in the backup {row}, and now {now}")

    def _expect_ended_unchanged(self, rows: dict[str, Row]) -> None:
        for id, before in self.ended.items():
            now = rows.get(id)
            if now and id in self.told.prunable and now.answer_id is None:
                now = now._replace(answer_id=before.answer_id)
            promise(now == before, f"{id}: had ended as {before}, and is {now}")

    def _restart_and_look(self, plan: Plan, left: dict[str, Row]) -> dict[str, Row]:
        self.told.server = self._new_server(None)
        self.server.start()
        mine = [sent for sent in self.told.sent.values() if sent.number == plan.number]
        again = [sent for sent in mine if sent.synchronous and not sent.answer]
        with ThreadPoolExecutor(8) as clients:
            list(clients.map(self.told.execute, again))
        rows = wait_until(self._rows_if_all_ended, "what was admitted ends")
        self._expect_idle()
        promise(left.keys() <= rows.keys() <= self.told.sent.keys(), "requests came or went")
        self._expect_ended_unchanged(rows)
        fresh = [id for id in rows if id not in self.ended]
        old = plan.draw.sample(sorted(self.ended), min(OLD_ONES, len(self.ended)))
        runs = self.runs.all()
        for id in fresh + old:
            self._expect_end(self.told.sent[id], rows[id], runs.get(id, []))
        for id in self.ended:
            promise(runs.get(id) == self._ended_runs.get(id), f"{id}: ran after it had ended")
        self.ended, self._ended_runs = rows, runs
        self.server.kill()
        self._read_log(None)
        self._after_death(plan.number, "after")
        return rows

    def look_at_all(self) -> None:
        """Everything that ever was, once more; and a server that ends in order."""
        self.told.server = self._new_server(None)
        self.server.start()
        runs = self.runs.all()
        for id, row in self._rows_if_all_ended().items():
            self._expect_end(self.told.sent[id], row, runs.get(id, []))
        promise(runs == self._ended_runs, "what had ended ran again")
        promise(self.server.stop() == 0, "the server did not end in order")
        self._read_log(None)

    def _expect_end(self, sent: Sent, row: Row, runs: list[Run]) -> None:
        try:
            expect_end(self.told, sent, row, runs)
        except Violation:
            raise
        except (AssertionError, LookupError) as error:  # an answer of another form, a list that has nothing in it
            raise Violation(f"{sent.id}: {row}, and what is told of it is amiss: {error!r}") from error

    def _rows_if_all_ended(self) -> dict[str, Row] | None:
        rows = rows_in(self.server.data_dir / "queue.sqlite3", "ro")
        return rows if all(row.state.is_terminal for row in rows.values()) else None

    def _expect_idle(self) -> None:
        def load() -> tuple[int, int]:
            counts = self.server.health()["load"]
            return counts["requests_in_progress"], counts["requests_waiting"]

        wait_until(lambda: load() == (0, 0), "/health says that nothing runs or waits")
        for state in ("queued", "assigned", "running"):
            page = json.loads(self.server.request("GET", f"/requests?state={state}").body)
            promise(page["requests"] == [], f"/requests?state={state}: {page}")


def passes_of(point: str | None) -> tuple[int, ...]:
    """At which pass through it a process may die: some points it passes only once or twice."""
    if point is None or point.startswith(("recovery.", "retention.", "scheduler.loss.")):
        return (1,)
    twice = ("store.requeue.", "store.answer.", "audit.", "content.", "gateway.cancel.", "backup.", "executor.")
    if point.startswith(twice):
        return (1, 2)
    return (1,) if point == "gateway.answer.half_sent" else (1, 1, 2, 3, 5, 8, 13, 21)


def plans(rounds: int, seed: int, points: list[str]) -> Iterator[Plan]:
    """Each point in turn, in an order of the seed's; the last round has none, and does all else."""
    order: list[str] = []
    for number in range(rounds):
        draw = random.Random(f"{seed}/{number}")
        if not order:
            order = draw.sample(points, len(points))
        point = order.pop() if number < rounds - 1 else None
        is_last = point is None
        is_of_large = not is_last and point.startswith(("content.", "retention.", "gateway.answer.half"))
        yield Plan(
            number=number,
            point=point,
            nth=draw.choice(passes_of(point)),
            draw=draw,
            is_heavy=is_last or is_of_large or number % 5 == 0,
            kills_executors=is_last or number % 4 == 1 or point.startswith(("scheduler.loss.", "store.requeue.")),
            at_start=not is_last and (number % 4 == 3 or point.startswith("recovery.")),
            prunes=any(each.startswith("retention.") for each in points) if is_last else point.startswith("retention."),
        )


class Report(NamedTuple):
    points: list[str]  # that this build can pass
    passed: set[str]
    killed: Counter[str]  # how often a process died there


def crash(rounds: int, seed: int, only: str | None = None, power_loss: PowerLoss | None = None) -> Report:
    """Prints each round; raises what was violated, and keeps the directory then unless a lie was to be found."""
    points = [point for point in known_points() if can_prune() or not point.startswith("retention.")]
    assert only is None or only in points, f"there is no failpoint {only}"
    report = Report(points, set(), Counter())
    todo = plans(rounds, seed, [only] if only else points)
    for first in range(0, rounds, ROUNDS_OF_A_DIRECTORY):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="kcoral-crash-", dir="/var/tmp"))
        trial = Trial(directory, power_loss)
        is_kept = False
        try:
            for plan in itertools.islice(todo, ROUNDS_OF_A_DIRECTORY):
                try:
                    print(f"round {plan.number}: {trial.round(plan)}", flush=True)
                except BaseException:
                    is_kept = not (power_loss and power_loss.lies)
                    kept = f"; kept: {directory}" if is_kept else ""
                    print(f"round {plan.number} of seed {seed}: {plan}; {trial.lost}{kept}", flush=True)
                    raise
            trial.look_at_all()
        finally:
            trial.close()
            if not is_kept:
                shutil.rmtree(directory)
        report.passed.update(trial.passed)
        report.killed.update(trial.killed)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills servers at named points and checks what they promised.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--point", help="only this one")
    parser.add_argument("--power-loss", action="store_true", help="the machine dies with the server")
    parser.add_argument("--lies", default="", help="syncs of paths with this text in them do nothing")
    arguments = parser.parse_args()
    print(f"{arguments.rounds} rounds, seed {arguments.seed}", flush=True)
    power_loss = PowerLoss(arguments.seed, arguments.lies) if arguments.power_loss else None
    report = crash(arguments.rounds, arguments.seed, arguments.point, power_loss)
    for point in report.points:
        passed = "" if point in report.passed else ", which was never passed"
        print(f"{report.killed[point]:5} deaths at {point}{passed}")
    print(f"{arguments.rounds} rounds, {sum(report.killed.values())} deaths at failpoints, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
