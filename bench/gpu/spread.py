"""Whether two sides of a comparison differ, or have been looked at too rarely to tell.

What one visit measured has much in common: a process, its memory's place on the device, the clocks of that second. So
chance is judged by visits: a difference is given with the interval in which 95 % of the same comparison lie when
visits are drawn again from those that were made, with repetition and the same ones for both sides.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from load import quantile
from sides import Times

# On an H200 the time stamps that CUPTI gives for kernels advance in steps of 32 ns, as measured there. It is given here
# since looking for it in each run, as what all durations differ by multiples of, found none on that device.
TICK_US = 0.032

Visits = list[list[float]]  # of one kernel on one side: the medians of each visit, in us

_DRAWS = 2000
_SEED = 0  # the same figures give the same intervals


def p95(values: Sequence[float]) -> float:
    return quantile(list(values), 0.95)


@dataclass(frozen=True)
class Difference:
    """Of the second side to the first; `percent`, `low` and `high` of the first."""

    us: float
    percent: float
    low: float
    high: float

    @property
    def is_real(self) -> bool:
        """Whether other visits would hardly change its sign, and it is more than a tick."""
        return (self.low > 0 or self.high < 0) and abs(self.us) > TICK_US

    def __str__(self) -> str:
        return f"{self.percent:+.2f} % [{self.low:+.2f}, {self.high:+.2f}]{' DIFFERS' if self.is_real else ''}"


def difference(first: Visits, second: Visits, figure: Callable[[Sequence[float]], float]) -> Difference:
    """Requires: both sides have as many visits. That the n-th of both were made one after the other takes out what
    changes with time."""
    assert len(first) == len(second) > 0

    def figures(visits: Sequence[int]) -> list[float]:
        return [figure(list(chain.from_iterable(side[at] for at in visits))) for side in (first, second)]

    def percent(values: Sequence[float]) -> float:
        return 100 * (values[1] / values[0] - 1)

    draw = random.Random(_SEED)
    every = range(len(first))
    drawn = [percent(figures(draw.choices(every, k=len(every)))) for _ in range(_DRAWS)]
    values = figures(every)
    return Difference(values[1] - values[0], percent(values), quantile(drawn, 0.025), quantile(drawn, 0.975))


def spread_percent(visits: Visits) -> tuple[float, float]:
    """How far the medians of visits lie apart, and how far those within a visit: standard deviations, in percent.

    Where the first is much larger than the second, something is decided once for each visit."""
    whole = statistics.mean(chain.from_iterable(visits))
    between = statistics.pstdev([statistics.median(visit) for visit in visits])
    within = statistics.mean([statistics.pstdev(visit) for visit in visits])
    return 100 * between / whole, 100 * within / whole


class Collected:
    """All visits of one side."""

    def __init__(self) -> None:
        self._turns: list[Times] = []

    def add(self, times: Times) -> None:
        self._turns.append(times)

    @property
    def kernels(self) -> list[str]:
        return list(self._turns[0])

    def visits(self, kernel: str) -> Visits:
        return [[1e3 * ms for ms in times[kernel]["medians"]] for times in self._turns]

    def medians_us(self, kernel: str) -> list[float]:
        return list(chain.from_iterable(self.visits(kernel)))

    def single_calls_us(self, kernel: str) -> list[float]:
        return [1e3 * ms for times in self._turns for ms in times[kernel]["samples"]]

    def is_stable(self, kernel: str) -> bool:
        return all(times[kernel]["stable"] for times in self._turns)

    @property
    def raw(self) -> list[Times]:
        return self._turns

    def surroundings(self) -> str:
        """What the reports say of the device, over all kernels: clocks, temperature, reasons for lower clocks."""
        found: list[dict[str, Any]] = [
            each for times in self._turns for kernel in times.values() for each in kernel["environments"] if each
        ]
        clocks = _known(found, "sm_clock_mhz_before") + _known(found, "sm_clock_mhz_after")
        others = _known(found, "other_processes")
        reasons = sorted({reason for each in found for reason in each["clock_event_reasons"] or ()})
        return (
            f"SM clock {_range(clocks)} MHz, {_range(_known(found, 'temperature_c'))} C, "
            f"{_range(others)} other processes; lower clocks: {', '.join(reasons) or 'no reason'}"
        )


def _known(environments: list[dict[str, Any]], name: str) -> list[float]:
    return [each[name] for each in environments if each[name] is not None]


def _range(values: list[float]) -> str:
    if not values:
        return "?"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:g}" if low == high else f"{middle:g} ({low:g} to {high:g})"
