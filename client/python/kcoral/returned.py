"""Files and folders that a program returned."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from . import _paths
from .errors import KCoralError


@dataclass(frozen=True, slots=True)
class ReturnedFile:
    """The content of a file at the moment it was returned. Immutable."""

    data: bytes = field(repr=False)
    sha256: str

    @property
    def size(self) -> int:
        return len(self.data)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the content to the local `path`, whose directory must exist.

        A file, or a symlink, that is there already raises FileExistsError, unless `overwrite`: then it is replaced in
        one step. A symlink is never followed. When saving fails nothing is left at `path`, or what was there before.
        """
        directory, name = os.path.split(os.path.abspath(os.fspath(path)))
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _write(self.data, name, descriptor, overwrite)
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True)
class ReturnedFolder:
    """A directory as it was when it was returned: its files by relative path, and its directories, both sorted."""

    files: Mapping[str, ReturnedFile]
    directories: tuple[str, ...]

    def save(self, directory: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes all files and directories below the local `directory`, which is made if it is missing.

        Merges with what is there. If a file to be written exists already, raises FileExistsError before anything is
        written, unless `overwrite`. Nothing is ever written outside `directory`: a path that would leave it raises
        KCoralError, and a symlink in the way of a directory raises NotADirectoryError.
        """
        for path in (*self.directories, *self.files):
            if not _paths.is_plain_relative(path):
                raise KCoralError(f"the returned path {path!r} does not stay inside its folder; nothing was saved")
        root = os.fspath(directory)
        os.makedirs(root, exist_ok=True)
        root_descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not overwrite:
                self._check_nothing_exists(root, root_descriptor)
            for path in self.directories:
                os.close(_open_directory(root_descriptor, path.split("/"), create=True))
            for path, file in self.files.items():
                *parents, name = path.split("/")
                parent = _open_directory(root_descriptor, parents, create=True)
                try:
                    _write(file.data, name, parent, overwrite)
                finally:
                    os.close(parent)
        finally:
            os.close(root_descriptor)

    def _check_nothing_exists(self, root: str, root_descriptor: int) -> None:
        for path in self.files:
            *parents, name = path.split("/")
            try:
                parent = _open_directory(root_descriptor, parents, create=False)
            except FileNotFoundError:
                continue
            try:
                os.stat(name, dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                continue
            finally:
                os.close(parent)
            raise FileExistsError(errno.EEXIST, "exists already; nothing was saved", os.path.join(root, path))


def _open_directory(root_descriptor: int, components: list[str], create: bool) -> int:
    """A descriptor of the directory below the root, reached step by step so that no symlink is followed."""
    current = os.dup(root_descriptor)
    try:
        for component in components:
            if create:
                try:
                    os.mkdir(component, dir_fd=current)
                except FileExistsError:
                    pass
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(component, flags, dir_fd=current)
            os.close(current)
            current = below
    except BaseException:
        os.close(current)
        raise
    return current


def _write(data: bytes, name: str, directory_descriptor: int, overwrite: bool) -> None:
    # Written beside its place and moved there whole: nobody ever sees half a file under its name.
    temporary = f".{secrets.token_hex(8)}.kcoral"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666, dir_fd=directory_descriptor)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if overwrite:
            os.replace(temporary, name, src_dir_fd=directory_descriptor, dst_dir_fd=directory_descriptor)
            return
        os.link(
            temporary, name, src_dir_fd=directory_descriptor, dst_dir_fd=directory_descriptor, follow_symlinks=False
        )
    except BaseException:
        os.unlink(temporary, dir_fd=directory_descriptor)
        raise
    os.unlink(temporary, dir_fd=directory_descriptor)
