"""From an exception of the program to the error document of contract section 6.

Theory of operation. The exception is the program's object: its `__str__` may raise, its class may lie about its name,
and `traceback` and `linecache` may have been replaced. So types are asked through the descriptors of the base
classes, source lines are read by ourselves, and whatever goes wrong on the way shortens the traceback instead of
losing the error.

Frames of our own code and of the calls that led into the program are left out; uploaded source is shown with its
lines.
"""

from __future__ import annotations

import sys
from os import O_CLOEXEC, O_NOCTTY, O_NONBLOCK, O_RDONLY, close, fstat, read
from os import open as open_fd
from os import write
from stat import S_ISREG
from types import TracebackType
from typing import Any, Callable, Iterator, Optional

MESSAGE_BYTES_MAX = 16 * 1024  # schema/limits.h, kErrorMessageBytesMax
TRACEBACK_BYTES_MAX = 8192  # schema/limits.h, kTracebackBytesMax; the end is kept

_CHAIN_MAX = 16  # exceptions shown of a chain of causes: the last ones
_GROUP_MAX = 15  # exceptions shown of a group, as Python's own traceback does
_FRAMES_MAX = 400  # looked at from each end of a traceback: more than fits
_REPEATS_SHOWN = 3  # of one line that calls itself
_SOURCE_BYTES_MAX = 4 * 1024 * 1024

_OUR_DIRECTORY = __file__[: __file__.rindex("/") + 1]
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
_HEADER = "Traceback (most recent call last):\n"

_type_name = type.__dict__["__name__"].__get__
_type_module = type.__dict__["__module__"].__get__
_get_traceback = BaseException.__dict__["__traceback__"].__get__
_get_cause = BaseException.__dict__["__cause__"].__get__
_get_context = BaseException.__dict__["__context__"].__get__
_get_suppressed = BaseException.__dict__["__suppress_context__"].__get__
_get_code = SystemExit.__dict__["code"].__get__
_syntax = {name: SyntaxError.__dict__[name].__get__ for name in ("filename", "lineno", "offset", "text", "msg")}
_Group: Any = getattr(sys.modules["builtins"], "BaseExceptionGroup", None)  # from 3.11


class InstructionFailed(Exception):
    """Ends the program with an error of one of the contract's kinds."""

    def __init__(
        self,
        kind: str,
        message: str,
        cause: Optional[BaseException] = None,
        details: Optional[dict[str, str]] = None,
    ) -> None:
        """`cause`: the program's exception that the traceback shows. `details`: further members of the document."""
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.cause = cause
        self.details = details


def name_of(exception: BaseException) -> str:
    return _type_name(type(exception))


def message_of(exception: BaseException) -> str:
    """The exception's own message, or its type's name where there is none or it cannot be made."""
    try:
        text = str.__str__(str(exception))
    except BaseException:
        text = ""
    return text if text else name_of(exception)


def ending_message_of(exception: BaseException) -> str:
    """The message for an exception that means to end the process: it says so."""
    kind = type(exception)
    if issubclass(kind, SystemExit):
        code = _get_code(exception)
        shown = repr(code) if type(code) in (int, bool, str, type(None)) else name_of(exception)
        return "the program ended itself: sys.exit(" + ("" if code is None else shown) + ")"
    name, text = name_of(exception), message_of(exception)
    return name if text == name else name + ": " + text


def exit_code_of(raised: Optional[BaseException]) -> int:
    """The exit status of a script that ends with this."""
    if raised is None:
        return 0
    if not issubclass(type(raised), SystemExit):
        return 1
    code = _get_code(raised)
    if code is None:
        return 0
    return code & 0xFF if issubclass(type(code), int) else 1


def print_exception(raised: BaseException) -> None:
    """As an interpreter does for a script that ends with this."""
    if issubclass(type(raised), SystemExit):
        code = _get_code(raised)
        text = "" if code is None or issubclass(type(code), int) else message_of(raised) + "\n"
    else:
        text = traceback_of(raised)
    try:
        write(2, text.encode("utf-8", "replace"))
    except OSError:
        pass


