"""The GPU lease as the runtime sees it: held from the first instruction that needs it, given back around `cpu_only`
runs.

Theory of operation. The executor owns the lease; this is the side that asks. On a CPU server there is nothing to
lease: `held` from the first to the last instruction.
"""

from __future__ import annotations

from frames import Channel


class Lease:
    def __init__(self, channel: Channel, is_needed: bool) -> None:
        """`is_needed`: the executor has devices to lease."""
        self._channel = channel
        self._is_needed = is_needed
        self._held = not is_needed

    def acquire(self, index: int) -> None:
        """Waits until the lease is held. `index`: the instruction that needs it."""
        if self._held:
            return
        self._channel.send("lease_request", {"index": index})
        while self._channel.receive_or_exit().type != "lease_granted":
            pass
        self._held = True

    def release(self, index: int) -> None:
        """Requires: nothing is running on the GPU."""
        if self._held and self._is_needed:
            self._channel.send("lease_release", {"index": index})
            self._held = False

    @property
    def held(self) -> bool:
        return self._held
