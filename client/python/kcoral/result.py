"""Answers: from the wire to `ProgramResult`, with every field, digest and length checked."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from . import _json, _paths, tensor
from .errors import ServerError
from .returned import ReturnedFile, ReturnedFolder

_T = TypeVar("_T")

_TIMES = ("queue_ms", "elapsed_ms", "lease_wait_ms", "lease_held_ms")
_OUTCOME_FIELDS = frozenset(
    {"status", "request_id", *_TIMES, "results", "stdout", "stderr", "stdout_truncated", "stderr_truncated"}
)
_ERROR_FIELDS = frozenset({"kind", "message", "instruction_index", "instruction_op", "instruction_id", "traceback"})
_GPU_ACCESS_FIELDS = frozenset({"cuda_call", "location", "interfered_request_id"})
_VALUE_DEPTH_MAX = 128


@dataclass(frozen=True, slots=True)
class InstructionError:
    """Why an instruction failed. `kind` is the contract's: "parse", "compile", "runtime", "correctness", and so on.

    `instruction_id` is None for a return. `traceback` is the program's own, or empty. The last three are set for kind
    "gpu_access" only.
    """

    kind: str
    message: str
    instruction_index: int
    instruction_op: str
    instruction_id: str | None
    traceback: str
    cuda_call: str | None = None
    location: str | None = None
    interfered_request_id: str | None = None

    def __str__(self) -> str:
        name = "" if self.instruction_id is None else f" {self.instruction_id!r}"
        return (
            f"{self.kind} error in instruction {self.instruction_index} ({self.instruction_op}{name}): {self.message}"
        )


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a program's run ended.

    `results` has the value of every return that was reached, also when a later instruction failed: None, bool, int,
    float, str, list, dict, bytes, NumPy array (or `Tensor`), `ReturnedFile` or `ReturnedFolder`. `error` is set exactly
    when `status` is "FAILED". `gpu_count` and `gpu_ids` are set for programs that asked for several GPUs.
    """

    status: str
    request_id: str
    queue_ms: float
    elapsed_ms: float
    lease_wait_ms: float
    lease_held_ms: float
    results: dict[str, Any]
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    error: InstructionError | None = None
    gpu_count: int | None = None
    gpu_ids: tuple[int, ...] | None = None

    @property
    def completed(self) -> bool:
        """Whether every instruction ran."""
        return self.status == "COMPLETED"


def decode_outcome(document: Mapping[str, Any], next_part: Callable[[str], io.BytesIO]) -> ProgramResult:
    """Decodes a COMPLETED or FAILED document. Raises ValueError for whatever is not exactly as the contract says.

    `next_part(name)` hands over the content of the next part, and raises if that is not the named one.
    """
    optional = {"gpu_count", "gpu_ids"} if "gpu_count" in document or "gpu_ids" in document else set()
    failed = document["status"] == "FAILED"
    check_fields(document, _OUTCOME_FIELDS | optional | ({"error"} if failed else set()), "the answer")
    if optional:
        _check(document["gpu_ids"], list, "gpu_ids")
    return ProgramResult(
        status=document["status"],
        request_id=_check(document["request_id"], str, "request_id"),
        **{name: _milliseconds(document[name], name) for name in _TIMES},
        results=_decode_results(document["results"], next_part),
        stdout=_check(document["stdout"], str, "stdout"),
        stderr=_check(document["stderr"], str, "stderr"),
        stdout_truncated=_check(document["stdout_truncated"], bool, "stdout_truncated"),
        stderr_truncated=_check(document["stderr_truncated"], bool, "stderr_truncated"),
        error=_decode_instruction_error(document["error"]) if failed else None,
        gpu_count=_check(document["gpu_count"], int, "gpu_count") if optional else None,
        gpu_ids=tuple(_check(gpu, int, "gpu_ids") for gpu in document["gpu_ids"]) if optional else None,
    )


