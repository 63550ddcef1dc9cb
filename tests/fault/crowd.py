"""Clients of every kind, which talk to one server at once, each until it is dead."""

from __future__ import annotations

import itertools
import json
import pathlib
import random
import shutil
import subprocess
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Callable

from harness import KCORAL, PATIENCE_S, Program
from runs import noting_program
from told import Sent, Told, promise

CHUNKS_BYTES = 2 << 20  # written in several batches
TABLE_BYTES = 9 << 20  # a table file of its own, and more than one turn of sending
# Of the blob and of the answer; as small as others where there is none.
HEAVY = [(0, TABLE_BYTES), (CHUNKS_BYTES, None), (TABLE_BYTES, None), *[(None, None)] * 9]


class Crowd:
    """`number`: of the round; `log`: where programs say that they run; `is_heavy`: with large blobs and answers;
    `copy`: where backups go."""

    def __init__(
        self, told: Told, draw: random.Random, number: int, log: pathlib.Path, is_heavy: bool, copy: pathlib.Path
    ):
        self.told = told
        self.number = number
        self.log = log
        self.copy = copy
        kinds = [self._executes] * 3 + [self._enqueues] * 2 + [self._sends_twice, self._cancels, self._looks_back]
        kinds.append(self._backs_up)
        seeds = [draw.getrandbits(32) for _ in kinds]
        self._violations: list[BaseException] = []
        self._sizes = itertools.cycle(HEAVY if is_heavy else [(None, None)])
        self._threads = [
            threading.Thread(target=self._until_dead, args=(kind, random.Random(seed)))
            for kind, seed in zip(kinds, seeds, strict=True)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()
        if self._violations:
            raise self._violations[0]

    def _until_dead(self, client: Callable[[random.Random], None], draw: random.Random) -> None:
        try:
            while self.told.server.process.poll() is None:
                client(draw)
        except (OSError, HTTPException):
            pass  # it is dead, or as good as that
        except BaseException as error:  # what it found is the round's
            self._violations.append(error)

    def _draw(self, draw: random.Random, synchronous: bool, seconds: float | None = None) -> Sent:
        blob_bytes, answer_bytes = next(self._sizes)
        content = draw.randbytes(draw.choice((0, 0, 100, 40_000)) if blob_bytes is None else blob_bytes)
        if answer_bytes is None:
            answer_bytes = draw.choice((0, 0, 100, 60_000))
        if seconds is None:
            seconds = draw.choice((0, 0, 0.02, 0.1, 0.3))
        attempts = draw.choice((None, 1, 2, 3))
        id = str(uuid.UUID(int=draw.getrandbits(128), version=4))
        program = noting_program(
            id,
            self.log,
            seconds=seconds,
            answer_bytes=answer_bytes,
            fails=draw.random() < 0.1,
            content=content,
            **({"max_attempts": attempts} if attempts else {}),
        )
        return self.told.remember(Sent(id, self.number, program, len(content), synchronous))

    def _executes(self, draw: random.Random) -> None:
        self.told.execute(self._draw(draw, synchronous=True))

    def _enqueues(self, draw: random.Random) -> None:
        sent = self._draw(draw, synchronous=False)
        self.told.enqueue(sent)
        self.told.poll(sent)

    def _sends_twice(self, draw: random.Random) -> None:
        """The same request from two clients at once, and again."""
        sent = self._draw(draw, synchronous=True)
        with ThreadPoolExecutor(2) as both:
            told = [both.submit(self.told.execute, sent) for _ in range(2)]
        errors = [each.exception() for each in told if each.exception()]
        if errors:  # of a server that died the other one may have found more
            raise next((error for error in errors if not isinstance(error, (OSError, HTTPException))), errors[0])
        self.told.execute(sent)

    def _cancels(self, draw: random.Random) -> None:
        sent = self._draw(draw, synchronous=False, seconds=draw.choice((0.05, 0.5)))
        self.told.enqueue(sent)
        if draw.random() < 0.5:
            self.told.ask(sent, "GET", f"?wait={draw.uniform(0, 0.3):.3f}")
        self.told.cancel(sent)
        self.told.poll(sent)

    def _backs_up(self, draw: random.Random) -> None:
        """Again and again to the same place; the last one stays."""
        shutil.rmtree(self.copy, ignore_errors=True)
        command = [str(KCORAL), "backup", "--data-dir", str(self.told.server.data_dir), str(self.copy)]
        made = subprocess.run(command, capture_output=True, text=True)
        promise(made.returncode in (0, 1), f"{made}")
        has_died = "the server ended" in made.stderr or "no server that is ready" in made.stderr
        promise(made.returncode == 0 or has_died, f"{made}")
        promise(made.returncode != 0 or (self.copy / "queue.sqlite3").exists(), f"{made}")
        if made.returncode != 0:
            self.told.server.process.wait(PATIENCE_S)

    def _looks_back(self, draw: random.Random) -> None:
        ended = {id: sent.ended for id, sent in list(self.told.sent.items())}
        page = json.loads(self.told.server.request("GET", f"/requests?limit={draw.randrange(1, 50)}").body)
        for document in draw.sample(page["requests"], min(3, len(page["requests"]))):
            sent = self.told.sent[document["request_id"]]
            if self.told.note_status(sent, document, ended.get(sent.id)).is_terminal:
                self.told.note_answer(sent, self.told.ask(sent, "GET", "/result"))
        self.told.server.health()
