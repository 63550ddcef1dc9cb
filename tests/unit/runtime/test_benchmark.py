"""`kcoral.builtins.benchmark` (contract section 10), on a fake GPU."""

import os
import shutil

import pytest

from fake_cupti import FakeGpu

REPORT = {
    "latency_ms_median", "latency_ms_mean", "latency_ms_min", "latency_ms_max", "warmup", "repeat", "flush_l2",
    "activities_stable", "environment",
}  # fmt: skip
ENVIRONMENT = {
    "sm_clock_mhz_before", "sm_clock_mhz_after", "clock_event_reasons", "temperature_c", "other_processes",
    "other_cupti_client",
}  # fmt: skip
LEFT = "print(json.dumps({name: gpu.state(name) for name in %r}))\n" % (
    ["subscribers", "kinds", "buffers", "memory_bytes", "contexts", "current"],
)
NOTHING_LEFT = {"subscribers": 0, "kinds": 0, "buffers": 0, "memory_bytes": 0, "contexts": 0, "current": 0}


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return FakeGpu(tmp_path_factory.mktemp("installation"))


def report(fake, call="gpu.kernel()", config="", **more):
    source = "gpu = Gpu()\ncalls = []\ndef function():\n    calls.append(1)\n    %s\n" % call
    source += "report = benchmark(function%s)\n" % (", " + config if config else "")
    return fake.run(source + "print(json.dumps({**report, 'calls': len(calls)}))\n", **more)


def error(fake, call="gpu.kernel()", config="{'warmup': 1, 'repeat': 3}", head="", **more):
    """The type and message of the error; whatever it was, nothing of ours is left."""
    source = "gpu = Gpu()\n" + head + "\ndef function():\n    %s\n" % call
    source += "try: benchmark(function, %s)\n" % config
    source += "except Exception as caught: kind, message = type(caught).__name__, str(caught)\n"
    source += "left = {name: gpu.state(name) for name in %r}\n" % (["kinds", "memory_bytes"],)
    kind, message, left = fake.run(source + "print(json.dumps([kind, message, left]))\n", **more)
    assert left["memory_bytes"] == 0 and left["kinds"] <= 0, left
    return kind, message


# --- The report ---


def test_the_report_has_exactly_these_members(fake):
    found = report(fake)
    calls = found.pop("calls")
    assert set(found) == REPORT and set(found["environment"]) == ENVIRONMENT
    assert found["latency_ms_median"] == found["latency_ms_mean"] == found["latency_ms_min"] == 0.005
    assert found["flush_l2"] is True and found["activities_stable"] is True
    assert calls >= found["warmup"] + found["repeat"]


def test_latencies_are_those_of_the_samples(fake):
    found = report(fake, "gpu.kernel(us=[9, 9, 4, 1, 3, 2][len(calls) - 1])", "{'warmup': 2, 'repeat': 4}")
    shown = [found["latency_ms_" + name] for name in ("median", "mean", "min", "max")]
    assert shown == [0.0025, 0.0025, 0.001, 0.004] and found["calls"] == 6


def test_the_environment(fake):
    assert report(fake)["environment"] == {
        "sm_clock_mhz_before": 1980,
        "sm_clock_mhz_after": 1980,
        "clock_event_reasons": ["sw_power_cap"],
        "temperature_c": 41,
        "other_processes": 2,
        "other_cupti_client": False,
    }


def test_what_nvml_does_not_tell_is_none(fake):
    found = report(fake, FAKE_GPU_NVML_ERROR="9")["environment"]
    assert found == {name: None for name in ENVIRONMENT} | {"other_cupti_client": False}


def test_different_activities_are_told(fake):
    assert report(fake, "gpu.kernel(name=b'a' if len(calls) % 2 else b'b')")["activities_stable"] is False


def test_arguments_and_the_configuration_after_them(fake):
    source = """
gpu = Gpu()
seen = []
def function(*args):
    seen.append(args)
    gpu.kernel()
first = benchmark(function, {"a": 1}, 2, {"warmup": 0, "repeat": 1})
second = benchmark(function, 2, {})
print(json.dumps([seen[0], seen[-1], first["repeat"], second["repeat"] > 1]))
"""
    assert fake.run(source) == [[{"a": 1}, 2], [2], 1, True]


