"""The crossing between our code and the program's, in the one process that both share.

Theory of operation. The program may leave its interpreter in any state: a recursion limit of 20, a trace function
that raises, a timer whose signal handler raises. Those are its own settings and must be in force while its code runs,
also in its next instruction; they must not be in force while ours runs. So each call of the program's code goes
through one Boundary, which gives the program its settings, calls, and takes them back, remembering them. Whatever
cannot be taken back is left: then our code fails, and the program hurts only itself.

It is also the place where a fork of the program that returned into our code is noticed. Such a child is not the
runtime: it ends there as a script would at its end.
"""

from __future__ import annotations

import gc
import sys
from _signal import SIG_BLOCK, SIG_SETMASK, pthread_sigmask, valid_signals
from posix import getpid
from sys import getprofile, getrecursionlimit, gettrace, setprofile, setrecursionlimit, settrace
from typing import Any, Callable, Optional

from environment import Streams
from errors import exit_code_of, print_exception
from frames import end_process

_OUR_RECURSION_LIMIT = 2000  # an encoder 128 levels deep, with room
_ALL_SIGNALS = frozenset([int(each) for each in valid_signals()])
_gc_is_enabled, _gc_enable, _gc_disable = gc.isenabled, gc.enable, gc.disable
_monitoring = getattr(sys, "monitoring", None)  # from 3.12
_MONITORING_TOOLS = (0, 1, 2, 3, 4, 5)
if _monitoring is not None:
    _get_tool, _get_events, _set_events = _monitoring.get_tool, _monitoring.get_events, _monitoring.set_events


class Boundary:
    """The program's settings while our code runs. Used by the main thread of the runtime."""

    def __init__(self, streams: Streams) -> None:
        """`streams`: the program's output."""
        self._owner = getpid()
        self._first = (getrecursionlimit(), pthread_sigmask(SIG_BLOCK, ()))
        self.start_over(streams)
        _gc_disable()
        setrecursionlimit(_OUR_RECURSION_LIMIT)
        pthread_sigmask(SIG_BLOCK, _ALL_SIGNALS)

    def start_over(self, streams: Streams) -> None:
        """The next program has output of its own, and starts with the settings of a fresh process."""
        self._streams = streams
        self._recursion_limit, self._signals = self._first
        self._trace: Any = None
        self._profile: Any = None
        self._collects = True
        self._events: list[tuple[int, int]] = []

    def call(self, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Optional[BaseException]]:
        """Calls the program's code: its result and None, or None and whatever it raised."""
        return self._cross(True, function, *arguments)

    def flush(self) -> None:
        """Flushes the program's output, which may be objects of its own. Nothing that a tracer of it should see."""
        if self.flush_if_unchanged():
            return
        trace, profile = self._trace, self._profile
        self._cross(False, self._streams.flush)
        if self._trace is None:
            self._trace = trace
        if self._profile is None:
            self._profile = profile

    def flush_if_unchanged(self) -> bool:
        """Flushes without running any of the program's code, or says that this cannot be done."""
        return self._streams.flush_if_unchanged()

    def _cross(
        self, traced: bool, function: Callable[..., Any], *arguments: Any
    ) -> tuple[Any, Optional[BaseException]]:
        value: Any = None
        raised: Optional[BaseException] = None
        try:
            self._give(traced)
            value = function(*arguments)
        except BaseException as exception:
            raised = exception
        # Here and not in a function: calling one of ours would call the program's trace function first.
        try:
            self._trace = gettrace()
            settrace(None)
        except BaseException:
            pass
        try:
            self._profile = getprofile()
            setprofile(None)
        except BaseException:
            pass
        self._take_back()
        if getpid() != self._owner:
            self._end_forked_child(raised)
        return value, raised

    def _give(self, traced: bool) -> None:
        if self._collects:
            _gc_enable()
        if self._recursion_limit != _OUR_RECURSION_LIMIT:
            try:
                setrecursionlimit(self._recursion_limit)
            except RecursionError:
                pass  # lower than where we stand: the program set it further up and meets it at once
        for tool, events in self._events:
            if _get_tool(tool) is not None:
                _set_events(tool, events)
        pthread_sigmask(SIG_SETMASK, self._signals)
        if traced and self._profile is not None:
            setprofile(self._profile)
        if traced and self._trace is not None:
            settrace(self._trace)

    def _take_back(self) -> None:
        for step in (self._block_signals, self._raise_recursion_limit, self._stop_monitoring, self._stop_collecting):
            try:
                step()
            except BaseException:
                pass

    def _block_signals(self) -> None:
        self._signals = pthread_sigmask(SIG_BLOCK, _ALL_SIGNALS)

    def _raise_recursion_limit(self) -> None:
        self._recursion_limit = getrecursionlimit()
        setrecursionlimit(_OUR_RECURSION_LIMIT)

    def _stop_monitoring(self) -> None:
        if _monitoring is None:
            return
        self._events = []
        for tool in _MONITORING_TOOLS:
            if _get_tool(tool) is not None:
                self._events.append((tool, _get_events(tool)))
                _set_events(tool, 0)

    def _stop_collecting(self) -> None:
        self._collects = _gc_is_enabled()
        _gc_disable()

    def _end_forked_child(self, raised: Optional[BaseException]) -> None:
        pthread_sigmask(SIG_SETMASK, self._signals)
        if raised is not None:
            print_exception(raised)
        try:
            self._streams.flush()
        except BaseException:
            pass
        end_process(exit_code_of(raised))
