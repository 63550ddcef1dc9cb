"""What a GPU server tells about its devices (contract section 8), and what its contexts take of them."""

from __future__ import annotations

import re

import pytest

from fake_gpus import GpuServer, gpu_server
from harness import Program, wait_until

MIB = 1 << 20
CONTEXT_BYTES = 300 * MIB  # tests/support/fake_gpu
FIELDS = {
    "id", "name", "uuid", "arch", "memory_bytes", "memory_used_bytes", "utilisation_percent", "temperature_celsius",
    "sm_clock_mhz", "health", "holder", "waiters", "handovers", "idle_between_ms",
}  # fmt: skip


@pytest.fixture(scope="module")
def served():
    with gpu_server([0], "--workers-per-gpu", "2") as served:
        yield served


def test_each_device_is_described(served: GpuServer):
    reply = served.server.request("GET", "/gpus")
    document = reply.json()
    assert (reply.status, set(document), len(document["gpus"])) == (200, {"gpus"}, 1)
    gpu = document["gpus"][0]
    assert set(gpu) == FIELDS
    assert (gpu["id"], gpu["name"], gpu["uuid"], gpu["arch"]) == (0, "NVIDIA Fake", "GPU-fake-0", "sm_90a")
    assert (gpu["memory_bytes"], gpu["health"], gpu["waiters"]) == (81920 * MIB, "ok", 0)
    assert (gpu["utilisation_percent"], gpu["temperature_celsius"], gpu["sm_clock_mhz"]) == (37, 41, 1980)


def test_only_get_is_allowed(served: GpuServer):
    reply = served.server.request("POST", "/gpus", b"")
    assert "GET" in reply.error(405, "method_not_allowed") and reply.headers["allow"] == "GET, HEAD"


def test_what_the_driver_does_not_tell_is_null(served: GpuServer):
    facts = {"NVML_UTILISATION_ERROR": "utilisation_percent", "NVML_TEMPERATURE_ERROR": "temperature_celsius"}
    facts["NVML_CLOCK_ERROR"] = "sm_clock_mhz"
    served.gpus.faults = {fault: 3 for fault in facts}
    served.gpus.tell()
    wait_until(lambda: all(served.look()[0][name] is None for name in facts.values()), "they are null")
    assert served.look()[0]["memory_used_bytes"] is not None
    served.gpus.faults = {"NVML_MEMORY_ERROR": 15}
    served.gpus.tell()
    wait_until(lambda: served.look()[0]["memory_used_bytes"] is None, "nothing is told")
    assert set(served.look()[0]) == FIELDS
    served.gpus.faults = {}
    served.gpus.tell()
    wait_until(lambda: served.look()[0]["sm_clock_mhz"] == 1980, "they are told again")


def test_health(served: GpuServer):
    health = served.server.health()
    assert (health["status"], health["gpu_count"], health["target"]) == ("ok", 1, {"arch": "sm_90a"})
    assert health["load"] == {"request_capacity": 2, "requests_in_progress": 0, "requests_waiting": 0}
    assert health["versions"]["driver"] == "999.1"


def test_health_and_gpus_answer_while_every_worker_waits(served: GpuServer):
    holder, word = served.hold()
    served.wait_for_holder(holder)
    pending = [served.begin("spin", 0) for _ in range(2)]
    wait_until(lambda: served.server.health()["load"]["requests_waiting"] == 1, "one waits for a worker")
    assert served.look()[0]["waiters"] >= 1 and re.fullmatch(r".*Z", served.look()[0]["holder"]["since"])
    handovers = served.look()[0]["handovers"]
    served.say(word)
    assert all(each.value() for each in [holder, *pending])
    gpu = served.look()[0]
    assert gpu["handovers"] > handovers and gpu["idle_between_ms"] > 0


