"""The client against a server that misbehaves on purpose: negotiation, errors, retries, broken connections."""

import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from fake_server import Answer, Close, Reset, Truncated, cache_miss, error, outcome, sha256

import kcoral.client
from kcoral import Client, KCoralError, MalformedAnswerError, Program, ProgramError, ServerError, TransportError

ID = "11111111-2222-4333-8444-555555555555"
# What a server says with a 503: it stops and keeps the program; it stops and did not take it; it gave up on it.
KEPT = (
    "the server is stopping before this request has an outcome; the request is kept and can be asked for again "
    "with the same X-Request-ID and the same program"
)
STOPPING = "the server is stopping and takes no new programs"
REJECTED = "no worker became free within 1800 seconds; nothing ran. Send the program again under a fresh X-Request-ID"
BIG = [bytes([index]) * 100_000 for index in range(3)]


def small_program():
    program = Program()
    program.upload(kind="module", source="x = 1")
    return program


def program_with(*contents):
    program = small_program()
    for content in contents:
        program.upload(kind="bytes", value=content)
    return program


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


@pytest.fixture
def time_passes(monkeypatch):
    """Sleeping takes no time but moves the client's clock; the list says how long it slept."""
    slept = []
    monkeypatch.setattr(kcoral.client, "_sleep", slept.append)
    monkeypatch.setattr(kcoral.client, "_monotonic", lambda: 1000.0 + sum(slept))
    return slept


def test_a_request(server):
    server.then(outcome({"x": {"type": "integer", "value": 1}}))
    with Client(server.url + "/", client_name="me", token="secret") as client:
        result = client.execute(
            small_program(),
            timeout_seconds=1.5,
            output_limit_bytes=0,
            gpu_count=1,
            priority=-3,
            labels={"b": "x", "a": "y"},
            max_attempts=2,
            request_id=ID,
        )
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/execute")
    assert request.headers["x-request-id"] == ID == result.request_id
    assert request.headers["x-kcoral-client"] == "me"
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["content-length"] == str(len(request.body))
    assert request.program["options"] == {
        "timeout_seconds": 1.5,
        "output_limit_bytes": 0,
        "gpu_count": 1,
        "priority": -3,
        "labels": {"b": "x", "a": "y"},
        "max_attempts": 2,
    }
    assert result.completed and result.results == {"x": 1}


def test_options_that_are_not_given_are_not_sent(server, client):
    server.then(outcome(), outcome())
    client.execute(small_program())
    client.execute(small_program())
    first, second = server.requests
    assert "options" not in first.program
    assert first.id != second.id and first.parts == second.parts
    assert first.connection == second.connection  # kept alive


@pytest.mark.parametrize("request_id", ["", "x", ID.upper().replace("1", "A"), "{" + ID + "}", ID.replace("-", "")])
def test_a_request_id_is_a_canonical_uuid(client, request_id):
    with pytest.raises(ProgramError, match="UUID"):
        client.execute(small_program(), request_id=request_id)


