"""Other users of CUPTI. These checks come last in their process, since traces of them stay."""

from __future__ import annotations

import torch
from kcoral.builtins import Unavailable, benchmark
from timing_checks.comparisons import filled
from timing_checks.subject import QUICK, check, us, watch


@check
def profiler_active():
    a = filled(1)
    refused = None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        a.add_(1)
        try:
            benchmark(lambda: a.add_(1), QUICK)
        except Unavailable as error:
            refused = str(error)
        mode, calls, _, _, _ = watch(lambda: a.add_(1))
        torch.cuda.synchronize()
    assert refused and len(profile.events()) > 0
    events = len(profile.events())
    return "%s; the profiler saw %d events; guard mode %d, %d calls" % (refused[:60], events, mode, calls)


@check
def profiler_before():
    a = torch.zeros(1024, device="cuda")
    report = benchmark(lambda: a.add_(1), QUICK)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        a.add_(1)
        torch.cuda.synchronize()
    again = benchmark(lambda: a.add_(1), QUICK)
    mode = watch(lambda: None)[0]
    assert len(profile.events()) > 0
    return "%.2f us, flagged: %s; after another profile (%d events) %.2f us; guard mode %d" % (
        us(report), report["environment"]["other_cupti_client"], len(profile.events()), us(again), mode
    )  # fmt: skip