# --- How many calls ---


def test_budgets_become_counts_by_the_time_of_a_whole_iteration(fake):
    """A flush of 256 MiB takes 132 us on the fake GPU, the kernel 68 us."""
    found = report(fake, "gpu.kernel(us=68)", "{'warmup_ms': 10, 'repeat_ms': 40}")
    assert 45 <= found["warmup"] <= 50 and 180 <= found["repeat"] <= 200, found
    found = report(fake, "gpu.kernel(us=68)")
    assert 115 <= found["warmup"] <= 125 and 460 <= found["repeat"] <= 500, found


@pytest.mark.parametrize(
    "config, warmup, repeat",
    [
        ("{'warmup': 3, 'repeat': 4}", 3, 4),
        ("{'warmup': 0, 'repeat': 1}", 0, 1),
        ("{'warmup': 3, 'warmup_ms': 1000, 'repeat': 4, 'repeat_ms': 1000}", 3, 4),
    ],
)
def test_explicit_counts_override_and_nothing_else_is_called(fake, config, warmup, repeat):
    found = report(fake, config=config)
    assert (found["warmup"], found["repeat"], found["calls"]) == (warmup, repeat, warmup + repeat)


def test_one_explicit_count_leaves_the_other_to_its_budget(fake):
    found = report(fake, "gpu.kernel(us=68)", "{'warmup': 2}")
    assert found["warmup"] == 2 and 460 <= found["repeat"] <= 500
    found = report(fake, "gpu.kernel(us=68)", "{'repeat': 2}")
    assert found["repeat"] == 2 and 115 <= found["warmup"] <= 125


def test_empty_budgets(fake):
    found = report(fake, config="{'warmup_ms': 0, 'repeat_ms': 0}")
    assert (found["warmup"], found["repeat"]) == (0, 1)


def test_counts_from_budgets_are_bounded(fake):
    found = report(fake, config="{'warmup_ms': 1e9, 'repeat_ms': 1e9, 'flush_l2': False}")
    assert (found["warmup"], found["repeat"]) == (10_000, 10_000)


def test_a_long_call_is_not_repeated_for_an_estimate(fake):
    found = report(fake, "gpu.kernel(us=1e6)")
    assert (found["warmup"], found["repeat"], found["calls"]) == (1, 1, 4)


def test_what_the_first_call_takes_to_load_is_no_estimate(fake):
    found = report(fake, "gpu.kernel(us=1e6 if len(calls) == 1 else 68)")
    assert 460 <= found["repeat"] <= 500 and found["latency_ms_max"] == 0.068


# --- Flush and streams ---


def test_without_a_flush(fake):
    found = report(fake, config="{'flush_l2': False, 'repeat': 5}")
    assert found["flush_l2"] is False and found["latency_ms_median"] == 0.005


def test_work_that_does_not_wait_for_the_flush_is_synchronised_with(fake):
    source = """
gpu = Gpu()
calls = []
def function():
    calls.append(1)
    gpu.kernel(stream=7)
before = gpu.state("synchronisations")
report = benchmark(function, {"warmup": 2, "repeat": 5})
print(json.dumps([report["latency_ms_median"], len(calls), gpu.state("synchronisations") - before]))
"""
    median, calls, synchronisations = fake.run(source)
    assert median == 0.005
    # Once without and once with a synchronisation on either side of each of eight marks.
    assert calls == 14 and synchronisations >= 16


def test_the_marks_go_to_pytorchs_current_stream(fake, tmp_path):
    write_torch(tmp_path, stream=7)
    found = report(fake, "import torch; gpu.kernel(stream=7)", "{'warmup': 2, 'repeat': 5}", path=[tmp_path])
    assert found["calls"] == 14, "torch is imported by the first call only"
    source = "import torch\ngpu = Gpu()\ncalls = []\ndef function():\n    calls.append(1)\n    gpu.kernel(stream=7)\n"
    source += "benchmark(function, {'warmup': 2, 'repeat': 5})\nprint(len(calls))\n"
    assert fake.run(source, path=[tmp_path]) == 7


# --- What goes wrong ---