class TestNegotiation:
    def test_small_blobs_go_at_once(self, server, client):
        server.then(outcome())
        client.execute(program_with(b"a", b"", b"a"))
        assert server.requests[0].parts.keys() == {"program", f"blob:{sha256(b'a')}", f"blob:{sha256(b'')}"}

    def test_exactly_what_is_missing_is_sent(self, server, client):
        server.then(cache_miss(sha256(BIG[2]), sha256(BIG[0])), outcome())
        client.execute(program_with(b"small", *BIG))
        first, second = server.requests
        assert first.blobs == [sha256(b"small")]
        assert second.blobs == [sha256(BIG[0]), sha256(BIG[2])]
        assert second.parts[f"blob:{sha256(BIG[2])}"] == BIG[2]
        assert first.id == second.id and first.parts["program"] == second.parts["program"]
        assert first.connection == second.connection

    def test_many_small_blobs_are_not_all_sent_at_once(self, server, client):
        server.then(outcome())
        client.execute(program_with(*(index.to_bytes(2, "big") * 8000 for index in range(100))))
        assert len(server.requests[0].blobs) == 16

    def test_a_cache_that_forgets_is_sent_everything(self, server, client):
        server.then(cache_miss(sha256(BIG[0])), cache_miss(sha256(b"small")), outcome())
        client.execute(program_with(b"small", *BIG))
        assert server.requests[2].blobs == [sha256(content) for content in (b"small", *BIG)]

    @pytest.mark.parametrize(
        "missing", [[], [sha256(b"small")], [sha256(b"unknown")], [sha256(BIG[0])] * 2, [1], "all", None], ids=str
    )
    def test_a_cache_miss_that_makes_no_sense(self, server, client, missing):
        def answer(request):
            document = {"status": "CACHE_MISS", "request_id": request.id, "missing_blobs": missing}
            return Answer(200, json.dumps(document).encode())

        server.then(answer)
        with pytest.raises(MalformedAnswerError):
            client.execute(program_with(b"small", *BIG))
        assert len(server.requests) == 1

    def test_an_extra_field_is_malformed(self, server, client):
        def answer(request):
            made = json.loads(cache_miss(sha256(BIG[0]))(request).body)
            return Answer(200, json.dumps({**made, "hint": 1}).encode())

        server.then(answer)
        with pytest.raises(MalformedAnswerError, match="unknown field hint"):
            client.execute(program_with(*BIG))

    def test_local_files_are_streamed(self, server, client, tmp_path):
        content = np.random.default_rng(2).bytes(3_000_000)
        (tmp_path / "data").write_bytes(content)
        program = small_program()
        program.upload_file(tmp_path / "data")
        server.then(cache_miss(sha256(content)), outcome())
        client.execute(program)
        assert server.requests[1].parts[f"blob:{sha256(content)}"] == content

    def test_a_local_file_that_changed_stops_the_request(self, server, client, tmp_path):
        (tmp_path / "data").write_bytes(b"x" * 1_000_000)
        program = small_program()
        program.upload_file(tmp_path / "data")
        (tmp_path / "data").write_bytes(b"y")
        server.then(cache_miss(sha256(b"x" * 1_000_000)))
        with pytest.raises(ProgramError, match="changed"):
            client.execute(program)


class TestErrors:
    @pytest.mark.parametrize(
        ("kind", "status"),
        [("parse", 400), ("conflict", 409), ("request_too_large", 413), ("timeout", 504), ("engine", 500)],
    )
    def test_an_error_answer(self, server, client, kind, status):
        server.then(error(kind, "what was wrong", status), outcome())
        with pytest.raises(ServerError, match="what was wrong") as caught:
            client.execute(small_program(), request_id=ID)
        assert (caught.value.kind, caught.value.http_status, caught.value.request_id) == (kind, status, ID)
        assert caught.value.retry_after is None
        client.execute(small_program())
        assert len({request.connection for request in server.requests}) == 1

    def test_every_exception_has_one_base(self):
        for exception in (ServerError, TransportError, MalformedAnswerError, ProgramError):
            assert issubclass(exception, KCoralError)

    def test_an_error_with_an_extra_field_is_malformed(self, server, client):
        document = {"status": "ERROR", "request_id": ID, "error": {"kind": "busy", "message": "m", "code": 1}}
        server.then(lambda request: Answer(503, json.dumps(document).encode()))
        with pytest.raises(MalformedAnswerError, match="unknown field code"):
            client.execute(small_program())

    def test_an_answer_before_all_was_sent(self):
        """A server that refuses a body by its length answers, and closes, without reading it."""
        listener = socket.create_server(("127.0.0.1", 0))
        body = json.dumps(
            {"status": "ERROR", "request_id": ID, "error": {"kind": "request_too_large", "message": "too large"}}
        ).encode()

        def refuse():
            connection, _ = listener.accept()
            with connection:
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(1)
                connection.sendall(
                    b"HTTP/1.1 413 X\r\nContent-Type: application/json\r\nConnection: close\r\n"
                    b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                connection.shutdown(socket.SHUT_WR)
                # As a careful server does, so that its answer is not lost in a reset.
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=refuse)
        thread.start()
        program = small_program()
        for index in range(16):
            program.upload(kind="bytes", value=bytes([index]) * 16_000)
        try:
            with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
                with pytest.raises(ServerError, match="too large"):
                    client.execute(program)
        finally:
            thread.join()
            listener.close()


