"""Raw HTTP from many clients in one process: each has a kept-alive connection, and knows when its answer was there."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from harness import Reply


@dataclass
class Answered:
    """`asked` and `answered`: by the wall clock, which is the server's too."""

    reply: Reply
    asked: float
    answered: float


class Asking:
    """One client. Not for two calls at once."""

    IDLE_S_MAX = 60  # the server closes a connection a while later

    def __init__(self, port: int):
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answered:
        """Header names are given with underscores."""
        if time.monotonic() - self._used > self.IDLE_S_MAX:
            self.close()
        if not self._streams:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        reader, writer = self._streams
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        asked = time.time()
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        status, got = await self._head(reader)
        content = await reader.readexactly(int(got["content-length"]))
        answered = time.time()
        self._used = time.monotonic()
        if got.get("connection") == "close":
            self.close()
        return Answered(Reply(status, got, content), asked, answered)

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
        """Past the interim responses that a client gets while it waits."""
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
            status = int(first.split(" ", 2)[1])
            if status >= 200:
                pairs = (line.split(":", 1) for line in lines)
                return status, {name.lower(): value.strip() for name, value in pairs}

    def close(self) -> None:
        if self._streams:
            self._streams[1].close()
            self._streams = None