def test_nothing_launched(fake):
    kind, message = error(fake, "pass")
    assert kind == "RuntimeError" and "the function launched no GPU activity" in message
    kind, message = error(fake, "gpu.kernel() if calls.append(1) or len(calls) % 2 else None", head="calls = []")
    assert kind == "RuntimeError" and "2 of 3 calls launched no GPU activity" in message


def test_the_functions_own_exception_passes_through(fake):
    kind, message = error(fake, "gpu.kernel(); raise KeyError('mine')")
    assert (kind, message) == ("KeyError", "'mine'")
    source = """
gpu = Gpu()
def function():
    gpu.kernel()
    raise SystemExit(3)
try:
    benchmark(function)
except SystemExit:
    pass
"""
    assert fake.run(source + LEFT) == NOTHING_LEFT
    again = "benchmark(gpu.kernel, {'repeat': 3})\n"
    assert fake.run(source + again + LEFT) == NOTHING_LEFT


def test_a_measurement_within_a_measurement(fake):
    kind, message = error(fake, "benchmark(gpu.kernel, {'repeat': 1})")
    assert kind == "RuntimeError" and "one at a time" in message


@pytest.mark.parametrize(
    "fault, kind, message",
    [
        ({"DROPPED": "2"}, "Unavailable", "CUPTI dropped"),
        ({"LOST": "3"}, "Unavailable", "did not report everything"),
        ({"UNTIMED": "1"}, "Unavailable", "could not take the time"),
        ({"SYNCHRONIZE_ERROR": "700"}, "RuntimeError", "CUDA error 700: CUDA_ERROR_ILLEGAL_ADDRESS"),
        ({"MEMORY_BYTES": "1000000"}, "RuntimeError", "too little GPU memory"),
        ({"INIT_ERROR": "100"}, "Unavailable", "there is no GPU"),
        ({"SUBSCRIBE_ERROR": "35"}, "Unavailable", "INSUFFICIENT_PRIVILEGES"),
        ({"SUBSCRIBER": "Nsight Systems"}, "Unavailable", "ncu or nsys"),
        ({"SUBSCRIBER": "somebody"}, "Unavailable", "somebody"),
    ],
)
def test_faults_of_the_environment_and_errors_of_the_work_are_told_apart(fake, fault, kind, message):
    found = error(fake, **{"FAKE_GPU_" + name: value for name, value in fault.items()})
    assert found[0] == kind and message in found[1], found


def test_in_a_fork_of_whoever_started_cuda_it_says_what_to_do(fake):
    source = """
gpu = Gpu()
benchmark(gpu.kernel, {"repeat": 1})
child = os.fork()
if child == 0:
    os.environ["FAKE_GPU_INIT_ERROR"] = "3"  # as a real driver in such a process
    try: benchmark(gpu.kernel, {"repeat": 1})
    except Exception as caught: print(json.dumps([type(caught).__name__, str(caught)]), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    kind, message = fake.run(source)
    assert kind == "RuntimeError" and "before this process was forked" in message and "spawn" in message, message


def test_without_a_driver(fake, tmp_path):
    source = "try: benchmark(print)\nexcept Unavailable as error: print(json.dumps(str(error)))\n"
    assert "there is no GPU here" in fake.run(source, libraries=str(tmp_path))


@pytest.mark.parametrize(
    "file, message", [(None, "pip install nvidia-cuda-cupti"), ("libcupti.so.12", "version 12 or 13")]
)
def test_without_a_cupti_that_serves(fake, tmp_path, file, message):
    shutil.copy(fake.libraries + "/libcuda.so.1", tmp_path)
    found = str(tmp_path / (file or "libcupti.so.13"))
    if file is not None:
        shutil.copy(fake.libraries + "/old/" + file, found)
    head = "_timing.cupti_candidates = lambda: %r" % found
    kind, text = error(fake, head=head, libraries=str(tmp_path))
    assert kind == "Unavailable" and message in text, text


def test_candidates_are_what_is_installed_then_names_then_the_toolkit(fake, tmp_path):
    for name in ("cu13/lib/libcupti.so.13", "cuda_cupti/lib/libcupti.so.12"):
        file = tmp_path / "nvidia" / name
        file.parent.mkdir(parents=True)
        file.write_text("")
    source = "print(json.dumps(_timing.cupti_candidates().split('\\n')))"
    found = fake.run(source, path=[tmp_path], CUDA_HOME="/toolkit")
    assert found[:4] == [
        str(tmp_path / "nvidia/cu13/lib/libcupti.so.13"),
        str(tmp_path / "nvidia/cuda_cupti/lib/libcupti.so.12"),
        "libcupti.so.13",
        "libcupti.so.12",
    ]
    assert "/toolkit/extras/CUPTI/lib64/libcupti.so.13" in found


# --- Other users of CUPTI ---


def write_torch(directory, profiling=False, stream=0):
    """As much of PyTorch as is asked for."""
    package = directory / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        """