def decode_server_error(document: Mapping[str, Any], http_status: int, retry_after: float | None) -> ServerError:
    """Decodes an ERROR document. Raises ValueError for whatever is not exactly as the contract says."""
    check_fields(document, {"status", "request_id", "error"}, "the answer")
    error = _check(document["error"], dict, "error")
    check_fields(error, {"kind", "message"}, "error")
    return ServerError(
        _check(error["kind"], str, "error.kind"),
        _check(error["message"], str, "error.message"),
        http_status,
        _check(document["request_id"], str, "request_id"),
        retry_after,
    )


def check_fields(document: Any, expected: set[str] | frozenset[str], where: str, optional: Iterable[str] = ()) -> None:
    """Raises ValueError unless `document` is an object with exactly the expected fields, and maybe optional ones."""
    _check(document, dict, where)
    if missing := sorted(expected - document.keys()):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(document.keys() - expected - set(optional)):
        raise ValueError(f"{where} has the unknown field {', '.join(unknown)}")


def _decode_results(results: Any, next_part: Callable[[str], io.BytesIO]) -> dict[str, Any]:
    decoder = _ValueDecoder(next_part)
    return {
        key: decoder.decode(value, f"results[{key!r}]", 1) for key, value in _check(results, dict, "results").items()
    }


def _decode_instruction_error(error: Any) -> InstructionError:
    kind = _check(error, dict, "error").get("kind")
    fields = _ERROR_FIELDS | _GPU_ACCESS_FIELDS if kind == "gpu_access" else _ERROR_FIELDS
    check_fields(error, fields, "error")
    for name in fields:
        if name == "instruction_index":
            _check(error[name], int, f"error.{name}")
        elif error[name] is not None or name not in _GPU_ACCESS_FIELDS | {"instruction_id"}:
            _check(error[name], str, f"error.{name}")
    return InstructionError(**error)


