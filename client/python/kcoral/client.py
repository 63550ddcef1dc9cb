"""The client of one server."""

from __future__ import annotations

import functools
import http.client
import io
import os
import secrets
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from ._multipart import FormBody, Part, parse_header_value, read_parts
from ._transport import Transport
from .blob import Blob
from .errors import KCoralError, MalformedAnswerError, ProgramError, ServerError, TransportError
from .program import Program
from .result import ProgramResult, check_fields, decode_outcome, decode_server_error, parse_document

DEFAULT_URL = "http://127.0.0.1:8000"

# Blobs up to this size are sent without asking whether the server holds them, as long as all of them together stay
# below the second bound: a round trip costs more than these bytes.
INLINE_BLOB_BYTES = 16 * 1024
INLINE_TOTAL_BYTES = 256 * 1024

# Pauses while the server cannot be reached or is busy without saying for how long.
_RETRY_PAUSE_SECONDS = 0.1
_RETRY_PAUSE_SECONDS_MAX = 5.0

# What the message of a rejection says, and of nothing else (docs/protocol.md, section 5).
_REJECTION = "fresh X-Request-ID"

_HEALTH_FIELDS = frozenset({"status", "instance_id", "started_at", "gpu_count", "load", "target", "versions"})
_LOAD_FIELDS = frozenset({"request_capacity", "requests_in_progress", "requests_waiting"})

# Replaced by tests, which do not wait.
_monotonic = time.monotonic
_sleep = time.sleep


class Target(dict[str, str]):
    """What code for a server's GPUs is compiled for: {"arch": "sm_90a"}, or nothing on a CPU server."""

    def __missing__(self, key: str) -> str:
        raise KCoralError(f"the server has no GPU, so its target has no {key!r}")


