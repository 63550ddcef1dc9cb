"""Contract sections 1, 2 and 9: submit and poll, history, cancellation; one row after another."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import tarfile
import threading
import time
import uuid

import pytest

from harness import PATIENCE_S, Program, Server, call, multipart, running_server, wait_until

QUICK = "def main():\n    return 42\n"
FOREVER = "import time\nprint('here', flush=True)\nwhile True:\n    time.sleep(0.01)\n"
STATUS_FIELDS = {
    "request_id", "state", "client", "labels", "priority", "submitted_at", "started_at", "finished_at", "attempt",
    "queue_position", "gpu_ids", "executor", "error", "program_sha256", "results", "links",
}  # fmt: skip
TIMES = {"queue_ms", "elapsed_ms", "lease_wait_ms", "lease_held_ms"}
TERMINAL = {"completed", "failed", "timed_out", "cancelled", "interrupted", "rejected"}


def new_id() -> str:
    return str(uuid.uuid4())


def forever(**options) -> Program:
    program = Program(options=options or None)
    program.module(FOREVER)
    return program


def status_in(document: dict) -> dict:
    """A status document whose fields were checked against the contract."""
    ended = document["state"] in TERMINAL
    assert set(document) == STATUS_FIELDS | (TIMES if "queue_ms" in document else set()), document
    assert ended or "queue_ms" not in document
    assert (document["finished_at"] is not None) == ended
    assert document["links"]["self"] == "/requests/" + document["request_id"]
    return document


def submit(server: Server, program: Program, **headers: str) -> dict:
    reply = send(server, program, **headers)
    assert reply.status == 202, (reply.status, reply.body)
    document = status_in(reply.json())
    assert reply.headers["location"] == document["links"]["self"]
    assert reply.headers["x-request-id"] == document["request_id"]
    return document


def send(server: Server, program: Program, path: str = "/requests", **headers: str):
    content_type, body = multipart(program.document(), list(program.blobs.values()))
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.request("POST", path, body, {"Content-Type": content_type, **sent})


def get(server: Server, path: str, method: str = "GET"):
    return server.request(method, path)


def status(server: Server, request_id: str, wait: float | None = None) -> dict:
    reply = get(server, f"/requests/{request_id}" + ("" if wait is None else f"?wait={wait}"))
    assert reply.status == 200, (reply.status, reply.body)
    return status_in(reply.json())


def ended(server: Server, request_id: str) -> dict:
    document = status(server, request_id, wait=60)
    assert document["state"] in TERMINAL, document
    return document


def audit(server: Server, request_id: str) -> list[dict]:
    document = get(server, f"/requests/{request_id}/audit").json()
    assert document["request_id"] == request_id
    assert [record["seq"] for record in document["records"]] == list(range(len(document["records"])))
    return document["records"]


def events(server: Server, request_id: str) -> list[str]:
    return [record["event"] for record in audit(server, request_id)]


@contextlib.contextmanager
def occupied(server: Server):
    """The server's only worker runs something until the block ends."""
    running = submit(server, forever())["request_id"]
    wait_until(lambda: status(server, running)["state"] == "running", "the program that occupies the worker")
    yield running
    assert get(server, f"/requests/{running}", "DELETE").status in (200, 409)


@pytest.fixture(scope="module")
def single():
    """A server with one worker."""
    with running_server("--max-queued-requests", "40", "--max-queued-per-client", "20") as server:
        yield server


