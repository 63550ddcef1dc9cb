"""What can go wrong, told apart by who has to act.

A program that ran and failed is no exception: it is a `ProgramResult` whose `error` says why.
"""

from __future__ import annotations


class KCoralError(Exception):
    """The base of every exception that this package defines."""


class ProgramError(KCoralError, ValueError):
    """The program being built breaks a rule; nothing was sent. The message names the rule."""


class ServerError(KCoralError):
    """The server answered with an error instead of running the program to its end.

    `kind` is one of the contract's: "parse", "unauthorized", "busy", "timeout", "engine", and so on. `retry_after` is
    the number of seconds after which the server suggests to try again, or None.
    """

    def __init__(
        self, kind: str, message: str, http_status: int, request_id: str, retry_after: float | None = None
    ) -> None:
        super().__init__(kind, message, http_status, request_id, retry_after)
        self.kind = kind
        self.message = message
        self.http_status = http_status
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.kind}: {self.message} (HTTP {self.http_status}, request {self.request_id})"


class TransportError(KCoralError):
    """No complete answer arrived: the connection could not be made, or broke.

    `may_have_run` is False when the server cannot have started the program. When it is True, executing the same program
    again with `request_id=error.request_id` and the same options attaches to the run instead of starting another.
    """

    def __init__(self, url: str, reason: str, request_id: str | None = None, may_have_run: bool = False) -> None:
        super().__init__(url, reason, request_id, may_have_run)
        self.url = url
        self.reason = reason
        self.request_id = request_id
        self.may_have_run = may_have_run

    def __str__(self) -> str:
        fate = f"request {self.request_id} may have run" if self.may_have_run else "nothing was run"
        return f"{self.url}: {self.reason} ({fate})"


class MalformedAnswerError(KCoralError):
    """An answer arrived whole but is not what the contract promises: another service, a proxy, or a bug."""

    def __init__(self, url: str, reason: str, http_status: int | None = None, request_id: str | None = None) -> None:
        super().__init__(url, reason, http_status, request_id)
        self.url = url
        self.reason = reason
        self.http_status = http_status
        self.request_id = request_id

    def __str__(self) -> str:
        status = "" if self.http_status is None else f"HTTP {self.http_status}, "
        return f"{self.url}: malformed answer ({status}request {self.request_id}): {self.reason}"
