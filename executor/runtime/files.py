"""Files of the request's working directory: written for uploads, read for file and folder returns.

Theory of operation. Paths come from clients and from the program, and the directory's content is the program's. So
every path is walked component by component, each opened relative to the one before and never through a symbolic link,
starting from the directory that the program was started in, whatever its current one is. Only regular files are read,
and only what they turn out to be once they are open counts.

Files are copied by the kernel from descriptor to descriptor. A folder is walked in the order in which it is returned,
so that parts are numbered as they are written.
"""

from __future__ import annotations

from errno import ELOOP, ENOTDIR, ENXIO
from os import (
    O_CLOEXEC,
    O_CREAT,
    O_DIRECTORY,
    O_EXCL,
    O_NOFOLLOW,
    O_NONBLOCK,
    O_RDONLY,
    O_WRONLY,
    close,
    fchmod,
    fstat,
    mkdir,
    scandir,
    sendfile,
    strerror,
    umask,
)
from os import open as open_fd
from os import write
from stat import S_ISREG
from typing import Optional

from jsontext import quote
from memory import RETURNED_BYTES_MAX, TooLarge, Writer
from values import Unencodable, ValueDocument

PATH_BYTES_MAX = 4096  # schema/limits.h, kPathBytesMax
COMPONENT_BYTES_MAX = 255  # schema/limits.h, kPathComponentBytesMax
_COPY_BYTES = 1 << 20
_DIRECTORY = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC
# A pipe must not block whoever opens it.
_FILE = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC


class BadPath(Exception):
    """A path against the contract's rules; the message says which."""


def normalise(path: str) -> str:
    """The path without "." and doubled "/" (contract section 3). Raises BadPath."""
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        raise BadPath("the path " + quote(path.encode("utf-8", "replace").decode()) + " is not valid Unicode") from None
    shown = "the path " + quote(path)
    if path.startswith("/"):
        raise BadPath(shown + " is absolute")
    if len(encoded) > PATH_BYTES_MAX:
        raise BadPath("a path is longer than %d bytes" % PATH_BYTES_MAX)
    if "\\" in path or "\0" in path:
        raise BadPath(shown + " contains a backslash or NUL")
    components = [each for each in path.split("/") if each not in ("", ".")]
    if not components:
        raise BadPath(shown + " names no file")
    if ".." in components:
        raise BadPath(shown + ' contains ".."')
    if max([len(each.encode("utf-8")) for each in components]) > COMPONENT_BYTES_MAX:
        raise BadPath("a component of " + shown + " is longer than %d bytes" % COMPONENT_BYTES_MAX)
    return "/".join(components)


def reason_of(error: OSError) -> str:
    """What a person should know about a failed step on a path."""
    if error.errno == ELOOP:
        return "a symbolic link is not followed"
    if error.errno == ENXIO:
        return "it is no regular file"
    return strerror(error.errno) if error.errno is not None else "it cannot be opened"


def write_new_file(path: str, content: memoryview, mode: int, directory: Optional[int] = None) -> None:
    """Makes a file that did not exist, with exactly this mode. Raises OSError."""
    fd = open_fd(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode, dir_fd=directory)
    try:
        fchmod(fd, mode)
        while content.nbytes > 0:
            content = content[write(fd, content) :]
    finally:
        close(fd)