class TestSubmitAndPoll:
    def test_202_with_the_status_document_and_then_the_outcome(self, server):
        submitted = submit(server, call(QUICK, labels={"kind": "quick"}, priority=3), X_KCoral_Client="me")
        assert (submitted["client"], submitted["labels"], submitted["priority"]) == ("me", {"kind": "quick"}, 3)
        document = ended(server, submitted["request_id"])
        assert document["state"] == "completed"
        assert document["executor"].startswith("executor-") and document["attempt"] == 1
        assert [each["key"] for each in document["results"]] == ["value"]
        assert document["elapsed_ms"] > 0 and document["queue_ms"] >= 0
        assert document["submitted_at"] <= document["started_at"] <= document["finished_at"]

    def test_the_result_is_byte_for_byte_what_execute_answers(self, server):
        for program in (call(QUICK), call("def main():\n    return b'x' * 100000\n"), call("def main():\n    1 / 0\n")):
            request_id = new_id()
            answered = send(server, program, "/execute", X_Request_ID=request_id)
            result = get(server, f"/requests/{request_id}/result")
            assert (result.status, result.body) == (answered.status, answered.body)
            assert result.headers["content-type"] == answered.headers["content-type"]

    def test_409_with_the_status_document_while_it_is_not_terminal(self, single):
        with occupied(single) as running:
            reply = get(single, f"/requests/{running}/result")
            assert reply.status == 409
            assert status_in(reply.json())["state"] == "running"

    def test_a_long_poll_is_answered_when_the_request_ends(self, single):
        with occupied(single) as running:
            waiting = threading.Thread(target=lambda: found.append(status(single, running, wait=60)))
            found: list[dict] = []
            waiting.start()
            assert get(single, f"/requests/{running}", "DELETE").status == 200
            waiting.join(PATIENCE_S)
            assert found and found[0]["state"] == "cancelled"

    def test_a_long_poll_ends_with_the_wait(self, single):
        with occupied(single) as running:
            began = time.monotonic()
            assert status(single, running, wait=0.3)["state"] == "running"
            assert time.monotonic() - began >= 0.3

    @pytest.mark.parametrize("wait", ["-1", "61", "nan", "soon", ""])
    def test_wait_is_a_number_from_0_to_60(self, server, wait):
        assert "60" in get(server, f"/requests/{new_id()}?wait={wait}").error(400, "parse")

    def test_the_program_comes_back_as_it_was_sent(self, server):
        text = b'{ "instructions" : [{"op":"upload","id":"m","kind":"module","source":"x = 1e3"}] }'
        content_type, body = multipart(text, [])
        reply = server.request("POST", "/requests", body, {"Content-Type": content_type})
        request_id = reply.json()["request_id"]
        assert get(server, f"/requests/{request_id}/program").body == text

    def test_an_unknown_id_is_404_everywhere(self, server):
        for path in ("", "/result", "/program", "/audit", "/output", "/artifacts/x"):
            assert get(server, f"/requests/{new_id()}{path}").error(404, "not_found")
            assert get(server, f"/requests/not-an-id{path}").error(404, "not_found")
        assert get(server, f"/requests/{new_id()}", "DELETE").error(404, "not_found")

    def test_wrong_methods_are_405(self, server):
        for path, allow in (("/requests", "GET, HEAD, POST"), (f"/requests/{new_id()}", "GET, HEAD, DELETE")):
            reply = get(server, path, "PUT")
            reply.error(405, "method_not_allowed")
            assert sorted(reply.headers["allow"].split(", ")) == sorted(allow.split(", "))



