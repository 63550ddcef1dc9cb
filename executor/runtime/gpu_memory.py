"""What a program leaves on the GPU in a process that serves another one.

Theory of operation. PyTorch keeps what was freed, for itself: other processes cannot have it. A little may stay, since
giving it back and asking for it again costs more than a small program does; much is given back, while the lease is
still held, since freeing disturbs whoever measures.
"""

from __future__ import annotations

import sys
from gc import collect
from typing import Any, Optional

# PyTorch's own smallest and next segments are 2 and 20 MiB.
_KEPT_BYTES_MAX = 32 * 1024 * 1024
_modules = sys.modules


def _started_torch() -> Optional[Any]:
    torch = _modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def holds_much() -> bool:
    """Also where that cannot be told: what is called torch may be the program's own."""
    try:
        torch = _started_torch()
        # memory_reserved() makes a flat dictionary of all statistics first: 120 us, while others wait.
        reserved = 0 if torch is None else torch.cuda.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"]
        return type(reserved) is not int or reserved > _KEPT_BYTES_MAX
    except BaseException:
        return True


def give_back() -> None:
    """Requires: nothing runs on the GPU, and what the program made is no longer referenced."""
    torch = _started_torch()
    if torch is not None:
        collect()
        torch.cuda.empty_cache()


def seed_generator() -> None:
    """The next program draws other numbers on the GPU, too."""
    torch = _started_torch()
    if torch is not None:
        torch.cuda.seed_all()
