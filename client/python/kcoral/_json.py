"""JSON as the contract wants it: strict when read, exact and deterministic when written.

The standard library's module is too lenient for either side. It merges doubled keys, reads NaN, and can neither read
nor write an integer of more than 4300 digits.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

DEPTH_MAX = 128

# int() and str() refuse more digits than sys.get_int_max_str_digits(), which nobody can set below 640.
_DIGITS_AT_ONCE = 600


def loads(text: bytes) -> Any:
    """Parses one strict JSON document. Raises ValueError, with the reason, for anything else."""
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_object_without_doubled_keys,
            parse_int=integer_from_decimal,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def literal(value: Any, where: str) -> str:
    """`value` as JSON text that keeps its exact value and the order of its members.

    Accepts None, bool, int of any size, finite float, str, list, tuple and dict with str keys, their subclasses (as the
    base type), and NumPy scalars. Raises TypeError or ValueError, naming `where` in the value the mistake lies.
    """
    pieces: list[str] = []
    _write(value, where, 1, pieces)
    return "".join(pieces)


def string(text: str) -> str:
    """`text` as a JSON string literal. Raises ValueError when it is not valid Unicode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{text[:80]!r} is not valid Unicode (a lone surrogate)") from None
    return json.dumps(text, ensure_ascii=False)


def _write(value: Any, where: str, depth: int, out: list[str]) -> None:
    if value is None:
        out.append("null")
    elif isinstance(value, bool):
        out.append("true" if value else "false")
    elif isinstance(value, str):
        try:
            out.append(string(value))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    elif isinstance(value, int):
        out.append(decimal_from_integer(value))
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: {value} has no JSON form")
        out.append(float.__repr__(value))
    elif isinstance(value, (list, tuple)):
        _check_depth(depth, where)
        out.append("[")
        for index, element in enumerate(value):
            if index:
                out.append(",")
            _write(element, f"{where}[{index}]", depth + 1, out)
        out.append("]")
    elif isinstance(value, dict):
        _check_depth(depth, where)
        out.append("{")
        for index, (key, member) in enumerate(value.items()):
            if not isinstance(key, str):
                raise TypeError(f"{where}: the key {key!r} is no string")
            if index:
                out.append(",")
            _write(key, f"{where}: key", depth, out)
            out.append(":")
            _write(member, f"{where}[{key!r}]", depth + 1, out)
        out.append("}")
    elif (scalar := _numpy_scalar(value)) is not value:
        _write(scalar, where, depth, out)
    else:
        raise TypeError(
            f"{where}: a {type(value).__name__} is no JSON value; upload it and pass its handle as a whole argument"
        )


def _check_depth(depth: int, where: str) -> None:
    if depth > DEPTH_MAX:
        raise ValueError(f"{where[:80]}...: nested more than {DEPTH_MAX} deep")


def _numpy_scalar(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.bool_, numpy.integer, numpy.floating)):
        return value.item()
    return value


def decimal_from_integer(value: int) -> str:
    """The decimal digits of `value`, however many."""
    if value < 0:
        return "-" + decimal_from_integer(-value)
    digits = int(value.bit_length() * 0.30103) + 1
    if digits <= _DIGITS_AT_ONCE:
        return int.__repr__(value)
    low_digits = digits // 2
    high, low = divmod(int(value), 10**low_digits)
    return decimal_from_integer(high) + decimal_from_integer(low).zfill(low_digits)


def integer_from_decimal(text: str) -> int:
    """The integer that `text` spells, however long."""
    if text.startswith("-"):
        return -integer_from_decimal(text[1:])
    if len(text) <= _DIGITS_AT_ONCE:
        return int(text)
    low_digits = len(text) // 2
    shift: int = 10**low_digits
    return integer_from_decimal(text[:-low_digits]) * shift + integer_from_decimal(text[-low_digits:])


def _object_without_doubled_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"doubled key {doubled!r}")
    return members


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text} is not finite")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
