"""JSON as text: reading what the executor sends, writing what goes back.

Theory of operation. `json.loads` and `json.dumps` are Python functions that a program can replace; the scanner and
the string quoting below them are C objects, taken here when this module is loaded. Integers keep any number of
digits: the interpreter's limit on them (`sys.set_int_max_str_digits`) is lifted while text is made or read, and put
back.
"""

from __future__ import annotations

import sys
from json.decoder import JSONDecoder
from json.encoder import encode_basestring as quote
from typing import Any

_scan = JSONDecoder().scan_once
_get_digits_max = getattr(sys, "get_int_max_str_digits", None)  # not in 3.10.0 to 3.10.6
_set_digits_max = getattr(sys, "set_int_max_str_digits", None)
_int_repr = int.__repr__


class AnyDigits:
    """While entered, integers of any size convert to and from text."""

    def __enter__(self) -> None:
        if _set_digits_max is not None:
            self._kept = _get_digits_max()
            _set_digits_max(0)

    def __exit__(self, *_: Any) -> None:
        if _set_digits_max is not None:
            _set_digits_max(self._kept)


def parse(text: str) -> Any:
    """The value of a JSON text; ValueError when it is none."""
    with AnyDigits():
        try:
            value, end = _scan(text.lstrip(" \t\r\n"), 0)
        except StopIteration:
            raise ValueError("a JSON value is missing") from None
    return value


def to_text(value: Any) -> str:
    """JSON for the small values of a frame: None, bool, int, str, list and dict."""
    kind = type(value)
    if kind is str:
        return quote(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return _int_repr(value)
    if kind is list:
        return "[" + ",".join([to_text(each) for each in value]) + "]"
    if kind is dict:
        return "{" + ",".join([quote(name) + ":" + to_text(each) for name, each in value.items()]) + "}"
    raise TypeError("no value of a frame: " + kind.__name__)
