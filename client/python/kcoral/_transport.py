"""HTTP exchanges over kept-alive connections, and what can have happened when one breaks."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ._multipart import FormBody
from .errors import TransportError

# Small neighbouring pieces of a body go out in one write.
_WRITE_BYTES = 1 << 16

# A peer that vanished without a word is noticed after about two minutes, however long the answer may take.
_KEEPALIVE_IDLE_SECONDS = 60
_KEEPALIVE_INTERVAL_SECONDS = 15
_KEEPALIVE_PROBES = 4


class Transport:
    """Exchanges with one server. Thread-safe: each exchange has a connection of its own, kept for the next one."""

    def __init__(
        self, url: str, connect_timeout: float | None, timeout: float | None, tls: ssl.SSLContext | None
    ) -> None:
        parsed = urllib.parse.urlsplit(url)
        if parsed.scheme not in ("http", "https") or not parsed.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// URL")
        if parsed.query or parsed.fragment or parsed.username is not None or parsed.password is not None:
            raise ValueError(f"{url!r}: a server's URL has no query, fragment, user or password")
        self.url = url.rstrip("/")
        self._prefix = parsed.path.rstrip("/")
        self._host = parsed.hostname
        self._port = parsed.port
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._tls = (tls or ssl.create_default_context()) if parsed.scheme == "https" else None
        self._mutex = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []  # guarded by _mutex
        self._closed = False  # guarded by _mutex

    def close(self) -> None:
        """Closes kept connections; one that is in use closes when its exchange ends."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: FormBody | None, request_id: str | None
    ) -> Iterator[http.client.HTTPResponse]:
        """Sends a request and yields its answer, whose body the caller reads.

        Raises TransportError, whose `may_have_run` is False when the server cannot have received the whole request; also
        while the caller reads. A kept connection that turns out to have been closed is
        replaced, which cannot run anything twice: the request goes out under the same id.
        """
        while True:
            connection, reused = self._take(request_id)
            sending = _Sending(connection, is_tls=self._tls is not None)
            try:
                response = sending.send(method, self._prefix + path, headers, body)
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if reused and isinstance(error, ConnectionError):
                    continue
                raise self._broken("no answer", error, request_id, body is not None and sending.complete) from error
            except BaseException:
                connection.close()
                raise
        try:
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise self._broken("the answer broke off", error, request_id, body is not None) from error
        finally:
            self._give_back(connection, sending.complete and response.isclosed() and not response.will_close)

    def _broken(self, what: str, error: Exception, request_id: str | None, may_have_run: bool) -> TransportError:
        reason = f"{what}: {str(error) or type(error).__name__}"
        return TransportError(self.url, reason, request_id, may_have_run)

    def _take(self, request_id: str | None) -> tuple[http.client.HTTPConnection, bool]:
        while True:
            with self._mutex:
                if self._closed:
                    raise RuntimeError("the client is closed")
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect(request_id), False
            # Nothing is due on an idle connection: something to read is the end of it.
            if not _is_readable(connection.sock):
                return connection, True
            connection.close()

    def _connect(self, request_id: str | None) -> http.client.HTTPConnection:
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._connect_timeout)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._connect_timeout, context=self._tls
            )
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise self._broken("cannot connect (is a server running there?)", error, request_id, may_have_run=False) from error
        connection.sock.settimeout(self._timeout)
        _notice_vanished_peer(connection.sock)
        return connection

    def _give_back(self, connection: http.client.HTTPConnection, reusable: bool) -> None:
        with self._mutex:
            if reusable and not self._closed and connection.sock is not None:
                self._idle.append(connection)
                return
        connection.close()


class _Sending:
    """One request on its way out. `complete` says whether all of it was handed to the kernel."""

    def __init__(self, connection: http.client.HTTPConnection, is_tls: bool) -> None:
        self._connection = connection
        self._is_tls = is_tls
        self.complete = False

    def send(
        self, method: str, target: str, headers: Mapping[str, str], body: FormBody | None
    ) -> http.client.HTTPResponse:
        self._connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers.items():
            self._connection.putheader(name, value)
        if body is not None:
            self._connection.putheader("Content-Type", body.content_type)
            self._connection.putheader("Content-Length", str(body.size))
        self._connection.endheaders()
        self.complete = self._send_body(body or ())
        return self._connection.getresponse()

    def _send_body(self, pieces: Iterable[bytes | memoryview]) -> bool:
        # A server that refuses a body says so and closes: its answer may be there before all is sent.
        try:
            for chunk in _in_chunks(pieces):
                if self._has_answered():
                    return False
                self._connection.sock.sendall(chunk)
        except (BrokenPipeError, ConnectionResetError):
            if not self._has_answered():
                raise
            return False
        return True

    def _has_answered(self) -> bool:
        # With TLS, readable bytes may belong to the protocol itself and mean nothing.
        return not self._is_tls and _is_readable(self._connection.sock)


def _in_chunks(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    waiting = bytearray()
    for piece in pieces:
        if waiting and len(waiting) + len(piece) > _WRITE_BYTES:
            yield bytes(waiting)
            waiting.clear()
        if len(piece) >= _WRITE_BYTES:
            yield piece
        else:
            waiting += piece
    if waiting:
        yield bytes(waiting)


def _is_readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _notice_vanished_peer(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