class Client:
    """Has one server execute programs. Thread-safe; a context manager that closes its connections.

    `url` defaults to the environment variable KCORAL_URL, then to http://127.0.0.1:8000. `token` is sent as a bearer
    token, `client_name` names this client in the server's history. `connect_timeout` bounds the making of a connection;
    `timeout` is how many seconds the server may be silent before the client gives up: None waits as long as the server
    takes, which bounds queueing and running itself. `tls` is the context for https URLs.

    What was sent is sent again only where that cannot run it twice: when blobs are missing, when a kept connection had
    been closed already, and, for at most `retry_seconds` (default 0: not at all), when the server cannot have received
    all of it or is busy (503, 429; its Retry-After is followed). It goes out under the same id, since a server that
    stops is busy, too, and may keep the program for its next start. Only where the server says that it gave up on the
    id for good is there a fresh one.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        timeout: float | None = None,
        connect_timeout: float | None = 10.0,
        retry_seconds: float = 0.0,
        client_name: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._transport = Transport(url or os.environ.get("KCORAL_URL") or DEFAULT_URL, connect_timeout, timeout, tls)
        self._retry_seconds = retry_seconds
        self._headers: dict[str, str] = {}
        if client_name is not None:
            self._headers["X-KCoral-Client"] = _header_text("client_name", client_name)
        if token is not None:
            self._headers["Authorization"] = "Bearer " + _header_text("token", token)

    @property
    def url(self) -> str:
        return self._transport.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Calls in other threads end undisturbed; later calls raise RuntimeError."""
        self._transport.close()

    def execute(
        self,
        program: Program,
        *,
        timeout_seconds: float | None = None,
        output_limit_bytes: int | None = None,
        gpu_count: int | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        request_id: str | uuid.UUID | None = None,
    ) -> ProgramResult:
        """Runs `program` once and waits for its outcome. An instruction that fails is an outcome, not an exception.

        Options that are None take the server's defaults. `request_id` (by default a fresh UUID) is the submission's
        identity: a second submission of the same program with the same options and id attaches to the first.

        Raises ServerError when the server answers with an error, a deadline that passed among them (after "busy" the
        program may still be in the queue of a server that stopped: ask again with `request_id=error.request_id`);
        TransportError when no complete answer arrived; MalformedAnswerError when it is not as the contract says;
        ProgramError when a local file of the program has changed.
        """
        options = {
            "timeout_seconds": timeout_seconds,
            "output_limit_bytes": output_limit_bytes,
            "gpu_count": gpu_count,
            "priority": priority,
            "labels": None if labels is None else dict(labels),
            "max_attempts": max_attempts,
        }
        text = program.to_json({name: value for name, value in options.items() if value is not None}).encode()
        identity = _fresh_id() if request_id is None else _canonical_uuid(request_id)
        patience = _Patience(self._retry_seconds)
        may_be_queued = False
        while True:
            try:
                return self._submit(text, program.blobs, identity)
            except TransportError as error:
                if error.may_have_run:
                    raise
                if patience.pause(None):
                    continue
                if may_be_queued:
                    raise TransportError(self.url, error.reason, identity, may_have_run=True) from error
                raise
            except ServerError as error:
                is_rejection = error.http_status == 503 and _REJECTION in error.message
                final = error.http_status not in (429, 503) or (is_rejection and request_id is not None)
                if final or not patience.pause(error.retry_after):
                    raise
                if is_rejection:
                    identity = _fresh_id()
                may_be_queued = not is_rejection and (may_be_queued or error.http_status == 503)

    def health(self) -> dict[str, Any]:
        """The server's health document. Raises as `execute` does."""
        with self._transport.exchange("GET", "/health", self._headers, None, None) as response:
            content = response.read()
        try:
            _check_content_type(response, "application/json")
            document = parse_document(content)
            if response.status != 200:
                raise decode_server_error(document, response.status, _retry_after(response))
            check_fields(document, _HEALTH_FIELDS, "health", optional={"quarantined"})
            check_fields(document["load"], _LOAD_FIELDS, "health.load")
            for field in ("target", "versions"):
                if not isinstance(document[field], dict):
                    raise ValueError(f"health.{field} is no object")
            if not isinstance(document.get("quarantined", []), list):
                raise ValueError("health.quarantined is no array")
        except ValueError as error:
            raise MalformedAnswerError(self.url, str(error), response.status) from error
        return document

    def target(self) -> Target:
        """What to compile for: `target()["arch"]` is the architecture of the server's GPUs, e.g. "sm_90a"."""
        return Target(self.health()["target"])

    def _submit(self, text: bytes, blobs: Mapping[str, Blob], request_id: str) -> ProgramResult:
        to_send = _small_blobs(blobs)
        sent: set[str] = set()
        while True:
            outcome = self._post(FormBody(text, [blobs[digest] for digest in to_send]), request_id)
            if isinstance(outcome, ProgramResult):
                return outcome
            # The server may drop what it was sent before while others fill its cache, but not what it was just sent.
            for digest in outcome:
                if digest not in blobs or digest in to_send:
                    raise MalformedAnswerError(self.url, f"blob {digest} cannot be missing", 200, request_id)
            sent.update(to_send)
            again = sent.intersection(outcome)
            to_send = [digest for digest in blobs if digest in outcome or again]

    def _post(self, body: FormBody, request_id: str) -> ProgramResult | list[str]:
        """One attempt: an outcome, or the digests of the blobs that are missing."""
        headers = {**self._headers, "X-Request-ID": request_id}
        with self._transport.exchange("POST", "/execute", headers, body, request_id) as response:
            try:
                return _read_answer(response, request_id)
            except ValueError as error:
                raise MalformedAnswerError(self.url, str(error), response.status, request_id) from error


class _Patience:
    def __init__(self, seconds: float) -> None:
        self._deadline = _monotonic() + seconds
        self._next_pause = _RETRY_PAUSE_SECONDS

    def pause(self, retry_after: float | None) -> bool:
        """Waits before the next try; False, without waiting, when there is no time for one."""
        pause = self._next_pause if retry_after is None else retry_after
        self._next_pause = min(2 * self._next_pause, _RETRY_PAUSE_SECONDS_MAX)
        if _monotonic() + pause > self._deadline:
            return False
        _sleep(pause)
        return True


