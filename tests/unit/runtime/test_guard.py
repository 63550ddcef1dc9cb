"""CUDA calls in `cpu_only` runs (contract sections 3 and 6), on a fake GPU."""

import os
import sys

import pytest

import driver
from attacks import HARMLESS
from driver import Slot, function, module, returns, run
from fake_cupti import PRELUDE, FakeGpu

SOURCE = PRELUDE + """
gpu = Gpu()
cuda = gpu.library.fake_gpu_call
def quiet():
    return sum(range(1000))
def calls():
    cuda(b"cudaMalloc", 1)  # here
    cuda(b"cudaFree", 1)
def holds():
    ctypes.PyDLL("libcuda.so.1").fake_gpu_call(b"cudaMalloc", 1)  # here
def raises():
    cuda(b"cudaMalloc", 1)  # here
    raise AssertionError("also this")
def leaves():
    cuda(b"cudaMalloc", 1)  # here
    sys.exit(3)
def threads():
    import threading
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
def forks():
    child = os.fork()
    if child == 0:
        cuda(b"cudaMalloc", 1)
        os._exit(0)
    return os.waitpid(child, 0)[1]
def measures():
    from kcoral.builtins import benchmark
    return benchmark(gpu.kernel)
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return FakeGpu(tmp_path_factory.mktemp("installation"))


@pytest.fixture(scope="module")
def slot(fake, tmp_path_factory):
    made = make_slot(fake, tmp_path_factory.mktemp("slot"))
    yield made
    made.close()


def make_slot(fake, root):
    # Without site-packages, whose CUPTI would be a real one.
    command = ["/usr/bin/env", "LD_LIBRARY_PATH=" + fake.libraries, sys.executable, "-S", "-B", "-s"]
    command += [os.path.join(os.path.dirname(driver.__file__), "fake_zygote.py"), fake.runtime, str(root)]
    slot = Slot(root, preload=(), command=command, visible_devices="0")
    assert slot.hello["type"] == "zygote_ready", slot.hello
    return slot


def guarded(slot, name, source=SOURCE, **more):
    return slot.run([module(source), function(name, cpu_only=True), run(name), returns()], **more)


def line_of(slot, name, source=SOURCE):
    """Where the module's own file says that the function `name` calls CUDA."""
    lines = source.split("\n")
    start = lines.index("def %s():" % name)
    number = next(number for number, line in enumerate(lines) if number > start and line.endswith("# here"))
    return "%s/private/modules/kcoral_upload_m.py:%d" % (slot.root, number + 1)


def can_see_lines():
    """Whether this interpreter lets others read frames of a thread that holds no lock (CPython 3.11 and 3.12)."""
    import ctypes

    return hasattr(ctypes.pythonapi, "_Py_DumpTraceback")


def test_a_cuda_call_is_gpu_access(slot):
    error = guarded(slot, "calls").error
    assert error["kind"] == "gpu_access" and error["index"] == 2
    assert error["cuda_call"] == "cudaMalloc" and "the first of 2 calls" in error["message"]
    assert error["location"] in error["message"]
    if can_see_lines():
        assert error["location"] == line_of(slot, "calls")


def test_a_thread_that_holds_the_interpreters_lock_is_located_in_any_python(slot):
    assert guarded(slot, "holds").error["location"] == line_of(slot, "holds")


def test_it_wins_over_what_the_function_raised_which_is_shown(slot):
    for name, shown in (("raises", "AssertionError: also this"), ("leaves", "SystemExit: 3")):
        error = guarded(slot, name).error
        assert error["kind"] == "gpu_access" and error["cuda_call"] == "cudaMalloc"
        assert error["traceback"].endswith(shown + "\n")


def test_calls_of_other_threads_are_seen(slot):
    error = guarded(slot, "threads").error
    assert error["kind"] == "gpu_access" and error["cuda_call"] == "cudaMalloc"
    if can_see_lines():
        assert error["location"] == line_of(slot, "calls")


def test_what_calls_nothing_goes_on(slot):
    outcome = guarded(slot, "quiet")
    assert outcome.completed and outcome.returned["result"].wire["value"] == 499500


def test_only_cpu_only_runs_are_guarded(slot):
    outcome = slot.run(
        [
            module(SOURCE),
            function("calls"),
            function("quiet", cpu_only=True),
            run("calls", id="a"),
            run("quiet", id="b"),
            run("calls", id="c"),
            returns("b"),
        ]
    )
    assert outcome.completed, outcome.error


def test_without_a_gpu_there_is_no_guard(slot):
    assert guarded(slot, "calls", needs_lease=False).completed


def test_processes_of_the_program_are_not_guarded(slot):
    outcome = guarded(slot, "forks")
    assert outcome.completed and outcome.returned["result"].wire["value"] == 0


def test_a_measurement_in_a_cpu_only_run_is_refused(slot):
    error = guarded(slot, "measures").error
    assert error["kind"] == "runtime" and "cpu_only" in error["message"]


def test_the_first_use_of_cuda_is_seen(slot):
    source = "import ctypes\ndef f():\n    return ctypes.CDLL('libcuda.so.1').cuInit(0)\n"
    error = guarded(slot, "f", source).error
    assert error["kind"] == "gpu_access" and error["cuda_call"] == "cuInit"
    assert error["location"].endswith("upload_m.py:3")


@pytest.mark.parametrize("name", HARMLESS)
def test_a_program_that_damages_its_interpreter_is_guarded_all_the_same(slot, name):
    error = guarded(slot, "f", SOURCE + HARMLESS[name] + "\ndef f():\n    cuda(b'cudaMalloc', 1)\n").error
    assert error["kind"] == "gpu_access" and error["cuda_call"] == "cudaMalloc", error


def test_without_the_library_there_is_no_guard(tmp_path, fake):
    os.makedirs(tmp_path / "elsewhere")
    os.symlink(fake.runtime, tmp_path / "elsewhere" / "python")
    bare = FakeGpu.__new__(FakeGpu)
    bare.libraries, bare.runtime = fake.libraries, str(tmp_path / "elsewhere" / "python")
    slot = make_slot(bare, tmp_path / "slot")
    try:
        assert guarded(slot, "calls").completed
    finally:
        slot.close()
