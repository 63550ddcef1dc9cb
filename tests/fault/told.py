"""What clients are told of their requests, held against what they were told before."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from http.client import IncompleteRead
from typing import NamedTuple

from harness import Program, Reply, Server, multipart
from rows import State


class Violation(AssertionError):
    """A promise was broken."""


def promise(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


class Answer(NamedTuple):
    status: int
    content_type: str
    body_sha256: str


@dataclass
class Sent:
    """A request, and what its clients were told of it."""

    id: str
    number: int  # of the round
    program: Program  # without its blobs once the round is over
    data_bytes: int
    synchronous: bool
    admitted: bool = False
    answer: Answer | None = None
    ended: State | None = None
    beginning: bytes = b""  # of an answer that broke off
    cancelled_ns: int | None = None
    was_pruned: bool = False

    @property
    def max_attempts(self) -> int:
        return (self.program.options or {}).get("max_attempts", 1 if self.synchronous else 2)


class Told:
    """All requests, and the calls of their clients to whichever server lives. Thread-safe, but for `server`."""

    def __init__(self) -> None:
        self.server: Server | None = None
        self.sent: dict[str, Sent] = {}
        self.prunable: set[str] = set()  # whose outcome may be gone
        self.is_pruning = False  # any outcome may go
        self._lock = threading.Lock()

    def remember(self, sent: Sent) -> Sent:
        with self._lock:
            self.sent[sent.id] = sent
        return sent

    def note_answer(self, sent: Sent, reply: Reply) -> None:
        """An outcome. There is one, whoever is told of it."""
        if reply.status == 410 and (self.is_pruning or sent.id in self.prunable):
            return
        promise(not sent.was_pruned, f"{sent.id}: its outcome was pruned, and is there again")
        promise(reply.status in (200, 409, 500), f"{sent.id}: no outcome: {reply.status} {reply.body[:500]!r}")
        promise(reply.body.startswith(sent.beginning), f"{sent.id}: another answer had begun")
        answer = Answer(reply.status, reply.headers["content-type"], hashlib.sha256(reply.body).hexdigest())
        with self._lock:
            first, sent.answer = sent.answer, sent.answer or answer
        promise(first in (None, answer), f"{sent.id}: two outcomes: {first}, and {answer} {reply.body[:1000]!r}")

    def note_status(self, sent: Sent, document: dict, before: State | None) -> State:
        """`before`: what it was known to have ended as when this was asked."""
        state = State[document["state"].upper()]
        sent.admitted = True
        promise(before in (None, state), f"{sent.id}: had ended as {before!r}, and is {state!r}")
        promise(not state.is_terminal or sent.ended in (None, state), f"{sent.id}: {sent.ended!r} and {state!r}")
        if state.is_terminal:
            sent.ended = state
        return state

    def ask(self, sent: Sent, method: str, path: str = "", **more) -> Reply:
        return self.server.request(method, f"/requests/{sent.id}{path}", **more)

    def execute(self, sent: Sent) -> None:
        try:
            self.note_answer(sent, self.server.post(sent.program, X_Request_ID=sent.id))
        except IncompleteRead as error:
            sent.beginning = max(sent.beginning, error.partial, key=len)
            raise

    def enqueue(self, sent: Sent) -> None:
        content_type, body = multipart(sent.program.document(), list(sent.program.blobs.values()))
        reply = self.server.request("POST", "/requests", body, {"Content-Type": content_type, "X-Request-ID": sent.id})
        promise(reply.status == 202, f"{sent.id}: {reply.status} {reply.body[:500]!r}")
        self.note_status(sent, reply.json(), None)

    def poll(self, sent: Sent) -> None:
        while True:
            before = sent.ended
            reply = self.ask(sent, "GET", "?wait=10")
            promise(reply.status == 200, f"{sent.id}: {reply.status} {reply.body[:500]!r}")
            if self.note_status(sent, reply.json(), before).is_terminal:
                return self.note_answer(sent, self.ask(sent, "GET", "/result"))

    def cancel(self, sent: Sent) -> None:
        self.note_cancel(sent, self.ask(sent, "DELETE"))

    def note_cancel(self, sent: Sent, reply: Reply) -> None:
        if reply.status == 200:
            sent.cancelled_ns = time.monotonic_ns()
            state = self.note_status(sent, reply.json(), None)
            promise(state == State.CANCELLED, f"{sent.id}: cancelled as {reply.body!r}")
        else:
            reply.error(409, "conflict")