class cuda:
    is_initialized = staticmethod(lambda: True)
    class current_stream:
        cuda_stream = %d
class _C:
    class _autograd:
        _profiler_enabled = staticmethod(lambda: %r)
class autograd:
    class profiler:
        _is_profiler_enabled = %r
"""
        % (stream, profiling == "in C", profiling is True)
    )


@pytest.mark.parametrize("profiling", [True, "in C"])
def test_pytorchs_profiler_at_work_is_left_alone(fake, tmp_path, profiling):
    write_torch(tmp_path, profiling)
    kind, message = error(fake, head="import torch", path=[tmp_path])
    assert kind == "Unavailable" and "PyTorch's profiler is at work" in message


def test_pytorchs_profiler_that_is_idle_is_flagged(fake, tmp_path):
    write_torch(tmp_path)
    source = "import torch\ngpu = Gpu()\nprint(json.dumps(benchmark(gpu.kernel, {'repeat': 3})['environment']))\n"
    assert fake.run(source, path=[tmp_path], FAKE_GPU_SUBSCRIBER="CUPTI")["other_cupti_client"] is True
    assert fake.run(source, path=[tmp_path])["other_cupti_client"] is False


def test_tritons_profiler_at_work_is_left_alone(fake, tmp_path):
    package = tmp_path / "triton" / "profiler"
    package.mkdir(parents=True)
    for file in (tmp_path / "triton" / "__init__.py", package / "__init__.py"):
        file.write_text("")
    (package / "flags.py").write_text("class flags:\n    profiling_on = True\n")
    kind, message = error(fake, head="import triton.profiler.flags", path=[tmp_path])
    assert kind == "Unavailable" and "Proton" in message


# --- How it is called ---


@pytest.mark.parametrize(
    "config, kind, message",
    [
        ("{'warm': 1}", "ValueError", "has no 'warm'"),
        ("{1: 1}", "ValueError", "has no 1"),
        ("{'warmup_ms': -1}", "ValueError", "warmup_ms"),
        ("{'warmup_ms': True}", "ValueError", "warmup_ms"),
        ("{'repeat_ms': float('nan')}", "ValueError", "repeat_ms"),
        ("{'repeat_ms': float('inf')}", "ValueError", "repeat_ms"),
        ("{'repeat_ms': '1'}", "ValueError", "repeat_ms"),
        ("{'warmup': -1}", "ValueError", "warmup must be a count from 0"),
        ("{'warmup': 1.0}", "ValueError", "warmup"),
        ("{'warmup': True}", "ValueError", "warmup"),
        ("{'repeat': 0}", "ValueError", "repeat must be a count from 1"),
        ("{'repeat': 1000001}", "ValueError", "to 1000000"),
        ("{'flush_l2': 1}", "ValueError", "flush_l2"),
        ("{'flush_l2': None}", "ValueError", "flush_l2"),
    ],
)
def test_configurations_that_are_refused(fake, config, kind, message):
    found = error(fake, "calls.append(1)", config, head="calls = []")
    assert found[0] == kind and message in found[1], found


def test_what_is_not_callable_is_refused(fake):
    source = "try: benchmark(7)\nexcept TypeError as error: print(json.dumps(str(error)))\n"
    assert "not callable: it is of type int" in fake.run(source)


def test_importing_loads_nothing(fake):
    source = "maps = open('/proc/self/maps').read()\nprint(json.dumps('libkcoral' in maps or 'libcu' in maps))\n"
    assert fake.run(source) is False
    assert os.path.exists(fake.directory + "/libkcoral_timing.so")
