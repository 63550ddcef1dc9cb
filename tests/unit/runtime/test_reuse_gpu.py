"""When a process that serves several programs gives the GPU back: as soon as its program needs it no more, and not before
its work is done."""

import signal

import pytest
from driver import Outcome, module, program, receive_frame, send_frame
from fake_gpu import FakeGpu
from test_gpu_arrays import LIBRARY


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return FakeGpu(tmp_path_factory.mktemp("gpu"))


@pytest.fixture
def slot(gpu, tmp_path):
    gpu.forget()
    slot = gpu.slot(tmp_path, preload=(), reuse=True)
    slot.runtimes = []
    yield slot
    end(slot)


def end(slot):
    for pidfd in [fd for runtime in slot.runtimes for fd in runtime.pidfds]:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    slot.close()


class Runtime:
    """One with a context that serves programs until the test ends."""

    def __init__(self, slot):
        self._slot = slot
        self.socket, self._out, self._err, self.pidfds, _ = slot.prepare()
        slot.runtimes.append(self)
        slot._devices = [0]
        self.expect("ready")
        for step, answer in (("initialise", "initialised"), ("make_context", "context_made")):
            send_frame(self.socket, {"type": step})
            self.expect(answer)

    def expect(self, type):
        frame, _ = receive_frame(self.socket)
        assert frame["type"] == type, frame
        return frame

    def answer(self, instructions):
        outcome = Outcome()
        self._slot._send_program(self.socket, instructions, (), True)
        self._slot._follow(self.socket, self._out, self._err, instructions, outcome, None)
        return outcome

    def go_on(self):
        """To the next program."""
        self.recycle()
        self.expect("ready")

    def recycle(self):
        send_frame(self.socket, {"type": "recycle"})


# Starts work on the device that ends only once somebody waits for it, and looks at its end.
WORK = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
cuda.fake_gpu_launch_fill.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_size_t]

def begin():
    address, context = ctypes.c_uint64(), ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4)) == cuda.cuCtxPopCurrent_v2(ctypes.byref(context)) == 0
    assert cuda.fake_gpu_launch_fill(address.value, ord("x"), 4) == 0
    return address.value
"""


# Ends with an array from the device.
ARRAY = LIBRARY + """
def f():
    return Array(allocate(b"abcd"), [4])
"""


def test_the_device_is_given_back_before_anybody_asks_for_another_program(slot):
    runtime = Runtime(slot)
    for _ in range(2):
        assert runtime.answer(program("def f(): return 1")).completed
        assert runtime.expect("lease_release")["index"] == 3
        runtime.go_on()


def test_it_is_given_back_before_an_array_that_was_copied_last_is_passed_on(slot):
    runtime = Runtime(slot)
    for _ in range(2):
        outcome = runtime.answer(program(ARRAY))
        assert outcome.types[-3:] == ["lease_release", "returned", "completed"]
        assert outcome.returned["result"].parts == [b"abcd"]
        runtime.go_on()


@pytest.mark.parametrize(
    "source, more",
    [
        (ARRAY + "g = f\ndef f(): return [g()]", ()),  # code of a later element could have run after the copy
        (ARRAY + "import sys\nclass Out:\n    def flush(self): pass\nsys.stdout = Out()", ()),
        (ARRAY, (module("x = 1", id="later"),)),
    ],
)
def test_it_is_kept_while_code_of_the_program_may_still_run(slot, source, more):
    runtime = Runtime(slot)
    outcome = runtime.answer([*program(source), *more])
    assert outcome.completed and "lease_release" not in outcome.types
    runtime.expect("lease_release")


def test_a_process_that_is_ended_with_its_program_keeps_it(slot):
    slot.keep = False
    outcome = Runtime(slot).answer(program(ARRAY))
    assert outcome.completed and "lease_release" not in outcome.types


@pytest.mark.parametrize(
    "torch",
    [
        "sys.modules['torch'] = types.ModuleType('torch')",
        "from unittest import mock\nsys.modules['torch'] = mock.MagicMock()",
        "sys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: sys.exit(3)))",
    ],
)
def test_what_is_called_torch_may_be_the_programs_own(slot, torch):
    runtime = Runtime(slot)
    outcome = runtime.answer(program(ARRAY + "import sys, types\n" + torch))
    assert outcome.completed and outcome.returned["result"].parts == [b"abcd"]


def test_it_is_given_back_once_the_programs_work_on_it_is_done(slot):
    runtime = Runtime(slot)
    address = runtime.answer(program(WORK + "f = begin")).returned["result"].wire["value"]
    runtime.expect("lease_release")
    runtime.go_on()
    look = "import ctypes\ndef f(address): return ctypes.string_at(address, 4).decode()"
    assert runtime.answer(program(look, address)).returned["result"].wire["value"] == "xxxx"


def test_a_program_that_fails_gives_it_back_too(slot):
    runtime = Runtime(slot)
    assert runtime.answer(program("def f(): raise ValueError('no')")).error["kind"] == "runtime"
    assert runtime.expect("lease_release")["index"] == 2
    runtime.go_on()


def test_a_module_that_does_not_compile_leaves_a_lease_that_was_asked_for_unused(slot):
    runtime = Runtime(slot)
    for _ in range(2):
        outcome = runtime.answer(program("def f(:"))
        assert (outcome.error["kind"], outcome.error["index"]) == ("parse", 0)
        assert outcome.types == ["started", "lease_request", "failed"]
        runtime.go_on()


@pytest.mark.parametrize(
    "source",
    [
        # Its work failed: the device cannot be used in this process any more.
        "import os\ndef f(): os.environ['FAKE_GPU_SYNCHRONIZE_ERROR'] = '700'",
        "def f(): raise SystemExit",
    ],
)
def test_a_process_that_is_not_used_again_keeps_it(slot, source):
    runtime = Runtime(slot)
    runtime.answer(program(source))
    runtime.recycle()
    runtime.expect("unfit")


def test_a_process_whose_program_started_another_keeps_it_until_none_is_left(gpu, tmp_path):
    slot = gpu.slot(tmp_path, preload=(), reuse=True, last_pid="changes")
    slot.runtimes = []
    runtime = Runtime(slot)
    assert runtime.answer(program("def f(): return 1")).completed
    runtime.recycle()
    runtime.expect("unfit")  # whoever looks for other processes finds those of this machine
    end(slot)


def test_a_program_without_the_device_has_nothing_to_give_back(slot):
    runtime = Runtime(slot)
    assert runtime.answer([module("x", language="cuda")]).completed
    runtime.go_on()