class WorkingDirectory:
    """The directory that the program was started in. Requires: made before the program runs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity = self._identity_of(fd := open_fd(path, _DIRECTORY))
        close(fd)

    def write_file(self, path: str, content: memoryview) -> None:
        """Makes a new file (0600) and the directories above it (0700). Raises OSError."""
        *directories, name = path.split("/")
        # Modes are exact whatever umask the program has set.
        kept = umask(0o077)
        try:
            parent = self._descend(directories, make=True)
            try:
                write_new_file(name, content, 0o600, parent)
            finally:
                close(parent)
        finally:
            umask(kept)

    def encode_file(self, path: str, document: ValueDocument) -> None:
        """Writes the value of a file return. Raises Unencodable."""
        *directories, name = path.split("/")
        try:
            parent = self._descend(directories)
            try:
                _encode_file_at(parent, name, path, document)
            finally:
                close(parent)
        except OSError as error:
            raise _unreadable(path, error) from None
        except TooLarge:
            raise _too_large(path) from None

    def encode_folder(self, path: str, document: ValueDocument) -> None:
        """Writes the value of a folder return. Raises Unencodable."""
        try:
            folder = self._descend(path.split("/"))
        except OSError as error:
            raise _unreadable(path, error) from None
        try:
            _Folder(path, document).encode(folder)
        except TooLarge:
            raise _too_large(path) from None
        finally:
            close(folder)

    def _descend(self, directories: list[str], make: bool = False) -> int:
        """A descriptor of the directory below ours that these components lead to."""
        # By its path each time, and not a descriptor that is kept: a program that closes descriptors cannot reach it,
        # and the mount that it is cannot be moved away.
        fd = open_fd(self.path, _DIRECTORY)
        try:
            if self._identity_of(fd) != self._identity:
                raise OSError(ENOTDIR, "the working directory was replaced")
            for name in directories:
                if make:
                    try:
                        mkdir(name, 0o700, dir_fd=fd)
                    except FileExistsError:
                        pass
                below = open_fd(name, _DIRECTORY, dir_fd=fd)
                close(fd)
                fd = below
        except BaseException:
            close(fd)
            raise
        return fd

    @staticmethod
    def _identity_of(fd: int) -> tuple[int, int]:
        facts = fstat(fd)
        return facts.st_dev, facts.st_ino


class _Folder:
    """One folder return on its way into the document."""

    def __init__(self, path: str, document: ValueDocument) -> None:
        self._path = path
        self._document = document
        self._directories: list[str] = []
        self._files = 0

    def encode(self, folder: int) -> None:
        self._document.put('{"type":"folder","files":{')
        self._walk(folder)
        # Sorted at the end: "a.b" comes between "a" and "a/b". (The order of code points is that of UTF-8's bytes.)
        names = ",".join([quote(name) for name in sorted(self._directories)])
        self._document.put('},"directories":[' + names + "]}")

    def _walk(self, folder: int) -> None:
        # With a stack of its own: a path has room for more levels than Python has for calls.
        levels = [(folder, "", self._entries(folder, ""))]
        try:
            while levels:
                directory, prefix, entries = levels[-1]
                if not entries:
                    levels.pop()
                    if levels:  # the folder itself is the caller's
                        close(directory)
                    continue
                name, is_directory = entries.pop()
                inside = prefix + name
                self._check_name(inside)
                if is_directory:
                    levels.append(self._enter(directory, name, inside))
                else:
                    self._add_file(directory, name, inside)
        finally:
            for directory, _, _ in levels[1:]:
                close(directory)

    def _entries(self, directory: int, prefix: str) -> list[tuple[str, bool]]:
        """Names, and whether each is a directory; the first one last."""
        entries: list[tuple[str, str, bool]] = []
        try:
            with scandir(directory) as listing:
                for entry in listing:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    # With the slash, siblings sort as the full paths below them do.
                    entries.append((entry.name + "/" if is_directory else entry.name, entry.name, is_directory))
        except OSError as error:
            raise _unreadable(self._join(prefix), error) from None
        return [(name, is_directory) for _, name, is_directory in sorted(entries, reverse=True)]

    def _enter(self, parent: int, name: str, inside: str) -> tuple[int, str, list[tuple[str, bool]]]:
        self._directories.append(inside)
        try:
            directory = open_fd(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            raise _unreadable(self._join(inside), error) from None
        try:
            return directory, inside + "/", self._entries(directory, inside + "/")
        except BaseException:
            close(directory)
            raise

    def _add_file(self, folder: int, name: str, inside: str) -> None:
        self._document.put(("," if self._files else "") + quote(inside) + ":")
        self._files += 1
        try:
            _encode_file_at(folder, name, self._join(inside), self._document)
        except OSError as error:
            raise _unreadable(self._join(inside), error) from None

    def _check_name(self, inside: str) -> None:
        try:
            encoded = inside.encode("utf-8")
        except UnicodeEncodeError:
            shown = inside.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            raise Unencodable(quote(self._join(shown)) + ": the name is not valid UTF-8") from None
        if len(encoded) > PATH_BYTES_MAX:
            raise Unencodable(quote(self._path) + ": a path in it is longer than %d bytes" % PATH_BYTES_MAX)
        if "\\" in inside:
            raise Unencodable(quote(self._join(inside)) + ": the name contains a backslash")

    def _join(self, inside: str) -> str:
        return self._path + "/" + inside if inside else self._path


def _encode_file_at(parent: int, name: str, path: str, document: ValueDocument) -> None:
    fd = open_fd(name, _FILE, dir_fd=parent)
    try:
        if not S_ISREG(fstat(fd).st_mode):
            raise Unencodable(quote(path) + ": it is no regular file")
        part = document.add_part(lambda data: _copy(fd, data))
    finally:
        close(fd)
    document.put('{"type":"file","size":%d,"part":%d}' % (document.part_bytes(part), part))


def _copy(fd: int, data: Writer) -> None:
    """Appends what the file holds; it may grow or shrink meanwhile."""
    size_bytes = fstat(fd).st_size
    if data.size_bytes + size_bytes > RETURNED_BYTES_MAX:
        raise TooLarge
    left = size_bytes
    while left > 0:
        copied = sendfile(data.fd, fd, None, min(left, _COPY_BYTES))
        if copied == 0:
            return
        data.size_bytes += copied
        left -= copied


def _unreadable(path: str, error: OSError) -> Unencodable:
    return Unencodable(quote(path) + ": " + reason_of(error))


def _too_large(path: str) -> Unencodable:
    return Unencodable(quote(path) + ": larger than %d MiB" % (RETURNED_BYTES_MAX >> 20))
