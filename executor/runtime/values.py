"""From a value of the program to the value document of docs/frames.md (contract section 4, schema/value.h).

Theory of operation. A ValueDocument is two memfds being written: the JSON text, and the data of all its parts one
after another. Text is collected in pieces and flushed, so that memory stays bounded however large the value is.

The value is the program's own object, so nothing that it overrides is called: types are told by their real base
classes, and contents are read with the base classes' own methods (`list.__iter__`, `dict.items`, `str.__str__`). What
can only be asked from the object itself (`__dlpack__`) is asked in arrays.py.

Where something cannot be encoded is found on the way back: each container adds its own step to the path, so that the
way there costs nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Iterable, Optional

from arrays import ArrayCodec, NotAnArray
from cuda import CudaError
from errors import message_of, name_of
from jsontext import AnyDigits, quote
from memory import RETURNED_BYTES_MAX, TooLarge, Writer

DEPTH_MAX = 128  # schema/limits.h, kValueDepthMax
PARTS_MAX = 65536  # schema/limits.h, kPartsMax
_PIECES_FLUSHED = 1 << 16

_int_repr, _float_repr, _to_float = int.__repr__, float.__repr__, float.__float__
_to_str, _is_ascii, _is_identifier = str.__str__, str.isascii, str.isidentifier
_list_items, _tuple_items, _dict_items, _dict_get = list.__iter__, tuple.__iter__, dict.items, dict.__getitem__
_ordered_keys = OrderedDict.keys
_bytes_item, _bytearray_item = bytes.__getitem__, bytearray.__getitem__
_name_of_type = type.__dict__["__name__"].__get__
_EVERYTHING = slice(None)


class Unencodable(Exception):
    """A value that cannot be returned: why, and the path to it from the innermost step outwards."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []

    def message(self) -> str:
        return "$" + "".join(reversed(self.steps)) + ": " + self.reason


def _integer_text(value: int) -> str:
    return '{"type":"integer","value":' + _int_repr(value) + "}"


def _number_text(value: float) -> str:
    if value - value != 0.0:
        raise Unencodable("a number must be finite, and this is " + _float_repr(value))
    return '{"type":"number","value":' + _float_repr(value) + "}"


def _checked_quote(value: str) -> str:
    if not _is_ascii(value):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise Unencodable("text that is not valid Unicode: a lone surrogate at index %d" % error.start) from None
    return quote(value)


def _string_text(value: str) -> str:
    return '{"type":"string","value":' + _checked_quote(value) + "}"


def _boolean_text(value: bool) -> str:
    return '{"type":"boolean","value":true}' if value else '{"type":"boolean","value":false}'


def _null_text(_: None) -> str:
    return '{"type":"null"}'


# For values of exactly these types; subclasses go the long way.
_LEAVES: dict[type, Callable[[Any], str]] = {
    type(None): _null_text,
    bool: _boolean_text,
    int: _integer_text,
    float: _number_text,
    str: _string_text,
}
_leaf_of = _LEAVES.get


class ValueDocument:
    """One value being written. `close` it, whether or not it was finished."""

    def __init__(self) -> None:
        self.text = Writer()
        self.data: Optional[Writer] = None
        self._parts: list[tuple[int, int]] = []
        self._pieces: list[str] = ['{"value":']

    def put(self, piece: str) -> None:
        self._pieces.append(piece)
        if len(self._pieces) >= _PIECES_FLUSHED:
            self._flush()

    def add_part(self, write: Callable[[Writer], None]) -> int:
        """Lets `write` append the part's content; its index."""
        if len(self._parts) >= PARTS_MAX:
            raise Unencodable("more than %d parts" % PARTS_MAX)
        if self.data is None:
            self.data = Writer()
        start = self.data.size_bytes
        write(self.data)
        self._parts.append((start, self.data.size_bytes - start))
        return len(self._parts) - 1

    def part_bytes(self, index: int) -> int:
        return self._parts[index][1]

    def finish(self) -> list[int]:
        """The sealed descriptors of a `returned` frame."""
        self.put(',"parts":[' + ",".join(["[%d,%d]" % part for part in self._parts]) + "]}")
        self._flush()
        self.text.seal()
        if self.data is None:
            return [self.text.fd]
        self.data.seal()
        return [self.text.fd, self.data.fd]

    def close(self) -> None:
        self.text.close()
        if self.data is not None:
            self.data.close()

    def _flush(self) -> None:
        text = "".join(self._pieces)
        self._pieces = []
        self.text.append(text.encode("utf-8"))


