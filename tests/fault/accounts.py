"""Accounts of a request held against each other: what clients were told, its row, its audit, and what really ran."""

from __future__ import annotations

import json
from dataclasses import replace

from harness import Reply
from rows import Row, State
from runs import Run
from told import Sent, Told, promise


def expect_sound_runs(sent: Sent, row: Row, runs: list[Run]) -> None:
    promise(row.max_attempts == sent.max_attempts, f"{sent.id}: {row}")
    promise(len(runs) <= row.attempt <= row.max_attempts, f"{sent.id}: {runs} ran, and {row}")
    promise(len({run.token for run in runs}) == len(runs), f"{sent.id}: {runs}")
    if sent.cancelled_ns:
        promise(row.state == State.CANCELLED, f"{sent.id}: cancelled, and {row}")
        late = [run for run in runs if run.at_ns > sent.cancelled_ns]
        promise(not late, f"{sent.id}: ran after it was cancelled: {late}")


def expect_end(told: Told, sent: Sent, row: Row, runs: list[Run]) -> None:
    expect_sound_runs(sent, row, runs)
    document = told.ask(sent, "GET").json()
    promise(told.note_status(sent, document, sent.ended) == row.state, f"{sent.id}: {row}, and {document}")
    promise(document["attempt"] == row.attempt, f"{sent.id}: {row}, and {document}")
    reply = told.ask(sent, "GET", "/result")
    told.note_answer(sent, reply)
    sent.was_pruned = reply.status == 410
    if not sent.was_pruned:
        expect_outcome(sent, row, runs, replace(reply, headers={**reply.headers, "x-request-id": sent.id}))
    expect_audit(told, sent, row)


def expect_outcome(sent: Sent, row: Row, runs: list[Run], reply: Reply) -> None:
    """The answer is that of the run which the log has last."""
    if row.state == State.CANCELLED:
        reply.error(409, "cancelled")
    elif row.state == State.INTERRUPTED:
        reply.error(500, "engine")
        promise(row.attempt == row.max_attempts, f"{sent.id}: interrupted with attempts left: {row}")
    elif row.state == State.FAILED:
        promise(reply.result().error["message"] == runs[-1].token, f"{sent.id}: {reply.body[:1000]!r} of {runs}")
    else:
        promise(row.state == State.COMPLETED, f"{sent.id}: {row}")
        token, data_bytes, _ = reply.result().value()
        is_its = (token, data_bytes) == (runs[-1].token, sent.data_bytes)
        promise(is_its, f"{sent.id}: {reply.body[:1000]!r} of {runs}")


def expect_audit(told: Told, sent: Sent, row: Row) -> None:
    records = told.ask(sent, "GET", "/audit").json()["records"]
    events = [record["event"] for record in records]
    story = f"{sent.id}: {row}, and its audit: {json.dumps(records)}"
    promise([record["seq"] for record in records] == list(range(len(records))), story)
    promise(events[0] == "admitted" and events.count("admitted") == 1 and events.count("finished") == 1, story)
    finished = records[events.index("finished")]
    promise(finished["state"] == row.state.name.lower(), story)
    promise(set(events[events.index("finished") + 1 :]) <= {"lease_released", "process_exited"}, story)
    attempt = 0
    for record in records:
        if record["event"] == "assigned":
            attempt += 1
            promise(record["attempt"] == attempt, story)
        elif record["event"] == "requeued" and "before it was told" in record["reason"]:
            attempt -= 1  # nobody was told of it: it is not used up
    promise(attempt == row.attempt, story)