def _read_answer(response: http.client.HTTPResponse, request_id: str) -> ProgramResult | list[str]:
    media_type, parameters = parse_header_value(response.headers.get("Content-Type", ""))
    parts: Iterator[Part] = iter(())
    if media_type == "application/json":
        document = parse_document(response.read())
    elif media_type == "multipart/form-data" and "boundary" in parameters and response.status == 200:
        parts = read_parts(functools.partial(_read, response), parameters["boundary"])
        document = parse_document(_expect_part(next(parts, None), "result", "application/json").getvalue())
    else:
        excerpt = response.read(200).decode("utf-8", "replace")
        raise ValueError(f"content type {media_type!r}, beginning {excerpt!r}")

    if response.status != 200 or document["status"] == "ERROR":
        if response.status == 200 or document["status"] != "ERROR":
            raise ValueError(f"status {document['status']!r} does not go with HTTP {response.status}")
        raise decode_server_error(document, response.status, _retry_after(response))
    if document.get("request_id") != request_id:
        raise ValueError(f"the answer is for request {document.get('request_id')!r}")
    if document["status"] == "CACHE_MISS":
        return _missing_blobs(document)
    if document["status"] not in ("COMPLETED", "FAILED"):
        raise ValueError(f"unknown status {document['status']!r}")
    result = decode_outcome(document, lambda name: _expect_part(next(parts, None), name, "application/octet-stream"))
    if (extra := next(parts, None)) is not None:
        raise ValueError(f"no value refers to the part {extra.name!r}")
    return result


def _read(response: http.client.HTTPResponse, size: int) -> bytes:
    # The standard library's own read(size) takes a broken connection for the end of the body.
    piece = response.read(size)
    if not piece and response.length:
        raise http.client.IncompleteRead(piece, response.length)
    return piece


def _expect_part(part: Part | None, name: str, content_type: str) -> io.BytesIO:
    if part is None or part.name != name:
        raise ValueError(f"the part {name!r} is not where it should be")
    if part.content_type != content_type:
        raise ValueError(f"the part {name!r} has the content type {part.content_type!r}")
    return part.content


def _missing_blobs(document: Mapping[str, Any]) -> list[str]:
    check_fields(document, {"status", "request_id", "missing_blobs"}, "the answer")
    missing = document["missing_blobs"]
    if not isinstance(missing, list) or not missing or not all(isinstance(digest, str) for digest in missing):
        raise ValueError("missing_blobs is no list of digests")
    if len(set(missing)) != len(missing):
        raise ValueError("missing_blobs names a blob twice")
    return missing


def _small_blobs(blobs: Mapping[str, Blob]) -> list[str]:
    small, total = [], 0
    for digest, blob in blobs.items():
        if blob.size <= INLINE_BLOB_BYTES and total + blob.size <= INLINE_TOTAL_BYTES:
            small.append(digest)
            total += blob.size
    return small


def _fresh_id() -> str:
    """A version 7 UUID (RFC 9562): the server keeps requests by id, and those of one time lie side by side."""
    bits = (time.time_ns() // 1_000_000 & (1 << 48) - 1) << 80 | secrets.randbits(80)
    bits = bits & ~(0xF << 76) | 7 << 76
    return str(uuid.UUID(int=bits & ~(0x3 << 62) | 0x2 << 62))


def _canonical_uuid(request_id: str | uuid.UUID) -> str:
    text = str(request_id)
    try:
        canonical = str(uuid.UUID(text)) == text
    except ValueError:
        canonical = False
    if not canonical:
        raise ProgramError(f"request_id {text!r} is no UUID in its canonical lowercase form")
    return text


def _header_text(name: str, text: str) -> str:
    if not text or not text.isascii() or not text.isprintable():
        raise ValueError(f"{name} is not printable ASCII")
    return text


def _check_content_type(response: http.client.HTTPResponse, expected: str) -> None:
    media_type, _ = parse_header_value(response.headers.get("Content-Type", ""))
    if media_type != expected:
        raise ValueError(f"content type {media_type!r}")


def _retry_after(response: http.client.HTTPResponse) -> float | None:
    text = response.headers.get("Retry-After")
    return float(text) if text is not None and text.isascii() and text.isdigit() else None