class ValueEncoder:
    """Writes one value into a document."""

    def __init__(self, document: ValueDocument, arrays: ArrayCodec) -> None:
        self._document = document
        self._put = document.put
        self._arrays = arrays
        self._open: set[int] = set()  # ids of the containers around the current value

    def encode(self, value: Any) -> None:
        """Raises Unencodable; CudaError for GPU work of the program that failed; or what the program's own objects
        raise when they are asked for their content."""
        try:
            with AnyDigits():
                self._any(value)
        except TooLarge:
            raise Unencodable("larger than %d MiB" % (RETURNED_BYTES_MAX >> 20)) from None

    def _any(self, value: Any) -> None:
        kind = type(value)
        leaf = _leaf_of(kind)
        if leaf is not None:
            self._put(leaf(value))
        elif issubclass(kind, list):
            self._array(value, _list_items(value))
        elif issubclass(kind, tuple):
            self._array(value, _tuple_items(value))
        elif issubclass(kind, dict):
            self._object(value, kind)
        elif issubclass(kind, str):
            self._put(_string_text(_to_str(value)))
        elif issubclass(kind, int):
            self._put(_integer_text(value))
        elif issubclass(kind, float):
            self._put(_number_text(_to_float(value)))
        elif issubclass(kind, bytes):
            # Its own slice is a copy of exactly this type, which has no __buffer__ of its own.
            self._bytes(value if kind is bytes else _bytes_item(value, _EVERYTHING))
        elif issubclass(kind, bytearray):
            self._bytes(value if kind is bytearray else _bytearray_item(value, _EVERYTHING))
        elif kind is memoryview:
            self._memoryview(value)
        else:
            self._foreign(value)

    def _array(self, container: Any, items: Iterable[Any]) -> None:
        self._enter(container)
        put = self._put
        put('{"type":"array","value":[')
        index = 0
        try:
            for item in [*items]:
                if index:
                    put(",")
                leaf = _leaf_of(type(item))
                if leaf is not None:
                    put(leaf(item))
                else:
                    self._any(item)
                index += 1
        except Unencodable as fault:
            fault.steps.append("[%d]" % index)
            raise
        put("]}")
        self._open.discard(id(container))

    def _object(self, container: Any, kind: type) -> None:
        self._enter(container)
        put = self._put
        put('{"type":"object","value":{')
        if issubclass(kind, OrderedDict):  # it keeps an order of its own, which dict.items does not know
            items = [(key, _dict_get(container, key)) for key in _ordered_keys(container)]
        else:
            items = [*_dict_items(container)]
        names: set[str] = set()
        for key, item in items:
            if not issubclass(type(key), str):
                raise Unencodable("a key must be a string, and one is of type " + _name_of_type(type(key)))
            name = _to_str(key)
            if name in names:
                raise Unencodable("two keys are both " + repr(name))
            put(("," if names else "") + _checked_quote(name) + ":")
            names.add(name)
            try:
                self._any(item)
            except Unencodable as fault:
                fault.steps.append("." + name if _is_identifier(name) else "[" + quote(name) + "]")
                raise
        put("}}")
        self._open.discard(id(container))

    def _enter(self, container: Any) -> None:
        if id(container) in self._open:
            raise Unencodable("a container that contains itself")
        if len(self._open) >= DEPTH_MAX:
            raise Unencodable("nested more than %d deep" % DEPTH_MAX)
        self._open.add(id(container))

    def _bytes(self, content: Any) -> None:
        part = self._document.add_part(lambda data: data.append(content))
        self._put('{"type":"bytes","part":%d}' % part)

    def _memoryview(self, view: memoryview) -> None:
        try:
            self._bytes(view if view.c_contiguous else view.tobytes())
        except ValueError as error:  # released
            raise Unencodable(message_of(error)) from None

    def _foreign(self, value: Any) -> None:
        """NumPy scalars and arrays, tensors, and what speaks DLPack."""
        try:
            scalar, array = self._arrays.read(value)
        except NotAnArray as refusal:
            raise Unencodable(message_of(refusal)) from None
        except (Unencodable, TooLarge, CudaError):
            raise
        except Exception as error:
            raise Unencodable("its content cannot be read: " + name_of(error) + ": " + message_of(error)) from error
        if array is None:
            self._any(scalar)
            return
        part = self._document.add_part(array.write_to)
        shape = ",".join([_int_repr(dimension) for dimension in array.shape])
        self._put('{"type":"tensor","dtype":"%s","shape":[%s],"part":%d}' % (array.dtype, shape, part))
