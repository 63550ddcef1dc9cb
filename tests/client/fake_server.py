"""A server that answers as a test tells it to. It can answer anything, close, reset, or stop in the middle.

It reads request bodies with the standard library's mail parser, which shares no code with the client.
"""

from __future__ import annotations

import email.parser
import email.policy
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BOUNDARY = "answer-boundary"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: tuple[str, int]
    parts: dict[str, bytes] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def program(self) -> Any:
        return json.loads(self.parts["program"])

    @property
    def blobs(self) -> list[str]:
        return [name.removeprefix("blob:") for name in self.parts if name != "program"]


@dataclass
class Answer:
    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False


class Close:
    """Closes the connection instead of answering."""


class Reset:
    """Resets the connection instead of answering."""


@dataclass
class Truncated:
    """An answer that stops after `count` bytes of its body."""

    answer: Answer
    count: int


Script = Callable[[Request], "Answer | Close | Reset | Truncated"]


class FakeServer:
    """Answers each request with the next of `script`; what it received stands in `requests`."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.script: list[Script] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.handle_request()

            def do_GET(self) -> None:
                self.handle_request()

            def handle_request(self) -> None:
                fake.handle(self)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that goes away is part of many tests

        self.http = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def then(self, *steps: Script) -> None:
        self.script.extend(steps)

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", "0")))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Request(handler.command, handler.path, headers, body, handler.client_address)
        request.parts = parse_form(headers.get("content-type", ""), body)
        self.requests.append(request)
        step = self.script.pop(0)(request) if self.script else error("engine", "the test has no answer left")(request)
        if isinstance(step, (Close, Reset)):
            if isinstance(step, Reset):
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            handler.connection.close() if isinstance(step, Reset) else handler.connection.shutdown(socket.SHUT_RDWR)
            return
        answer = step.answer if isinstance(step, Truncated) else step
        handler.send_response(answer.status)
        handler.send_header("Content-Type", answer.content_type)
        handler.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.body if answer is step else answer.body[: step.count])
        if answer.close or answer is not step:
            handler.close_connection = True


def parse_form(content_type: str, body: bytes) -> dict[str, bytes]:
    if not content_type.startswith("multipart/"):
        return {}
    parser = email.parser.BytesParser(policy=email.policy.HTTP)
    message = parser.parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    parts: dict[str, bytes] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        assert name not in parts, f"doubled part {name}"
        expected = "application/json" if name == "program" else "application/octet-stream"
        assert part.get_content_type() == expected
        parts[name] = binary_content(content_type, body, name)
    return parts


def binary_content(content_type: str, body: bytes, name: str) -> bytes:
    # The mail parser rewrites line ends in bodies, so the bytes themselves are cut out here.
    boundary = content_type.split("boundary=")[1].encode()
    start = body.index(b"\r\n\r\n", body.index(f'name="{name}"'.encode())) + 4
    return body[start : body.index(b"\r\n--" + boundary, start)]


def outcome(results: dict[str, Any] | None = None, parts: list[bytes] | None = None, **changes: Any) -> Script:
    """A COMPLETED answer, or FAILED when `changes` has an error. A change to `...` removes the field."""

    def answer(request: Request) -> Answer:
        document = {
            "status": "FAILED" if "error" in changes else "COMPLETED",
            "request_id": request.id,
            "queue_ms": 1.5,
            "elapsed_ms": 20.25,
            "lease_wait_ms": 0,
            "lease_held_ms": 0.0,
            "results": {} if results is None else results,
            "stdout": "",
            "stderr": "",
            "stdout_truncated": False,
            "stderr_truncated": False,
            **changes,
        }
        document = {name: value for name, value in document.items() if value is not ...}
        if parts is None:
            return Answer(200, json.dumps(document).encode())
        return multipart(json.dumps(document).encode(), parts)

    return answer


def multipart(document: bytes, parts: list[bytes]) -> Answer:
    pieces = [form_part("result", "application/json", document)]
    pieces += [form_part(f"return:{index}", "application/octet-stream", part) for index, part in enumerate(parts)]
    body = b"".join(pieces) + f"--{BOUNDARY}--\r\n".encode()
    return Answer(200, body, f"multipart/form-data; boundary={BOUNDARY}")


def form_part(name: str, content_type: str, content: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: {content_type}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def cache_miss(*digests: str) -> Script:
    return lambda request: Answer(
        200,
        json.dumps({"status": "CACHE_MISS", "request_id": request.id, "missing_blobs": list(digests)}).encode(),
    )


def error(kind: str, message: str, status: int = 500, **headers: str) -> Script:
    def answer(request: Request) -> Answer:
        document = {
            "status": "ERROR",
            "request_id": request.headers.get("x-request-id", "0"),
            "error": {"kind": kind, "message": message},
        }
        return Answer(
            status, json.dumps(document).encode(), headers={n.replace("_", "-"): v for n, v in headers.items()}
        )

    return answer


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
