"""Clients that send prepared requests over kept-alive connections, each a process of its own.

A request's bytes are made once, and of an answer only its length and status are looked at, so that what is measured is
the server: how much CPU time the clients took stands in the result.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import socket
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from kcoral import Program

from report import Report

_RECEIVE_BYTES = 1 << 20
_COMPLETED = b'"status":"COMPLETED"'
_LEASE_WAIT = re.compile(rb'"lease_wait_ms":([0-9.eE+-]+)')


@dataclass
class Series:
    """Latencies of one load, from a request's first byte sent to its answer's last byte received."""

    ms: list[float] = field(default_factory=list)
    lease_wait_ms: list[float] = field(default_factory=list)  # of each, how much of it went by waiting for the GPU
    errors: list[str] = field(default_factory=list)  # answers that were not COMPLETED, in their first words
    seconds: float = 0.0
    client_cpu_seconds: float = 0.0  # of all clients together

    def quantile(self, q: float) -> float:
        """The nearest rank. Requires: something was answered."""
        return quantile(self.ms, q)

    def per_second(self) -> float:
        return len(self.ms) / self.seconds if self.seconds else 0.0


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * (len(ordered) - 1) + 0.5))]


def request_bytes(program: Program) -> bytes:
    """`program` as a request without content: the server must hold its blobs already."""
    boundary = "kcoral-load"
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="program"\r\n'
        f"Content-Type: application/json\r\n\r\n{program.to_json()}\r\n--{boundary}--\r\n"
    ).encode()
    head = (
        "POST /execute HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: multipart/form-data; boundary={boundary}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run_load(port: int, request: bytes, *, clients: int, seconds: float, per_second: float | None = None) -> Series:
    """`clients` processes send `request` again and again for `seconds`.

    `per_second` paces each of them: a request goes out at each tick, or at once where the answer before came late.
    """
    context = multiprocessing.get_context("fork")
    started = time.monotonic()
    running = []
    for _ in range(clients):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_client, args=(theirs, port, request, started + seconds, per_second))
        process.start()
        theirs.close()
        running.append((process, ours))
    whole = Series()
    for process, connection in running:
        ms, lease_wait_ms, errors, cpu_seconds = connection.recv()
        whole.ms += ms
        whole.lease_wait_ms += lease_wait_ms
        whole.errors += errors
        whole.client_cpu_seconds += cpu_seconds
        process.join()
    whole.seconds = time.monotonic() - started
    return whole


def _client(results: Connection, port: int, request: bytes, deadline: float, per_second: float | None) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    ms: list[float] = []
    lease_wait_ms: list[float] = []
    errors: list[str] = []
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _send_until(deadline, connection, request, per_second, ms, lease_wait_ms, errors)
    except OSError as error:
        errors.append(repr(error))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    results.send((ms, lease_wait_ms, errors, cpu_seconds))
    results.close()
    os._exit(0)


def _send_until(
    deadline: float,
    connection: socket.socket,
    request: bytes,
    per_second: float | None,
    ms: list[float],
    lease_wait_ms: list[float],
    errors: list[str],
) -> None:
    next_at = time.monotonic()
    buffer = bytearray(_RECEIVE_BYTES)
    while time.monotonic() < deadline:
        if per_second is not None:
            time.sleep(max(0.0, next_at - time.monotonic()))
            next_at = max(next_at + 1 / per_second, time.monotonic())
        begin = time.perf_counter()
        connection.sendall(request)
        answer = _receive(connection, buffer)
        elapsed_ms = (time.perf_counter() - begin) * 1e3
        if _COMPLETED not in answer:
            errors.append(answer[:600].decode(errors="replace"))
            continue
        ms.append(elapsed_ms)
        if waited := _LEASE_WAIT.search(answer):
            lease_wait_ms.append(float(waited[1]))


def _receive(connection: socket.socket, buffer: bytearray) -> bytes:
    """The first piece of the answer, whose rest is read and dropped."""
    first = bytearray()
    while (head_bytes := first.find(b"\r\n\r\n")) < 0:
        received = connection.recv_into(buffer)
        if received == 0:
            raise ConnectionError("the server closed the connection")
        first += memoryview(buffer)[:received]
    missing = head_bytes + 4 + _content_length(bytes(first[:head_bytes])) - len(first)
    while missing > 0:
        received = connection.recv_into(buffer)
        if received == 0:
            raise ConnectionError("the server closed the connection within an answer")
        if len(first) < 4096:
            first += memoryview(buffer)[:received]
        missing -= received
    return bytes(first)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise ConnectionError("an answer without Content-Length")


def _summary(series: Series) -> dict[str, Any]:
    """A series as figures for a file."""
    return {
        "count": len(series.ms),
        "seconds": series.seconds,
        "per_second": series.per_second(),
        "client_cpu_seconds": series.client_cpu_seconds,
        "errors": series.errors[:20],
        "ms": [round(each, 3) for each in series.ms],
        "lease_wait_ms": [round(each, 3) for each in series.lease_wait_ms],
    }


def record(report: Report, name: str, series: Series) -> bool:
    """Records that all went well, and what the clients themselves took. Whether there is anything to look at."""
    report.attach(name, _summary(series))
    report.expect(f"{name}: every answer is COMPLETED", not series.errors, f"{len(series.errors)}: {series.errors[:2]}")
    report.figure(
        f"{name}: CPU of the load generator, of one core", 100 * series.client_cpu_seconds / series.seconds, "%"
    )
    return report.expect(f"{name}: something was answered", bool(series.ms), "nothing")
