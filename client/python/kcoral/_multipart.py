"""multipart/form-data: written in pieces, read strictly as a stream."""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .blob import Blob

_READ_BYTES = 1 << 18
_PART_HEAD_BYTES_MAX = 8192
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf';\s*({_TOKEN})=(?:({_TOKEN})|"((?:[^"\\]|\\.)*)")\s*')
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


class FormBody:
    """A request body of one program and any number of blobs. Iterating yields its pieces; may be iterated
    repeatedly."""

    def __init__(self, program: bytes, blobs: Iterable[Blob]) -> None:
        self._boundary = "kcoral-" + secrets.token_hex(16)
        self._program = program
        self._blobs = list(blobs)

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self._boundary}"

    @property
    def size(self) -> int:
        heads = sum(len(self._head(name, kind)) for name, kind in self._parts())
        contents = len(self._program) + sum(blob.size for blob in self._blobs)
        return heads + contents + len(self._end())

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head("program", "application/json") + self._program
        for blob in self._blobs:
            yield self._head(f"blob:{blob.sha256}", "application/octet-stream")
            yield from blob.pieces()
        yield self._end()

    def _parts(self) -> Iterator[tuple[str, str]]:
        yield "program", "application/json"
        for blob in self._blobs:
            yield f"blob:{blob.sha256}", "application/octet-stream"

    def _head(self, name: str, content_type: str) -> bytes:
        start = "" if name == "program" else "\r\n"
        return (
            f"{start}--{self._boundary}\r\n"
            f'Content-Disposition: form-data; name="{name}"\r\n'
            f"Content-Type: {content_type}\r\n\r\n"
        ).encode()

    def _end(self) -> bytes:
        return f"\r\n--{self._boundary}--\r\n".encode()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a body. Its content can be had as bytes (`getvalue`) or writable (`getbuffer`), both without a copy."""

    name: str
    content_type: str
    content: io.BytesIO


def parse_header_value(text: str) -> tuple[str, dict[str, str]]:
    """Splits `form-data; name="x"` into its lowercase value and its parameters. Raises ValueError."""
    value, _, _ = text.partition(";")
    parameters: dict[str, str] = {}
    position = len(value)
    while position < len(text):
        match = _PARAMETER.match(text, position)
        if match is None:
            raise ValueError(f"malformed header value {text!r}")
        name = match.group(1).lower()
        if name in parameters:
            raise ValueError(f"doubled parameter in {text!r}")
        parameters[name] = match.group(2) if match.group(3) is None else re.sub(r"\\(.)", r"\1", match.group(3))
        position = match.end()
    return value.strip().lower(), parameters


def read_parts(read: Callable[[int], bytes], boundary: str) -> Iterator[Part]:
    """Yields the parts of a body as `read` delivers it (b"" at its end).

    Each part's content is gathered in a buffer of its own, so a large body is never held twice. Raises ValueError for
    anything that is not exactly a sequence of parts: text before the first or after the last, a missing end, a part
    without one name and one content type.
    """
    if not _BOUNDARY.fullmatch(boundary):
        raise ValueError(f"malformed boundary {boundary!r}")
    stream = _Stream(read)
    opening = f"--{boundary}".encode()
    if stream.take(len(opening)) != opening:
        raise ValueError("the body does not begin with its boundary")
    delimiter = b"\r\n" + opening
    while True:
        after = stream.take(2)
        if after == b"--":
            break
        if after != b"\r\n":
            raise ValueError("malformed boundary line")
        name, content_type = _part_head(stream)
        yield Part(name, content_type, stream.take_until(delimiter))
    if stream.rest_up_to(3) not in (b"", b"\r\n"):
        raise ValueError("text after the last part")


def _part_head(stream: _Stream) -> tuple[str, str]:
    head = stream.take_until(b"\r\n\r\n", _PART_HEAD_BYTES_MAX).getvalue()
    headers: dict[str, str] = {}
    for line in head.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not re.fullmatch(_TOKEN, name) or name in headers:
            raise ValueError(f"malformed part header {line!r}")
        headers[name] = value.strip()
    disposition, parameters = parse_header_value(headers.get("content-disposition", ""))
    if disposition != "form-data" or "name" not in parameters:
        raise ValueError("a part without a name")
    content_type, _ = parse_header_value(headers.get("content-type", ""))
    return parameters["name"], content_type


class _Stream:
    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._buffer = bytearray()

    def _fill(self) -> None:
        piece = self._read(_READ_BYTES)
        if not piece:
            raise ValueError("the body ends inside a part")
        self._buffer += piece

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def take_until(self, delimiter: bytes, size_max: int | None = None) -> io.BytesIO:
        """All bytes before the delimiter, which is consumed too."""
        taken = io.BytesIO()
        while True:
            found = self._buffer.find(delimiter)
            # What may be the beginning of the delimiter stays in the buffer.
            safe = found if found >= 0 else max(0, len(self._buffer) - len(delimiter) + 1)
            with memoryview(self._buffer) as view:
                taken.write(view[:safe])
            del self._buffer[: safe if found < 0 else found + len(delimiter)]
            if size_max is not None and taken.tell() > size_max:
                raise ValueError(f"a part's headers are longer than {size_max} bytes")
            if found >= 0:
                return taken
            self._fill()

    def rest_up_to(self, count: int) -> bytes:
        while len(self._buffer) < count and (piece := self._read(_READ_BYTES)):
            self._buffer += piece
        return bytes(self._buffer[:count])