class SourceLines:
    """Lines of source files for tracebacks: those that were uploaded, and whatever else can be read."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def remember(self, path: str, source: str) -> None:
        self._lines[path] = source.split("\n")

    def forget(self) -> None:
        self._lines.clear()

    def line(self, path: str, number: int) -> str:
        """Without surrounding white space; empty if there is none."""
        lines = self._lines.get(path)
        if lines is None:
            lines = self._lines[path] = _read_lines(path)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def _read_lines(path: str) -> list[str]:
    try:
        # The name is the program's: it may be that of a pipe.
        fd = open_fd(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
        try:
            facts = fstat(fd)
            if not S_ISREG(facts.st_mode) or facts.st_size > _SOURCE_BYTES_MAX:
                return []
            return read(fd, _SOURCE_BYTES_MAX).decode("utf-8", "replace").split("\n")
        finally:
            close(fd)
    except (OSError, ValueError):
        return []


sources = SourceLines()


def traceback_of(exception: BaseException) -> str:
    """The exception with its causes as Python would print it, without our own frames."""
    try:
        return "".join(_chain_text(exception))
    except BaseException:
        return name_of(exception) + ": " + message_of(exception) + "\n"


def _chain_text(exception: BaseException) -> Iterator[str]:
    chain: list[tuple[str, BaseException]] = []
    seen = set()
    next_one: Optional[BaseException] = exception
    link = ""
    while next_one is not None and id(next_one) not in seen and len(chain) < _CHAIN_MAX:
        seen.add(id(next_one))
        chain.append((link, next_one))
        cause, context = _get_cause(next_one), _get_context(next_one)
        if cause is not None:
            link, next_one = _CAUSE, cause
        elif not _get_suppressed(next_one):
            link, next_one = _CONTEXT, context
        else:
            next_one = None
    for link, each in reversed(chain):
        yield _one_text(each)
        yield link


def _one_text(exception: BaseException) -> str:
    frames = _frames_text(_get_traceback(exception))
    text = (_HEADER + frames if frames else "") + _last_lines(exception)
    if _Group is not None and issubclass(type(exception), _Group):
        parts = _Group.__dict__["exceptions"].__get__(exception)
        for number, part in enumerate(parts[:_GROUP_MAX], 1):
            lines = _one_text(part).split("\n")[:-1]
            text += "  +---------------- %d ----------------\n" % number
            text += "".join(["  | " + line + "\n" for line in lines])
        if len(parts) > _GROUP_MAX:
            text += "  + and %d more\n" % (len(parts) - _GROUP_MAX)
    return text


def _frames_text(traceback: Optional[TracebackType]) -> str:
    """One entry for each frame of the program, repetitions folded."""
    entries: list[str] = []
    previous, repeats = None, 0
    for path, number, name in _places_of(traceback):
        if (path, number, name) == previous:
            repeats += 1
        else:
            _fold(entries, repeats)
            previous, repeats = (path, number, name), 1
        if repeats <= _REPEATS_SHOWN:
            line = sources.line(path, number)
            entries.append(
                '  File "%s", line %d, in %s\n' % (path, number, name) + ("    " + line + "\n" if line else "")
            )
    _fold(entries, repeats)
    return "".join(entries)


def _fold(entries: list[str], repeats: int) -> None:
    if repeats > _REPEATS_SHOWN:
        entries.append("  [Previous line repeated %d more times]\n" % (repeats - _REPEATS_SHOWN))


def _places_of(traceback: Optional[TracebackType]) -> list[tuple[str, int, str]]:
    places = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_OUR_DIRECTORY) or "/importable/" in code.co_filename:
            places.append((code.co_filename, traceback.tb_lineno or 0, code.co_name))
        traceback = traceback.tb_next
    return places if len(places) <= 2 * _FRAMES_MAX else places[:_FRAMES_MAX] + places[-_FRAMES_MAX:]


def _last_lines(exception: BaseException) -> str:
    kind = type(exception)
    name = name_of(exception)
    module = _type_module(kind)
    if type(module) is str and module not in ("builtins", "__main__"):
        name = module + "." + name
    text = ""
    if issubclass(kind, SyntaxError):
        text, message = _syntax_text(exception)
    else:
        message = message_of(exception)
    if message == name_of(exception):
        message = ""
    text += name + (": " + message if message else "") + "\n"
    return text + _notes_text(exception)


def _syntax_text(exception: BaseException) -> tuple[str, str]:
    """Where a SyntaxError points, and its message without the place."""
    facts = {name: get(exception) for name, get in _syntax.items()}
    if type(facts["lineno"]) is not int or type(facts["filename"]) is not str:
        return "", message_of(exception)
    text = '  File "%s", line %d\n' % (facts["filename"], facts["lineno"])
    line = facts["text"] if type(facts["text"]) is str else sources.line(facts["filename"], facts["lineno"])
    shown = line.strip()
    if shown:
        text += "    " + shown + "\n"
        if type(facts["offset"]) is int and facts["offset"] > 0:
            column = facts["offset"] - 1 - (len(line) - len(line.lstrip()))
            text += "    " + " " * min(max(column, 0), len(shown)) + "^\n"
    return text, facts["msg"] if type(facts["msg"]) is str else message_of(exception)


def _notes_text(exception: BaseException) -> str:
    try:
        notes = exception.__notes__  # type: ignore[attr-defined]
        return "".join([str.__str__(note) + "\n" for note in notes if issubclass(type(note), str)])
    except BaseException:
        return ""


def error_fields(
    kind: str, message: str, cause: Optional[BaseException], details: Optional[dict[str, str]] = None
) -> dict[str, Any]:
    """The members of an error document, valid text within its bounds."""
    traceback = "" if cause is None else traceback_of(cause)
    return {
        "kind": kind,
        "message": _cut(message, MESSAGE_BYTES_MAX, lambda encoded, limit: encoded[:limit]),
        "traceback": _cut(traceback, TRACEBACK_BYTES_MAX, lambda encoded, limit: encoded[-limit:]),
        **(details or {}),
    }


def _cut(text: str, limit: int, keep: Callable[[bytes, int], bytes]) -> str:
    encoded = text.encode("utf-8", "replace")
    return encoded.decode("utf-8") if len(encoded) <= limit else keep(encoded, limit).decode("utf-8", "ignore")
