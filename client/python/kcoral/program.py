"""Programs: what to upload, select, run and return, in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from . import _json, _paths
from .blob import Blob, FileBlob, MemoryBlob
from .errors import ProgramError
from .tensor import encode

_T = TypeVar("_T")

_UPLOAD_KINDS = ("module", "tensor", "bytes", "file", "library")
_LANGUAGES = ("python", "cuda")


class Handle:
    """A value that an instruction will make on the server; only its own program can use it.

    Handles come from `Program`'s methods. `id` is the name that errors use. An automatic id steps aside when a later
    instruction is given the same one, and is final once the program was sent.
    """

    __slots__ = ("_automatic", "_id", "_origin", "_program")

    def __init__(self, program: Program, identifier: str, automatic: bool, origin: str) -> None:
        self._program = program
        self._id = identifier
        self._automatic = automatic
        self._origin = origin

    @property
    def id(self) -> str:
        return self._id

    def __repr__(self) -> str:
        return f"<kcoral.Handle {self._id!r} of {self._origin}>"


@dataclass(frozen=True, slots=True)
class _Instruction:
    # JSON texts and the handles whose ids stand between them: ids are filled in when the program is rendered.
    pieces: tuple[str | Handle, ...]

    def render(self) -> str:
        return "".join(_json.string(piece.id) if isinstance(piece, Handle) else piece for piece in self.pieces)


class Program:
    """An ordered list of instructions with the content that they need.

    Every method appends to the program or raises and leaves it as it was: `ProgramError` for a broken rule, TypeError
    for an argument of the wrong type. Values are copied when they are given; local files are hashed then, and read
    again when they are sent. What a method accepts may still be refused by the server, whose check is the complete one.

    The same calls make the same bytes. A program may be executed any number of times and by several clients. Building
    one is not thread-safe; executing a finished one is.
    """

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._handles: dict[str, Handle] = {}
        self._keys: set[str] = set()
        self._blobs: dict[str, Blob] = {}
        self._paths: set[str] = set()
        self._directories: set[str] = set()

    def upload(
        self,
        *,
        kind: str,
        source: str | None = None,
        value: Any = None,
        path: str | None = None,
        language: str | None = None,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        id: str | None = None,
    ) -> Handle:
        """Supplies code or data. What `kind` says decides what else is given:

        - "module": `source`, and `language` "python" (the default) or "cuda". Python source is executed; the handle is
          its namespace. CUDA source is kept as text for a compiler function.
        - "tensor": `value`, an array (NumPy, PyTorch, `__array__`, DLPack), or raw bytes with `dtype` and `shape`.
        - "bytes": `value`, bytes-like.
        - "file": `value`, bytes-like, and `path`, relative to the program's working directory. The handle is the path.
        - "library": `value`, the bytes of a shared object.
        """
        if kind not in _UPLOAD_KINDS:
            raise ProgramError(f"upload kind {kind!r} is none of {', '.join(_UPLOAD_KINDS)}")
        _check_arguments(
            kind, {"source": source, "value": value, "path": path, "language": language, "dtype": dtype, "shape": shape}
        )
        if kind == "module":
            return self._upload_module(source, language, id)
        if kind == "tensor":
            tensor = _rule(encode, value, dtype, shape)
            members = f',"dtype":{_json.string(tensor.dtype)},"shape":{_json.literal(tensor.shape, "shape")}'
            return self._upload_blob(kind, MemoryBlob.of(tensor.data), members, id)
        content = _content(kind, value)
        if kind == "file":
            return self._upload_file(MemoryBlob.of(content), path, id)
        return self._upload_blob(kind, MemoryBlob.of(content), "", id)

    def upload_file(
        self, local_path: str | os.PathLike[str], remote_path: str | None = None, *, id: str | None = None
    ) -> Handle:
        """Uploads a local file to `remote_path`, by default its own name. Symlinks are refused."""
        if remote_path is None:
            remote_path = os.path.basename(os.path.abspath(os.fspath(local_path)))
        return self._upload_file(FileBlob.of(local_path), remote_path, id)

    def upload_folder(self, local_dir: str | os.PathLike[str], remote_prefix: str = "") -> dict[str, Handle]:
        """Uploads every file below a local directory, hidden ones included, under `remote_prefix`.

        Returns the handles by remote path, in sorted order. Empty directories do not travel. Symlinks and special files
        are refused, and then nothing is uploaded.
        """
        prefix = "" if remote_prefix in ("", ".") else _paths.normalise(remote_prefix) + "/"
        files = {
            _paths.normalise(prefix + relative): FileBlob.of(local)
            for relative, local in _files_below(os.fspath(local_dir))
        }
        for path in files:
            self._check_path_is_free(path)
        return {path: self._upload_file(blob, path, None) for path, blob in sorted(files.items())}

    def get_function(self, *, module: Handle, name: str, cpu_only: bool = False, id: str | None = None) -> Handle:
        """Selects the object `name` of an uploaded module or library.

        `cpu_only` declares that runs of it use no GPU, so that the GPU is lent to others meanwhile.
        """
        self._check_handle(module, "module")
        _check_name(name, "name")
        if not isinstance(cpu_only, bool):
            raise TypeError(f"cpu_only is a bool, not {type(cpu_only).__name__}")
        flag = ',"cpu_only":true' if cpu_only else ""
        return self._append("get_function", id, [',"module":{"$ref":', module, f'}},"name":{_json.string(name)}{flag}'])

    def run(self, *, fn: Handle, args: Sequence[Any] = (), id: str | None = None) -> Handle:
        """Calls `fn`, a selected function or what an earlier run returned, with positional arguments.

        An argument is a handle, which passes its value, or a JSON value, which is copied now. Handles inside lists or
        dicts are refused: only whole arguments can refer to values on the server.
        """
        self._check_handle(fn, "fn")
        if not isinstance(args, (list, tuple)):
            raise TypeError(f"args is a list or tuple, not {type(args).__name__}")
        pieces: list[str | Handle] = [',"fn":{"$ref":', fn, "}"]
        for index, argument in enumerate(args):
            pieces.append(',"args":[' if index == 0 else ",")
            pieces.extend(self._argument(argument, f"args[{index}]"))
        if args:
            pieces.append("]")
        return self._append("run", id, pieces)

    def return_(self, *, key: str, value: Handle) -> None:
        """Returns the value of a handle, as it is at this point, under `results[key]`."""
        self._check_handle(value, "value")
        self._append_return(key, [',"value":{"$ref":', value, "}"])

    def return_file(self, *, key: str, path: str | Handle) -> None:
        """Returns a file of the working directory as a `ReturnedFile`. `path` is a str, or a handle of one."""
        self._append_return(key, [',"kind":"file","path":', *self._path_pieces(path)])

    def return_folder(self, *, key: str, path: str | Handle) -> None:
        """Returns a directory with all that it contains as a `ReturnedFolder`. `path` is a str, or a handle of one."""
        self._append_return(key, [',"kind":"folder","path":', *self._path_pieces(path)])

    def to_json(self, options: Mapping[str, Any] | None = None) -> str:
        """The program as it is sent: JSON text, the same for the same calls and options."""
        if not self._instructions:
            raise ProgramError("the program has no instructions")
        instructions = ",\n".join(instruction.render() for instruction in self._instructions)
        tail = f',"options":{_json.literal(dict(options), "options")}' if options else ""
        return f'{{"instructions":[{instructions}]{tail}}}'

    @property
    def blobs(self) -> Mapping[str, Blob]:
        """The distinct content that the program refers to, by SHA-256, in order of first use."""
        return self._blobs

    def __len__(self) -> int:
        return len(self._instructions)

    def _upload_module(self, source: Any, language: str | None, id: str | None) -> Handle:
        if not isinstance(source, str):
            raise TypeError(f"source is a str, not {type(source).__name__}")
        if language is not None and language not in _LANGUAGES:
            raise ProgramError(f"language {language!r} is none of {', '.join(_LANGUAGES)}")
        members = f',"kind":"module","source":{_rule(_json.string, source)}'
        if language is not None:
            members += f',"language":"{language}"'
        return self._append("upload", id, [members])

    def _upload_file(self, blob: Blob, path: Any, id: str | None) -> Handle:
        normal = _paths.normalise(path)
        self._check_path_is_free(normal)
        handle = self._upload_blob("file", blob, f',"path":{_json.string(normal)}', id)
        self._paths.add(normal)
        self._directories.update(_paths.ancestors(normal))
        return handle

    def _upload_blob(self, kind: str, blob: Blob, members: str, id: str | None) -> Handle:
        handle = self._append("upload", id, [f',"kind":"{kind}","blob":"{blob.sha256}"{members}'])
        self._blobs.setdefault(blob.sha256, blob)
        return handle

    def _append(self, op: str, id: str | None, pieces: Sequence[str | Handle]) -> Handle:
        handle = self._claim_id(id, op)
        self._instructions.append(_Instruction((f'{{"op":"{op}","id":', handle, *pieces, "}")))
        return handle

    def _append_return(self, key: str, pieces: Sequence[str | Handle]) -> None:
        _check_name(key, "key")
        if key in self._keys:
            raise ProgramError(f"the key {key!r} is returned twice")
        self._instructions.append(_Instruction((f'{{"op":"return","key":{_json.string(key)}', *pieces, "}")))
        self._keys.add(key)

    def _claim_id(self, id: str | None, op: str) -> Handle:
        if id is None:
            handle = Handle(self, self._free_id(op), True, op)
        else:
            _check_name(id, "id")
            holder = self._handles.get(id)
            if holder is not None and not holder._automatic:
                raise ProgramError(f"the id {id!r} is used twice")
            if holder is not None:
                holder._id = self._free_id(holder._origin)
                self._handles[holder._id] = holder
            handle = Handle(self, id, False, op)
        self._handles[handle._id] = handle
        return handle

    def _free_id(self, op: str) -> str:
        number = len(self._instructions)
        while f"{op}-{number}" in self._handles:
            number += 1
        return f"{op}-{number}"

    def _argument(self, argument: Any, where: str) -> list[str | Handle]:
        if isinstance(argument, Handle):
            self._check_handle(argument, where)
            return ['{"$ref":', argument, "}"]
        if isinstance(argument, dict) and list(argument) == ["$ref"] and isinstance(argument["$ref"], str):
            raise ProgramError(f"{where}: the server would read {argument!r} as a reference; pass the handle itself")
        return [_rule(_json.literal, argument, where)]

    def _path_pieces(self, path: str | Handle) -> list[str | Handle]:
        if isinstance(path, Handle):
            self._check_handle(path, "path")
            return ['{"$ref":', path, "}"]
        return [_json.string(_paths.normalise(path))]

    def _check_handle(self, handle: Any, where: str) -> None:
        if not isinstance(handle, Handle):
            raise TypeError(f"{where} is a handle of this program, not {type(handle).__name__}")
        if handle._program is not self:
            raise ProgramError(f"{where}: the handle {handle.id!r} belongs to another program")

    def _check_path_is_free(self, path: str) -> None:
        if path in self._paths:
            raise ProgramError(f"the path {path!r} is uploaded twice")
        if path in self._directories:
            raise ProgramError(f"the path {path!r} is a directory of an upload before it")
        for directory in _paths.ancestors(path):
            if directory in self._paths:
                raise ProgramError(f"the path {path!r} lies below {directory!r}, which was uploaded as a file")


_ARGUMENTS_OF_KIND = {
    "module": ({"source"}, {"language"}),
    "tensor": ({"value"}, {"dtype", "shape"}),
    "bytes": ({"value"}, set()),
    "file": ({"value", "path"}, set()),
    "library": ({"value"}, set()),
}


def _check_arguments(kind: str, arguments: Mapping[str, Any]) -> None:
    required, optional = _ARGUMENTS_OF_KIND[kind]
    for name, argument in arguments.items():
        if argument is None and name in required:
            raise TypeError(f"an upload of kind {kind!r} needs {name}")
        if argument is not None and name not in required | optional:
            raise TypeError(f"an upload of kind {kind!r} takes no {name}")


def _content(kind: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    hint = "; use value.encode()" if isinstance(value, str) else ""
    raise TypeError(f"the value of a {kind} upload is bytes-like, not {type(value).__name__}{hint}")


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what} is a str, not {type(name).__name__}")
    if not name:
        raise ProgramError(f"{what} is empty")
    _rule(_json.string, name)


def _rule(function: Callable[..., _T], *arguments: Any) -> _T:
    # What a broken rule is called here: ProgramError.
    try:
        return function(*arguments)
    except ValueError as error:
        raise ProgramError(str(error)) from None


def _files_below(directory: str) -> list[tuple[str, str]]:
    if not os.path.isdir(directory):
        raise NotADirectoryError(f"{directory} is no directory")
    found = []
    pending = [("", directory)]
    while pending:
        prefix, current = pending.pop()
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise ProgramError(f"{entry.path} is a symlink; symlinks are not uploaded")
                if entry.is_dir(follow_symlinks=False):
                    pending.append((f"{prefix}{entry.name}/", entry.path))
                elif entry.is_file(follow_symlinks=False):
                    found.append((prefix + entry.name, entry.path))
                else:
                    raise ProgramError(f"{entry.path} is neither a file nor a directory")
    return sorted(found)
