"""A real server process, spoken to over raw HTTP.

Nothing here uses the client package, so that these tests hold the wire itself: answers are decoded strictly, and a field
more or less than the contract names fails the test that reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import tempfile
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KCORAL_BUILD_DIR", ROOT / "build" / "release"))
KCORAL = BUILD / "bin" / "kcoral"

# Generous: these machines are noisy, and a wait that ends early on success costs nothing.
PATIENCE_S = 60.0


def wait_until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Waits for a condition and returns its value; fails the test, saying what never came."""
    deadline = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s in vain: {what}"
        select.select([], [], [], 0.01)


class Server:
    """`kcoral server` on a free port with a data directory of its own. `prefix`: what starts it (as `env` does)."""

    def __init__(
        self,
        data_dir: pathlib.Path,
        *flags: str,
        environment: dict[str, str] | None = None,
        device: str | None = "cpu",
        prefix: list[str] | None = None,
    ):
        self.data_dir = data_dir
        self.flags = flags if device is None else ("--device", device, *flags)
        self.environment = environment or {}
        self.prefix = prefix or []
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_line = ""
        self.port = 0
        self.log_path = pathlib.Path(str(data_dir) + ".log")

    def start(self) -> "Server":
        command = [*self.prefix, str(KCORAL), "server", "--port", "0", "--data-dir", str(self.data_dir), *self.flags]
        log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **self.environment}
        )
        log.close()
        self.ready_line = self._read_ready_line()
        self.port = int(re.search(r"http://[^ ]*:(\d+)", self.ready_line).group(1))
        return self

    def _read_ready_line(self) -> str:
        deadline = time.monotonic() + PATIENCE_S
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))
            piece = os.read(self.process.stdout.fileno(), 4096) if readable else b""
            assert piece, f"the server did not become ready; its log:\n{self.log()}"
            line += piece
        return line.decode()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """As the out-of-memory killer would: at once, without a word."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self, patience_s: float = PATIENCE_S) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(patience_s)
        self.process.stdout.close()
        return code

    @property
    def pid(self) -> int:
        return self.process.pid

    def connect(self, timeout_s: float = PATIENCE_S) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> "Reply":
        connection = self.connect()
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return Reply(response.status, dict((k.lower(), v) for k, v in response.getheaders()), response.read())
        finally:
            connection.close()

    def post(self, program: "Program | bytes | str | dict", blobs: list[bytes] | None = None, **headers: str) -> "Reply":
        """POST /execute. Header names are given with underscores: X_Request_ID="..."."""
        if isinstance(program, Program):
            blobs = list(program.blobs.values()) if blobs is None else blobs
            program = program.document()
        if isinstance(program, dict):
            program = json.dumps(program)
        if isinstance(program, str):
            program = program.encode()
        content_type, body = multipart(program, blobs or [])
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", "/execute", body, {"Content-Type": content_type, **sent})

    def execute(self, program: "Program", **headers: str) -> "Result":
        reply = self.post(program, **headers)
        assert reply.status == 200, (reply.status, reply.body[:2000])
        return reply.result()

    def run(self, source: str, function: str = "main", args: list | None = None, **options: Any) -> "Result":
        """Uploads a module, calls one function of it, returns what it returned under "value"."""
        return self.execute(call(source, function, args, **options))

    def health(self) -> dict:
        return json.loads(self.request("GET", "/health").body)


def multipart(program: bytes, blobs: list[bytes], boundary: str = "kcoral-test-boundary") -> tuple[str, bytes]:
    parts = [("program", "application/json", program)]
    parts += [(f"blob:{hashlib.sha256(blob).hexdigest()}", "application/octet-stream", blob) for blob in blobs]
    body = b""
    for name, content_type, content in parts:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: {content_type}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", body + f"--{boundary}--\r\n".encode()


@dataclass
class Program:
    """Instructions as plain dictionaries, with their blobs."""

    instructions: list[dict] = field(default_factory=list)
    options: dict | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)

    def add(self, op: str, **fields: Any) -> dict:
        """Appends an instruction; answers a reference to its handle."""
        self.instructions.append({"op": op, **fields})
        return {"$ref": fields.get("id")}

    def blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return digest

    def module(self, source: str, id: str = "module") -> dict:
        return self.add("upload", id=id, kind="module", source=source)

    def call(self, module: dict, name: str, args: list | None = None, id: str | None = None, **fields: Any) -> dict:
        id = id or f"{name}-result-{len(self.instructions)}"
        function = self.add("get_function", id=f"{id}-fn", module=module, name=name, **fields)
        return self.add("run", id=id, fn=function, **({} if args is None else {"args": args}))

    def give(self, key: str, value: dict) -> None:
        self.add("return", key=key, value=value)

    def document(self) -> bytes:
        body: dict[str, Any] = {"instructions": self.instructions}
        if self.options is not None:
            body["options"] = self.options
        return json.dumps(body).encode()


def call(source: str, function: str = "main", args: list | None = None, **options: Any) -> Program:
    program = Program(options=options or None)
    program.give("value", program.call(program.module(source), function, args, id="result"))
    return program


RESULT_FIELDS = {
    "status", "request_id", "queue_ms", "elapsed_ms", "lease_wait_ms", "lease_held_ms", "results", "stdout", "stderr",
    "stdout_truncated", "stderr_truncated",
}  # fmt: skip
ERROR_FIELDS = {"kind", "message", "instruction_index", "instruction_op", "instruction_id", "traceback"}
ACCESS_FIELDS = {"cuda_call", "location", "interfered_request_id"}
VALUE_FIELDS = {
    "null": set(),
    "boolean": {"value"},
    "integer": {"value"},
    "number": {"value"},
    "string": {"value"},
    "array": {"value"},
    "object": {"value"},
    "bytes": {"part", "sha256"},
    "file": {"size", "part", "sha256"},
    "folder": {"files", "directories"},
    "tensor": {"dtype", "shape", "part", "sha256"},
}


@dataclass
class Tensor:
    dtype: str
    shape: list[int]
    data: bytes


@dataclass
class Folder:
    files: dict[str, bytes]
    directories: list[str]


@dataclass
class Result:
    """A COMPLETED or FAILED answer whose every field was checked against the contract."""

    status: str
    document: dict
    values: dict[str, Any]
    error: dict | None

    @property
    def stdout(self) -> str:
        return self.document["stdout"]

    @property
    def stderr(self) -> str:
        return self.document["stderr"]

    def value(self, key: str = "value") -> Any:
        assert self.status == "COMPLETED", self.error
        return self.values[key]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict:
        assert self.headers["content-type"] == "application/json", self.headers
        return json.loads(self.body)

    def error(self, status: int, kind: str) -> str:
        """Checks an error body of contract section 7 and answers its message."""
        document = self.json()
        assert (self.status, set(document)) == (status, {"status", "request_id", "error"}), (self.status, document)
        assert document["status"] == "ERROR"
        assert document["request_id"] == self.headers["x-request-id"] == str(uuid.UUID(document["request_id"]))
        assert set(document["error"]) == {"kind", "message"}
        assert document["error"]["kind"] == kind, document
        return document["error"]["message"]

    def result(self) -> Result:
        content_type = self.headers["content-type"]
        parts: dict[str, bytes] = {}
        if content_type == "application/json":
            document = json.loads(self.body)
        else:
            kind, _, boundary = content_type.partition("; boundary=")
            assert kind == "multipart/form-data"
            pieces = split_multipart(self.body, boundary.strip('"'))
            assert pieces[0][0] == "result"
            document = json.loads(pieces[0][1])
            parts = dict(pieces[1:])
            assert list(parts) == [f"return:{n}" for n in range(len(parts))]
        fields = RESULT_FIELDS | ({"error"} if document["status"] == "FAILED" else set())
        if "gpu_count" in document:
            assert document["gpu_count"] > 1
            fields = fields | {"gpu_count", "gpu_ids"}
        assert set(document) == fields, set(document) ^ fields
        assert document["request_id"] == self.headers["x-request-id"]
        for name in ("queue_ms", "elapsed_ms", "lease_wait_ms", "lease_held_ms"):
            assert isinstance(document[name], (int, float)) and document[name] >= 0
        unused = dict(parts)
        values = {key: decode_value(value, unused) for key, value in document["results"].items()}
        assert not unused, f"parts that no value names: {list(unused)}"
        error = document.get("error")
        if error is not None:
            assert set(error) == ERROR_FIELDS | (ACCESS_FIELDS if error["kind"] == "gpu_access" else set()), error
            assert len(error["traceback"].encode()) <= 8192
        return Result(document["status"], document, values, error)


def split_multipart(body: bytes, boundary: str) -> list[tuple[str, bytes]]:
    delimiter = b"\r\n--" + boundary.encode()
    pieces = (b"\r\n" + body).split(delimiter)
    assert pieces[0] == b"" and pieces[-1].strip() == b"--", "multipart framing"
    found = []
    for piece in pieces[1:-1]:
        head, _, content = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        name = re.fullmatch(r'form-data; name="([^"]+)"', headers["Content-Disposition"]).group(1)
        expected = "application/json" if name == "result" else "application/octet-stream"
        assert headers["Content-Type"] == expected
        found.append((name, content))
    return found


def decode_value(value: dict, parts: dict[str, bytes]) -> Any:
    kind = value["type"]
    assert set(value) == {"type"} | VALUE_FIELDS[kind], value

    def content() -> bytes:
        data = parts.pop(value["part"])
        assert hashlib.sha256(data).hexdigest() == value["sha256"]
        return data

    if kind == "null":
        return None
    if kind == "array":
        return [decode_value(item, parts) for item in value["value"]]
    if kind == "object":
        return {key: decode_value(item, parts) for key, item in value["value"].items()}
    if kind == "bytes":
        return content()
    if kind == "file":
        data = content()
        assert len(data) == value["size"]
        return data
    if kind == "folder":
        assert list(value["files"]) == sorted(value["files"]) and value["directories"] == sorted(value["directories"])
        assert all(file["type"] == "file" for file in value["files"].values())
        return Folder({path: decode_value(file, parts) for path, file in value["files"].items()}, value["directories"])
    if kind == "tensor":
        return Tensor(value["dtype"], value["shape"], content())
    return value["value"]


@contextlib.contextmanager
def running_server(*flags: str, **more: Any) -> Iterator[Server]:
    """`more`: as Server takes it."""
    with tempfile.TemporaryDirectory(prefix="kcoral-test-") as directory:
        server = Server(pathlib.Path(directory) / "data", *flags, **more).start()
        try:
            yield server
        finally:
            code = server.stop()
        assert code == 0, f"the server ended with {code}; its log:\n{server.log()}"


@dataclass(frozen=True)
class Process:
    """Another one of the same number is another process."""

    pid: int
    started: int  # in ticks since the machine started
    parent: int
    state: str
    name: str


def process(pid: int) -> Process | None:
    try:
        before, _, after = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = after.split()
    return Process(pid, int(fields[19]), int(fields[1]), fields[0], before.partition("(")[2])


def still_runs(seen: Process) -> bool:
    found = process(seen.pid)
    return found is not None and found.started == seen.started and found.state not in "ZX"


def processes() -> list[Process]:
    return [found for name in os.listdir("/proc") if name.isdigit() and (found := process(int(name)))]


def family(pid: int) -> list[Process]:
    """All that is below a process, parents before their children; zombies too."""
    children = defaultdict(list)
    for each in processes():
        children[each.parent].append(each)
    found, parents = [], [pid]
    while parents:
        below = children.pop(parents.pop(), [])
        found += below
        parents += [each.pid for each in below]
    return found


def executors_of(data_dir: pathlib.Path) -> list[int]:
    """Processes that hold a slot of this data directory."""
    held = []
    locks = {os.stat(path).st_ino for path in (data_dir / "executors").glob("*.lock")}
    for line in pathlib.Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if "FLOCK" in fields and int(fields[5].rpartition(":")[2]) in locks:
            held.append(int(fields[4]))
    return held


def sandboxes_with(exposed: pathlib.Path) -> list[Process]:
    """bubblewrap's processes that show this directory to programs. All that is in a sandbox dies with them."""
    found = []
    for each in processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            arguments = pathlib.Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0")
            if os.fsencode(exposed) in arguments and b"--die-with-parent" in arguments:
                found.append(each)
    return found
