"""The contract's rules for paths inside a request's working directory."""

from __future__ import annotations

from .errors import ProgramError

PATH_BYTES_MAX = 4096
COMPONENT_BYTES_MAX = 255


def normalise(path: str) -> str:
    """`path` without "." components and doubled slashes. Raises ProgramError for one that a server refuses."""
    if not isinstance(path, str):
        raise TypeError(f"a remote path is a str, not {type(path).__name__}")
    try:
        encoded = path.encode("utf-8")
    except UnicodeEncodeError:
        raise ProgramError(f"path {path!r} is not valid Unicode") from None
    if path.startswith("/"):
        raise ProgramError(f"path {path!r} is absolute; remote paths are relative to the working directory")
    if "\\" in path or "\0" in path:
        raise ProgramError(f"path {path!r} has a backslash or NUL in it")
    components = [component for component in path.split("/") if component not in ("", ".")]
    if not components:
        raise ProgramError(f"path {path!r} names nothing below the working directory")
    if ".." in components:
        raise ProgramError(f"path {path!r} has a '..' component")
    if len(encoded) > PATH_BYTES_MAX:
        raise ProgramError(f"path {path[:60]!r}... is longer than {PATH_BYTES_MAX} bytes")
    for component in components:
        if len(component.encode("utf-8")) > COMPONENT_BYTES_MAX:
            raise ProgramError(f"path component {component[:60]!r}... is longer than {COMPONENT_BYTES_MAX} bytes")
    return "/".join(components)


def ancestors(path: str) -> list[str]:
    """The directories above a normalised path, outermost first: "a/b/c" has "a" and "a/b"."""
    components = path.split("/")
    return ["/".join(components[:length]) for length in range(1, len(components))]


def is_plain_relative(path: str) -> bool:
    """Whether `path` names something strictly below a directory, in exactly one spelling."""
    return "\0" not in path and all(component not in ("", ".", "..") for component in path.split("/"))
