"""When a process that serves several programs gives the GPU back: as soon as its program needs it no more, and not before
its work is done."""

import signal

import pytest
from driver import Outcome, module, program, receive_frame, send_frame
from fake_gpu import FakeGpu


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


def test_the_device_is_given_back_before_the_last_value_is_sent(slot):
    runtime = Runtime(slot)
    for _ in range(2):
        outcome = runtime.answer(program("def f(): return 1"))
        assert outcome.completed
        assert outcome.types[-3:] == ["lease_release", "returned", "completed"]
        assert outcome.frames[-3]["index"] == 3
        runtime.recycle()
        runtime.expect("ready")


def test_a_program_that_returns_nothing_gives_it_back_too(slot):
    outcome = Runtime(slot).answer(program("def f(): return 1")[:-1])
    assert outcome.types[-2:] == ["lease_release", "completed"]


def test_it_is_given_back_once_the_programs_work_on_it_is_done(slot):
    runtime = Runtime(slot)
    address = runtime.answer(program(WORK + "f = begin")).returned["result"].wire["value"]
    runtime.recycle()
    runtime.expect("ready")
    look = "import ctypes\ndef f(address): return ctypes.string_at(address, 4).decode()"
    assert runtime.answer(program(look, address)).returned["result"].wire["value"] == "xxxx"


def test_a_module_that_does_not_compile_is_told_in_its_turn(slot):
    instructions = [*program("def f(): return 1"), module("def f(:", id="bad")]
    outcome = Runtime(slot).answer(instructions)
    assert (outcome.error["kind"], outcome.error["index"]) == ("parse", 4)
    assert outcome.returned["result"].wire["value"] == 1


def test_a_program_that_fails_gives_it_back_too(slot):
    runtime = Runtime(slot)
    assert runtime.answer(program("def f(): raise ValueError('no')")).error["kind"] == "runtime"
    assert runtime.expect("lease_release")["index"] == 2
    runtime.recycle()
    runtime.expect("ready")


def test_work_that_fails_after_the_last_instruction_fails_that(slot):
    runtime = Runtime(slot)
    source = "import os\ndef f(): os.environ['FAKE_GPU_SYNCHRONIZE_ERROR'] = '700'"
    outcome = runtime.answer(program(source))
    assert (outcome.error["kind"], outcome.error["index"]) == ("runtime", 3)
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in outcome.error["message"]
    # The device cannot be used in this process any more, which keeps the lease to its end.
    runtime.recycle()
    runtime.expect("unfit")


def test_a_process_that_is_not_used_again_keeps_it(slot):
    runtime = Runtime(slot)
    runtime.answer(program("def f(): raise SystemExit"))
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
    runtime.recycle()
    runtime.expect("ready")