class _ValueDecoder:
    """Decodes values in the order of their parts, which are numbered depth first."""

    def __init__(self, next_part: Callable[[str], io.BytesIO]) -> None:
        self._next_part = next_part
        self._parts_taken = 0

    def decode(self, value: Any, where: str, depth: int) -> Any:
        kind = _check(value, dict, where).get("type")
        decode = self._DECODERS.get(kind) if isinstance(kind, str) else None
        if decode is None:
            raise ValueError(f"{where} has the unknown type {kind!r}")
        if depth > _VALUE_DEPTH_MAX + 1:
            raise ValueError(f"{where[:80]}... is nested more than {_VALUE_DEPTH_MAX} deep")
        return decode(self, value, where, depth)

    def _null(self, value: Any, where: str, depth: int) -> None:
        check_fields(value, {"type"}, where)

    def _boolean(self, value: Any, where: str, depth: int) -> bool:
        return _check(self._plain(value, where), bool, where)

    def _integer(self, value: Any, where: str, depth: int) -> int:
        return _check(self._plain(value, where), int, where)

    def _number(self, value: Any, where: str, depth: int) -> float:
        return _float(self._plain(value, where), where)

    def _string(self, value: Any, where: str, depth: int) -> str:
        return _check(self._plain(value, where), str, where)

    def _array(self, value: Any, where: str, depth: int) -> list[Any]:
        elements = _check(self._plain(value, where), list, where)
        return [self.decode(element, f"{where}[{index}]", depth + 1) for index, element in enumerate(elements)]

    def _object(self, value: Any, where: str, depth: int) -> dict[str, Any]:
        members = _check(self._plain(value, where), dict, where)
        return {key: self.decode(member, f"{where}[{key!r}]", depth + 1) for key, member in members.items()}

    def _bytes(self, value: Any, where: str, depth: int) -> bytes:
        check_fields(value, {"type", "part", "sha256"}, where)
        return self._part(value, where).getvalue()

    def _file(self, value: Any, where: str, depth: int) -> ReturnedFile:
        check_fields(value, {"type", "size", "part", "sha256"}, where)
        content = self._part(value, where).getvalue()
        if _check(value["size"], int, f"{where}.size") != len(content):
            raise ValueError(f"{where} has {len(content)} bytes and says {value['size']}")
        return ReturnedFile(content, value["sha256"])

    def _folder(self, value: Any, where: str, depth: int) -> ReturnedFolder:
        check_fields(value, {"type", "files", "directories"}, where)
        files = _check(value["files"], dict, f"{where}.files")
        directories = _check(value["directories"], list, f"{where}.directories")
        for directory in directories:
            _check(directory, str, f"{where}.directories")
        _check_tree(list(files), directories, where)
        decoded = {}
        for path, file in files.items():
            if _check(file, dict, f"{where}.files").get("type") != "file":
                raise ValueError(f"{where}: {path!r} is no file")
            decoded[path] = self._file(file, f"{where}.files[{path!r}]", depth)
        return ReturnedFolder(decoded, tuple(directories))

    def _tensor(self, value: Any, where: str, depth: int) -> Any:
        check_fields(value, {"type", "dtype", "shape", "part", "sha256"}, where)
        dtype = _check(value["dtype"], str, f"{where}.dtype")
        shape = tuple(_check(size, int, f"{where}.shape") for size in _check(value["shape"], list, f"{where}.shape"))
        expected = tensor.byte_length(dtype, shape)
        content = self._part(value, where).getbuffer()
        if len(content) != expected:
            raise ValueError(f"{where}: a {dtype} tensor of shape {shape} has {expected} bytes, not {len(content)}")
        return tensor.decode(dtype, shape, content)

    def _plain(self, value: Any, where: str) -> Any:
        check_fields(value, {"type", "value"}, where)
        return value["value"]

    def _part(self, value: Any, where: str) -> io.BytesIO:
        name = f"return:{self._parts_taken}"
        if value["part"] != name:
            raise ValueError(f"{where} refers to part {value['part']!r}; the next one is {name!r}")
        self._parts_taken += 1
        content = self._next_part(name)
        if hashlib.sha256(content.getbuffer()).hexdigest() != value["sha256"]:
            raise ValueError(f"{where}: the content of {name} does not have the digest that the answer gives")
        return content

    _DECODERS: Mapping[str, Callable[..., Any]] = {
        "null": _null,
        "boolean": _boolean,
        "integer": _integer,
        "number": _number,
        "string": _string,
        "array": _array,
        "object": _object,
        "bytes": _bytes,
        "file": _file,
        "folder": _folder,
        "tensor": _tensor,
    }


def _check_tree(files: list[str], directories: list[str], where: str) -> None:
    for names in (files, directories):
        if any(not _paths.is_plain_relative(name) for name in names):
            raise ValueError(f"{where} has a path that does not stay inside the folder")
        # Sorted as the server sorts, by UTF-8 bytes, which is the order of code points.
        if names != sorted(set(names)):
            raise ValueError(f"{where} is not sorted")
    known = set(directories)
    if known & set(files):
        raise ValueError(f"{where} has a path that is a file and a directory")
    for path in (*files, *directories):
        if not known.issuperset(_paths.ancestors(path)):
            raise ValueError(f"{where}: a directory above {path!r} is not listed")


def _check(value: Any, kind: type[_T], where: str) -> _T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where} is no {kind.__name__}")
    return value


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where} is no number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{where} is beyond the range of a float") from None


def _milliseconds(value: Any, where: str) -> float:
    if _float(value, where) < 0:
        raise ValueError(f"{where} is negative")
    return float(value)


def parse_document(content: bytes) -> dict[str, Any]:
    """A strict JSON object with a string "status". Raises ValueError."""
    document = _check(_json.loads(content), dict, "the answer")
    _check(document.get("status"), str, "status")
    return document
