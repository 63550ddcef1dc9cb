"""Processes of this machine, as /proc shows them."""

from __future__ import annotations

import os


def descendants(root: int) -> dict[int, str]:
    """The process and all that descend from it, with their states (R, S, D, Z, ...)."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        states[int(name)] = fields[0]
        children.setdefault(int(fields[1]), []).append(int(name))
    found: dict[int, str] = {}
    pending = [root]
    while pending:
        pid = pending.pop()
        if pid in states:
            found[pid] = states[pid]
            pending += children.get(pid, [])
    return found