class TestRetries:
    def test_busy_is_an_error_unless_asked_for(self, server, client, time_passes):
        server.then(error("busy", "full", 503, Retry_After="7"))
        with pytest.raises(ServerError) as caught:
            client.execute(small_program())
        assert (caught.value.kind, caught.value.retry_after) == ("busy", 7.0)
        assert time_passes == []

    def test_busy_is_tried_again_as_the_server_says(self, server, time_passes):
        server.then(
            error("busy", "full", 503, Retry_After="7"), error("rate_limited", "slow", 429, Retry_After="2"), outcome()
        )
        with Client(server.url, retry_seconds=30) as client:
            assert client.execute(small_program()).completed
        assert time_passes == [7.0, 2.0]
        assert len({request.id for request in server.requests}) == 1

    def test_a_request_that_a_stopping_server_kept_is_not_submitted_twice(self, server, time_passes):
        """A queued program is answered 503 when the server stops, and runs at the next start: that run is the one."""
        queued = set()

        def stop(request):
            queued.add(request.id)
            return error("busy", KEPT, 503, Retry_After="5")(request)

        def start_again(request):
            assert request.id in queued, "the program would run twice"
            return outcome()(request)

        server.then(stop, error("busy", STOPPING, 503, Retry_After="5"), stop, start_again)
        with Client(server.url, retry_seconds=60) as client:
            assert client.execute(small_program()).request_id in queued
        assert len(queued) == 1 and time_passes == [5.0, 5.0, 5.0]

    def test_a_rejected_request_is_submitted_anew(self, server, time_passes):
        rejected = set()

        def reject(request):
            assert request.id not in rejected, "a rejected id is answered in the same way for ever"
            rejected.add(request.id)
            return error("busy", REJECTED, 503, Retry_After="5")(request)

        server.then(reject, error("busy", STOPPING, 503), reject, outcome())
        with Client(server.url, retry_seconds=60) as client:
            assert client.execute(small_program()).request_id not in rejected
        ids = [request.id for request in server.requests]
        assert len(set(ids)) == 3 and ids[1] == ids[2]

    def test_a_rejected_id_that_was_given_is_final(self, server, time_passes):
        server.then(error("busy", REJECTED, 503, Retry_After="5"), outcome())
        with Client(server.url, retry_seconds=60) as client, pytest.raises(ServerError, match="fresh"):
            client.execute(small_program(), request_id=ID)
        assert time_passes == [] and len(server.requests) == 1

    @pytest.mark.parametrize(("message", "may_have_run"), [(KEPT, True), (REJECTED, False)])
    def test_a_server_that_goes_away_after_it_was_busy(self, server, monkeypatch, time_passes, message, may_have_run):
        """What it kept runs when it comes back, whether or not anybody is there to see."""

        def go_away(seconds):
            time_passes.append(seconds)
            monkeypatch.setattr(client._transport, "_port", 1)  # nobody listens there
            client._transport._idle.clear()

        monkeypatch.setattr(kcoral.client, "_sleep", go_away)
        server.then(error("busy", message, 503, Retry_After="5"))
        with Client(server.url, retry_seconds=10) as client, pytest.raises(TransportError) as caught:
            client.execute(small_program())
        assert caught.value.may_have_run == may_have_run
        assert (caught.value.request_id == server.requests[0].id) == may_have_run

    def test_the_server_says_it_in_these_words(self):
        text = (Path(__file__).parents[2] / "gateway" / "execute.cc").read_text()
        assert text.count(kcoral.client._REJECTION) == 1 and kcoral.client._REJECTION in REJECTED
        assert kcoral.client._REJECTION not in KEPT + STOPPING

    def test_patience_ends(self, server, time_passes):
        server.then(*[error("busy", "full", 503, Retry_After="7")] * 3)
        with Client(server.url, retry_seconds=10) as client, pytest.raises(ServerError):
            client.execute(small_program(), request_id=ID)
        assert time_passes == [7.0]
        assert {request.id for request in server.requests} == {ID}

    def test_other_errors_are_never_tried_again(self, server, time_passes):
        server.then(error("engine", "broken", 500, Retry_After="1"), outcome())
        with Client(server.url, retry_seconds=30) as client, pytest.raises(ServerError):
            client.execute(small_program())
        assert time_passes == [] and len(server.requests) == 1

    def test_a_refused_connection(self, time_passes):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Client(url) as client, pytest.raises(TransportError) as caught:
            client.execute(small_program())
        assert not caught.value.may_have_run and caught.value.url == url and url in str(caught.value)
        assert time_passes == []
        with Client(url, retry_seconds=1) as client, pytest.raises(TransportError):
            client.execute(small_program())
        assert 0 < sum(time_passes) <= 1 and len(time_passes) > 1
        with Client(url) as client, pytest.raises(TransportError):
            client.health()

    def test_a_server_that_comes_up_late(self, server, monkeypatch, time_passes):
        late = Client(server.url, retry_seconds=1)
        monkeypatch.setattr(late._transport, "_port", 1)  # nobody listens there
        monkeypatch.setattr(
            kcoral.client,
            "_sleep",
            lambda seconds: monkeypatch.setattr(late._transport, "_port", server.http.server_port),
        )
        server.then(outcome())
        with late:
            assert late.execute(small_program()).completed

    @pytest.mark.parametrize("failure", [Close, Reset])
    def test_what_may_have_run_is_never_sent_again(self, server, time_passes, failure):
        server.then(lambda request: failure(), outcome())
        with Client(server.url, retry_seconds=30) as client, pytest.raises(TransportError) as caught:
            client.execute(small_program())
        assert caught.value.may_have_run and caught.value.request_id == server.requests[0].id
        assert len(server.requests) == 1 and time_passes == []
        assert "may have run" in str(caught.value)

    @pytest.mark.parametrize("count", [0, 10])
    def test_an_answer_that_breaks_off(self, server, client, count):
        server.then(lambda request: Truncated(outcome()(request), count), outcome())
        with pytest.raises(TransportError) as caught:
            client.execute(small_program())
        assert caught.value.may_have_run
        assert client.execute(small_program(), request_id=caught.value.request_id).completed
        assert server.requests[0].id == server.requests[1].id
        assert server.requests[0].parts == server.requests[1].parts

    def test_a_multipart_answer_that_breaks_off(self, server, client):
        content = b"z" * 100_000
        value = {"type": "bytes", "part": "return:0", "sha256": sha256(content)}
        server.then(lambda request: Truncated(outcome({"v": value}, [content])(request), 50_000))
        with pytest.raises(TransportError):
            client.execute(small_program())

    def test_a_kept_connection_that_was_closed_is_replaced(self, server, client):
        def close_afterwards(request):
            answer = outcome()(request)
            answer.close = True  # without a Connection: close header
            return answer

        server.then(close_afterwards, outcome(), outcome())
        for _ in range(3):
            client.execute(small_program())
        assert len(server.requests) == 3

    def test_a_kept_connection_that_closes_on_the_request_attaches(self, server, client):
        server.then(outcome(), lambda request: Close(), outcome())
        client.execute(small_program())
        client.execute(small_program())
        assert server.requests[1].id == server.requests[2].id

    def test_silence(self, server):
        release = threading.Event()

        def wait(request):
            release.wait(30)
            return outcome()(request)

        server.then(wait)
        with Client(server.url, timeout=0.05) as client, pytest.raises(TransportError, match="timed out") as caught:
            client.execute(small_program())
        release.set()
        assert caught.value.may_have_run