class TestIdempotency:
    def test_an_id_that_was_admitted_attaches(self, server):
        request_id = new_id()
        program = call("import os\ndef main():\n    return os.urandom(8).hex()\n")
        first = submit(server, program, X_Request_ID=request_id)
        assert first["request_id"] == request_id
        outcome = ended(server, request_id)
        assert submit(server, program, X_Request_ID=request_id)["state"] == "completed"
        again = send(server, program, "/execute", X_Request_ID=request_id)
        assert again.body == get(server, f"/requests/{request_id}/result").body
        assert ended(server, request_id) == outcome
        assert events(server, request_id).count("assigned") == 1

    def test_a_different_program_is_a_conflict(self, server):
        request_id = new_id()
        submit(server, call(QUICK), X_Request_ID=request_id)
        assert send(server, call(QUICK, "other"), X_Request_ID=request_id).error(409, "conflict")

    def test_two_at_once_are_one_request(self, server):
        for paths in (("/requests", "/requests"), ("/requests", "/execute"), ("/execute", "/execute")):
            request_id = new_id()
            replies = []
            threads = [
                threading.Thread(
                    target=lambda path=path: replies.append(send(server, call(QUICK), path, X_Request_ID=request_id))
                )
                for path in paths
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            assert sorted(reply.status for reply in replies) == sorted(200 if p == "/execute" else 202 for p in paths)
            ended(server, request_id)
            assert events(server, request_id).count("assigned") == 1

    def test_it_holds_across_a_restart(self, data_dir):
        server = Server(data_dir).start()
        request_id = new_id()
        answered = send(server, call(QUICK), "/execute", X_Request_ID=request_id)
        server.kill()
        server.start()
        try:
            assert send(server, call(QUICK), "/execute", X_Request_ID=request_id).body == answered.body
            assert submit(server, call(QUICK), X_Request_ID=request_id)["state"] == "completed"
        finally:
            server.stop()

    def test_what_was_refused_consumes_nothing(self, single):
        request_id = new_id()
        with occupied(single):
            for _ in range(20):
                submit(single, call(QUICK), X_KCoral_Client="greedy")
            reply = send(single, call(QUICK), X_KCoral_Client="greedy", X_Request_ID=request_id)
            assert "--max-queued-per-client" in reply.error(429, "rate_limited")
            assert int(reply.headers["retry-after"]) > 0
            for _ in range(20):
                submit(single, call(QUICK), X_KCoral_Client="other")
            reply = send(single, call(QUICK), X_KCoral_Client="third", X_Request_ID=request_id)
            assert "--max-queued-requests" in reply.error(503, "busy")
            assert int(reply.headers["retry-after"]) > 0
            get(single, f"/requests/{request_id}").error(404, "not_found")
        wait_until(lambda: single.health()["load"]["requests_waiting"] == 0, "the queue to run dry")
        assert submit(single, call(QUICK, "other"), X_Request_ID=request_id)["state"] != "completed"


class TestCancellation:
    def test_a_queued_request_never_runs(self, single):
        with occupied(single):
            queued = submit(single, call(QUICK))["request_id"]
            reply = get(single, f"/requests/{queued}", "DELETE")
            assert (reply.status, status_in(reply.json())["state"]) == (200, "cancelled")
        result = get(single, f"/requests/{queued}/result")
        assert result.status == 409 and "queued" in result.json()["error"]["message"]
        assert "assigned" not in events(single, queued)

    def test_a_running_one_is_gone_when_the_answer_comes(self, single):
        with occupied(single) as running:
            reply = get(single, f"/requests/{running}", "DELETE")
            assert (reply.status, status_in(reply.json())["state"]) == (200, "cancelled")
            recorded = events(single, running)
            assert recorded.index("cancel_requested") < recorded.index("finished")
        assert get(single, f"/requests/{running}/output").body == b"here\n"
        wait_until(lambda: "process_exited" in events(single, running), "the end of its process")
        assert single.run(QUICK).value() == 42, "the worker goes on"

    def test_it_is_idempotent_and_409_for_what_has_ended_otherwise(self, single):
        with occupied(single):
            queued = submit(single, call(QUICK))["request_id"]
            for _ in range(2):
                assert get(single, f"/requests/{queued}", "DELETE").status == 200
        done = submit(single, call(QUICK))["request_id"]
        ended(single, done)
        assert "completed" in get(single, f"/requests/{done}", "DELETE").error(409, "conflict")

    def test_a_client_that_waits_is_told(self, single):
        request_id = new_id()
        replies = []
        waiting = threading.Thread(
            target=lambda: replies.append(send(single, forever(), "/execute", X_Request_ID=request_id))
        )
        waiting.start()
        wait_until(lambda: get(single, f"/requests/{request_id}").status == 200, "its admission")
        assert get(single, f"/requests/{request_id}", "DELETE").status == 200
        waiting.join(PATIENCE_S)
        assert replies[0].error(409, "cancelled")


class TestAbandonment:
    @staticmethod
    def leave(server: Server, program: Program, request_id: str) -> None:
        """Sends it and goes away once it runs."""
        content_type, body = multipart(program.document(), [])
        head = (
            f"POST /execute HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: {request_id}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head.encode() + body)
            wait_until(
                lambda: (reply := get(server, f"/requests/{request_id}")).status == 200
                and reply.json()["state"] == "running",
                "the program to run",
            )

    @pytest.fixture(scope="class")
    def impatient(self):
        with running_server("--abandoned-after-seconds", "1", "--num-workers", "2") as server:
            yield server

    @staticmethod
    def wait_until_cancelled(server: Server, request_id: str) -> None:
        """Without waiting for it in the server's eyes: who long-polls does."""
        wait_until(lambda: status(server, request_id)["state"] == "cancelled", "its cancellation")

    def test_what_nobody_waits_for_is_cancelled(self, impatient):
        request_id = new_id()
        self.leave(impatient, forever(), request_id)
        self.wait_until_cancelled(impatient, request_id)
        wish = next(each for each in audit(impatient, request_id) if each["event"] == "cancel_requested")
        assert "nobody waits" in wish["by"]

    def test_what_is_polled_runs_on(self, impatient):
        request_id = new_id()
        program = forever()
        self.leave(impatient, program, request_id)
        submit(impatient, program, X_Request_ID=request_id)
        # The grace is over when a second one that nobody waits for has been cancelled.
        other = new_id()
        self.leave(impatient, forever(), other)
        self.wait_until_cancelled(impatient, other)
        assert status(impatient, request_id)["state"] == "running"
        assert get(impatient, f"/requests/{request_id}", "DELETE").status == 200

    def test_another_client_that_waits_for_it_keeps_it(self, impatient):
        request_id = new_id()
        program = forever(timeout_seconds=3)
        replies = []
        waiting = threading.Thread(
            target=lambda: replies.append(send(impatient, program, "/execute", X_Request_ID=request_id))
        )
        self.leave(impatient, program, request_id)
        waiting.start()
        waiting.join(PATIENCE_S)
        assert replies[0].error(504, "timeout"), "its own deadline ended it"


class TestOutput:
    def test_the_live_tail(self, single):
        source = (
            "import sys, time\nprint('one', flush=True)\nprint('oops', file=sys.stderr, flush=True)\n"
            "while True:\n    time.sleep(0.01)\n"
        )
        program = Program()
        program.module(source)
        running = submit(single, program)["request_id"]
        tail = wait_until(
            lambda: (reply := get(single, f"/requests/{running}/output")).body and reply, "the first line"
        )
        assert tail.body == b"one\n" and tail.headers["x-kcoral-next-offset"] == "4"
        assert tail.headers["content-type"] == "text/plain; charset=utf-8"
        rest = get(single, f"/requests/{running}/output?stream=stdout&offset=4")
        assert rest.body == b"" and rest.headers["x-kcoral-next-offset"] == "4"
        wait_until(lambda: get(single, f"/requests/{running}/output?stream=stderr").body == b"oops\n", "stderr")
        assert get(single, f"/requests/{running}", "DELETE").status == 200
        assert get(single, f"/requests/{running}/output?offset=1").body == b"ne\n"

    def test_of_what_has_ended_it_is_what_the_answer_says(self, server):
        source = "import sys\ndef main():\n    sys.stdout.buffer.write(b'\\xe2\\x82\\xac\\xff\\n')\n"
        request_id = submit(server, call(source))["request_id"]
        ended(server, request_id)
        document = get(server, f"/requests/{request_id}/result").json()
        assert get(server, f"/requests/{request_id}/output").body.decode() == document["stdout"] == "\u20ac\ufffd\n"

    def test_of_what_timed_out_it_stays(self, server):
        program = Program(options={"timeout_seconds": 1})
        program.module(FOREVER)
        request_id = submit(server, program)["request_id"]
        assert ended(server, request_id)["state"] == "timed_out"
        assert get(server, f"/requests/{request_id}/output").body == b"here\n"

    @pytest.mark.parametrize("query", ["stream=both", "offset=-1", "offset=x", "offset=99", "what=1", "stream=stdout&stream=stderr"])
    def test_bad_queries_are_400(self, server, query):
        request_id = submit(server, call(QUICK))["request_id"]
        ended(server, request_id)
        assert get(server, f"/requests/{request_id}/output?{query}").error(400, "parse")


class TestArtifacts:
    def test_each_kind_of_value(self, server):
        source = (
            "import pathlib, numpy\n"
            "def raw():\n    return b'\\x00\\x01'\n"
            "def plain():\n    return {'a': [1, 2.5, None]}\n"
            "def tensor():\n    return numpy.arange(3, dtype=numpy.int32)\n"
            "def write():\n    pathlib.Path('out/inner').mkdir(parents=True)\n    pathlib.Path('out/inner/a.txt').write_text('A')\n"
            "    pathlib.Path('one.bin').write_bytes(b'1')\n"
        )
        program = Program()
        module = program.module(source)
        for name in ("raw", "plain", "tensor"):
            program.give(f"the {name}", program.call(module, name, id=name))
        program.call(module, "write", id="write")
        program.add("return", key="folder", path="out", kind="folder")
        program.add("return", key="file", path="one.bin", kind="file")
        request_id = submit(server, program)["request_id"]
        document = ended(server, request_id)
        assert document["state"] == "completed", get(server, f"/requests/{request_id}/result").body
        links = document["links"]["artifacts"]
        assert set(links) == {"the raw", "the plain", "the tensor", "folder", "file"}
        assert get(server, links["the raw"]).body == b"\x00\x01"
        assert get(server, links["file"]).body == b"1"
        assert get(server, links["the tensor"]).body == b"\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00"
        plain = get(server, links["the plain"])
        assert plain.headers["content-type"] == "application/json"
        assert json.loads(plain.body)["type"] == "object"
        packed = get(server, links["folder"])
        assert packed.headers["content-type"] == "application/x-tar"
        with tarfile.open(fileobj=io.BytesIO(packed.body)) as tar:
            assert tar.extractfile("inner/a.txt").read() == b"A"
        get(server, f"/requests/{request_id}/artifacts/none").error(404, "not_found")

    def test_409_while_it_is_not_terminal(self, single):
        with occupied(single) as running:
            assert get(single, f"/requests/{running}/artifacts/value").status == 409


class TestHistory:
    @pytest.fixture(scope="class")
    def filled(self):
        with running_server("--num-workers", "2") as server:
            for i in range(12):
                program = call(QUICK if i % 3 else "def main():\n    1 / 0\n", labels={"n": str(i % 2), "run": "r"})
                document = submit(server, program, X_KCoral_Client=f"client {i % 4}")
                ended(server, document["request_id"])
            yield server

    @staticmethod
    def listed(server: Server, query: str = "") -> list[dict]:
        document = get(server, "/requests" + query).json()
        assert set(document) == {"requests", "next_cursor"}
        return [status_in(each) for each in document["requests"]]

    def test_the_newest_first(self, filled):
        times = [each["submitted_at"] for each in self.listed(filled)]
        assert len(times) == 12 and times == sorted(times, reverse=True)

    def test_each_filter(self, filled):
        everything = self.listed(filled)
        assert {each["state"] for each in self.listed(filled, "?state=failed")} == {"failed"}
        assert len(self.listed(filled, "?state=failed")) == 4
        assert len(self.listed(filled, "?label=n%3D1")) == 6
        assert len(self.listed(filled, "?label=run")) == 12
        assert len(self.listed(filled, "?client=client%201")) == 3
        middle = everything[5]["submitted_at"]
        assert self.listed(filled, f"?since={middle}") == everything[:6]
        assert self.listed(filled, f"?until={middle}") == everything[6:]
        assert self.listed(filled, f"?state=failed&client=client%200&label=n%3D0&since={everything[-1]['submitted_at']}")

    def test_pages_neither_skip_nor_repeat_while_requests_arrive(self, filled):
        expected = [each["request_id"] for each in self.listed(filled)]
        seen, cursor = [], ""
        while True:
            document = get(filled, f"/requests?limit=5{cursor}").json()
            seen += [each["request_id"] for each in document["requests"]]
            if document["next_cursor"] is None:
                break
            cursor = "&cursor=" + document["next_cursor"]
            ended(filled, submit(filled, call(QUICK))["request_id"])
        assert seen == expected

    @pytest.mark.parametrize(
        "query",
        ["state=done", "limit=0", "limit=1001", "since=yesterday", "cursor=x", "page=2", "state=failed&state=failed", "label="],
    )
    def test_bad_queries_are_400(self, filled, query):
        assert get(filled, "/requests?" + query).error(400, "parse")


class TestScheduling:
    def test_priorities_shares_and_positions(self, single):
        with occupied(single):
            flood = [submit(single, call(QUICK), X_KCoral_Client="flood")["request_id"] for _ in range(10)]
            assert status(single, flood[7])["queue_position"] == 7
            other = submit(single, call(QUICK), X_KCoral_Client="other")["request_id"]
            urgent = submit(single, call(QUICK, priority=5), X_KCoral_Client="flood")["request_id"]
            assert status(single, other)["queue_position"] == 0
            assert status(single, urgent)["queue_position"] == 0
            assert status(single, flood[0])["queue_position"] == 1
        order = sorted(
            [ended(single, each) for each in [*flood, other, urgent]], key=lambda document: document["started_at"]
        )
        ids = [document["request_id"] for document in order]
        assert ids.index(urgent) <= 1
        assert [each for each in ids if each in flood] == flood, "first in first out within a client"
        assert ids.index(other) < ids.index(flood[-1]), "a fair share"


class TestRetention:
    def test_pruned_artifacts_are_410_and_the_request_stays(self):
        with running_server("--artifact-capacity-bytes", str(1 << 20)) as server:
            first = submit(server, call("def main():\n    return b'x' * 700000\n"))["request_id"]
            ended(server, first)
            for _ in range(2):
                ended(server, submit(server, call("def main():\n    return b'y' * 700000\n"))["request_id"])
            wait_until(lambda: get(server, f"/requests/{first}/result").status == 410, "the first answer to be pruned")
            get(server, f"/requests/{first}/result").error(410, "gone")
            get(server, f"/requests/{first}/artifacts/value").error(410, "gone")
            assert status(server, first)["state"] == "completed"
            assert events(server, first)[-1] in ("finished", "process_exited")