def test_contexts_are_made_ahead_and_memory_comes_back(served: GpuServer):
    """One context for each worker; a program's memory is the device's again when it has ended."""
    served.wait_until_settled(contexts=2)
    unused = served.gpus.devices[0].used_mib * MIB + 2 * CONTEXT_BYTES
    wait_until(lambda: served.look()[0]["memory_used_bytes"] == unused, "two contexts wait")
    holder, word = served.hold("hold_context")
    wait_until(lambda: served.look()[0]["memory_used_bytes"] == unused + MIB, "the program has memory")
    assert len(served.users_of(0)) == 2, "it was given a context, and none is made while it holds the device"
    served.say(word)
    assert holder.value()
    wait_until(lambda: served.look()[0]["memory_used_bytes"] == unused, "it is back")


def test_a_program_uses_the_context_that_was_made(served: GpuServer):
    served.wait_until_settled(contexts=2)
    before = set(served.users_of(0))
    holder, word = served.hold("hold_context")
    served.wait_for_holder(holder)
    assert set(served.users_of(0)) == before
    served.say(word)
    assert holder.value()


def use_both_workers(served: GpuServer, function: str) -> None:
    """Each with what stood by there; then they make new ones ready."""
    pending = [served.hold(function) for _ in range(2)]
    wait_until(lambda: served.server.health()["load"]["requests_in_progress"] == 2, "both have a worker")
    for _, word in pending:  # whichever of them has the device
        served.say(word)
    assert all(each.value() for each, _ in pending)


def test_where_contexts_cannot_be_made_any_more_programs_go_on_and_are_told(served: GpuServer):
    served.wait_until_settled(contexts=2)
    served.gpus.faults = {"CONTEXT_ERROR": 2}
    served.gpus.tell()
    use_both_workers(served, "hold")
    served.wait_until_settled(contexts=0)
    failed = served.begin("hold_context", "never").reply().result()
    assert failed.error["kind"] == "correctness", "an assertion of the program's own"
    served.gpus.faults = {}
    served.gpus.tell()
    use_both_workers(served, "hold_context")
    served.wait_until_settled(contexts=2)


class TestGuard:
    """cpu_only runs that use the GPU all the same (contract sections 3 and 6)."""

    SOURCE = """
import ctypes
ctypes.CDLL("libcupti.so.13")  # not another one that is installed
driver = ctypes.CDLL("libcuda.so.1")
def touches(word):
    hold(word)
    driver.fake_gpu_call(b"cudaMalloc", 1)
def works(word):
    hold(word)
    driver.fake_gpu_call(b"cudaMalloc", 1)
    return 1
"""

    def program(self, served: GpuServer, first: str, second: str) -> Program:
        """Works on the GPU until the first word is said, and once more in a cpu_only run after the second one."""
        program = Program()
        module = program.module(served.source + self.SOURCE)
        program.give("first", program.call(module, "works", [first]))
        program.give("second", program.call(module, "touches", [second], cpu_only=True))
        return program

    def test_a_call_is_an_error_that_says_where(self, served: GpuServer):
        served.say("alone")
        result = served.server.execute(self.program(served, "alone", "alone"))
        error = result.error
        assert (result.status, error["kind"], error["cuda_call"]) == ("FAILED", "gpu_access", "cudaMalloc")
        assert error["interfered_request_id"] is None and "upload_module.py" in error["location"]
        assert result.values == {"first": 1}

    def test_whoever_was_disturbed_is_named(self, served: GpuServer):
        disturbing = served.send(self.program(served, "work", "touch"))
        served.wait_for_holder(disturbing)
        disturbed, word = served.hold()
        served.say("work")
        served.wait_for_holder(disturbed)
        served.say("touch")
        assert disturbing.reply().result().error["interfered_request_id"] == disturbed.id
        served.say(word)
        assert disturbed.value()


def test_a_measurement(served: GpuServer):
    source = """
import ctypes
ctypes.CDLL("libcupti.so.13")
driver = ctypes.CDLL("libcuda.so.1")
from kcoral.builtins import benchmark
def kernel():
    driver.fake_gpu_launch(b"kernel", 1, ctypes.c_uint64(5000), ctypes.c_uint64(0))
def main():
    return benchmark(kernel, {"warmup": 2, "repeat": 10})
"""
    measured = served.server.run(source).value()
    assert measured["latency_ms_median"] == measured["latency_ms_max"] == 0.005
    assert measured["activities_stable"] is True and measured["repeat"] == 10