class TestHealth:
    DOCUMENT = {
        "status": "ok",
        "instance_id": ID,
        "started_at": "2026-11-29T19:24:56.012345Z",
        "gpu_count": 1,
        "load": {"request_capacity": 8, "requests_in_progress": 1, "requests_waiting": 0},
        "target": {"arch": "sm_90a"},
        "versions": {"kcoral": "0.1.0", "python": "3.11.2"},
    }

    def answer(self, **changes):
        document = {name: value for name, value in {**self.DOCUMENT, **changes}.items() if value is not ...}
        return lambda request: Answer(200, json.dumps(document).encode())

    def test_quarantined_executors_are_there_only_while_there_are_some(self, server, client):
        quarantined = [{"executor": "executor-0", "since": "2026-11-29T19:24:56.012345Z", "reason": "stuck"}]
        server.then(self.answer(quarantined=quarantined), self.answer(quarantined={}), self.answer(quarantine=[]))
        assert client.health()["quarantined"] == quarantined
        for complaint in ("health.quarantined is no array", "unknown field quarantine"):
            with pytest.raises(MalformedAnswerError, match=complaint):
                client.health()

    def test_health_and_target(self, server, client):
        server.then(self.answer(), self.answer(), self.answer(target={}))
        assert client.health() == self.DOCUMENT
        assert client.target()["arch"] == "sm_90a"
        assert server.requests[0].path == "/health"
        target = client.target()
        assert target == {} and target.get("arch") is None
        with pytest.raises(KCoralError, match="no GPU"):
            target["arch"]

    @pytest.mark.parametrize(
        "changes",
        [{"load": ...}, {"extra": 1}, {"load": {}}, {"target": []}, {"versions": None}, {"status": 1}],
        ids=str,
    )
    def test_what_is_no_health_document(self, server, client, changes):
        server.then(self.answer(**changes))
        with pytest.raises(MalformedAnswerError):
            client.health()

    def test_an_error(self, server, client):
        server.then(error("unauthorized", "no token", 401))
        with pytest.raises(ServerError, match="no token"):
            client.health()


