"""The GPU lease as the runtime sees it: held from the first instruction that needs it, given back around `cpu_only`
runs.

Theory of operation. The executor owns the lease; this is the side that asks. On a CPU server there is nothing to
lease: `held` from the first to the last instruction. In a slot with several devices a grant says which of them are the
program's; a later one names the same again.
"""

from __future__ import annotations

from environment import show_devices
from frames import Channel, Frame


class Lease:
    def __init__(self, channel: Channel, is_needed: bool) -> None:
        """`is_needed`: the executor has devices to lease."""
        self._channel = channel
        self._is_needed = is_needed
        self._held = not is_needed
        self._devices_shown = False

    def acquire(self, index: int) -> None:
        """Waits until the lease is held. `index`: the instruction that needs it."""
        if not self._held:
            self.ask(index)
            self.wait()

    def ask(self, index: int) -> None:
        """The first half of `acquire`. Requires: it is not held; `wait` follows, or the program ends."""
        self._channel.send("lease_request", {"index": index})

    def wait(self) -> None:
        """The second half. Does nothing where the lease is held."""
        if self._held:
            return
        frame = self._channel.receive_or_exit()
        while frame.type != "lease_granted":
            frame = self._channel.receive_or_exit()
        self._note(frame)
        self._held = True

    def _note(self, grant: Frame) -> None:
        devices = grant.fields["devices"]
        if len(devices) > 1 and not self._devices_shown:
            show_devices(devices)
            self._devices_shown = True

    def release(self, index: int) -> None:
        """`index`: the instruction that runs, or was the last. Requires: nothing of the program runs on the GPU."""
        if self._held and self._is_needed:
            self._channel.send("lease_release", {"index": index})
            self._held = False

    @property
    def held(self) -> bool:
        return self._held