class TestConstruction:
    def test_the_address(self, server, monkeypatch):
        monkeypatch.delenv("KCORAL_URL", raising=False)
        assert Client().url == "http://127.0.0.1:8000"
        monkeypatch.setenv("KCORAL_URL", server.url)
        server.then(outcome())
        with Client() as client:
            client.execute(small_program())

    def test_a_prefix(self, server):
        server.then(outcome())
        with Client(server.url + "/gpu/") as client:
            client.execute(small_program())
        assert server.requests[0].path == "/gpu/execute"

    @pytest.mark.parametrize(
        "url", ["localhost:8000", "ftp://x", "http://", "http://u:p@h", "http://h/?q", "http://h:x"]
    )
    def test_a_bad_address(self, url):
        with pytest.raises(ValueError):
            Client(url)

    @pytest.mark.parametrize("text", ["", "a\r\nB: c", "ü"])
    def test_bad_header_texts(self, text):
        with pytest.raises(ValueError):
            Client("http://h", client_name=text)
        with pytest.raises(ValueError):
            Client("http://h", token=text)

    def test_a_closed_client(self, server):
        client = Client(server.url)
        client.close()
        client.close()
        with pytest.raises(RuntimeError, match="closed"):
            client.health()


def test_many_threads_share_a_client(server, client):
    def echo(request):
        (content,) = (request.parts[f"blob:{digest}"] for digest in request.blobs)
        return outcome({"size": {"type": "integer", "value": len(content)}})(request)

    server.then(*[echo] * 80)
    failures = []

    def run(size):
        for _ in range(10):
            result = client.execute(program_with(b"x" * size))
            if result.results != {"size": size}:
                failures.append((size, result))

    threads = [threading.Thread(target=run, args=(100 * index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(server.requests) == 80
    assert len({request.connection for request in server.requests}) <= 8
