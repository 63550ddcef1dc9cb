"""Starting on a machine with GPUs: which it takes, and the one clear line where it cannot."""

from __future__ import annotations

import os
import subprocess

import pytest

from fake_gpus import Device, FakeGpus, GpuServer, fake_gpus, gpu_server
from harness import PATIENCE_S, Server, wait_until

ME = os.getpid()


@pytest.fixture(scope="module")
def busy():
    """A server that waits in vain for another process to leave its device, since the first of these tests."""
    with fake_gpus(0) as gpus:
        gpus.devices[0].processes[ME] = "100"
        gpus.tell()
        yield gpus, gpus.start("--gpus", "0")


@pytest.fixture
def three(busy):
    """The last one is of another architecture."""
    with fake_gpus(0, 1, 2) as gpus:
        gpus.devices[2].arch = "8.9"
        gpus.tell()
        yield gpus


def usage_error(gpus: FakeGpus, *flags: str) -> str:
    """Of a command line that makes no sense."""
    process = gpus.start(*flags)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, ""), (process.returncode, out, err)
    return err


class TestWhichGpus:
    def test_all_of_one_kind(self):
        with gpu_server([0, 4], "--workers-per-gpu", "1") as served:
            assert [gpu["id"] for gpu in served.look()] == [0, 1]
            assert "GPUs 0, 1, NVIDIA Fake (sm_90a)" in served.server.ready_line
            assert served.begin("what_it_sees", gpu_count=2).value()[0] == "0,1"

    def test_those_that_are_named(self, three):
        with three.server("--gpus", "1", "--workers-per-gpu", "3") as server:
            health = server.health()
            assert (health["gpu_count"], health["load"]["request_capacity"]) == (1, 3)
            assert health["target"] == {"arch": "sm_90a"} and "GPU 1, NVIDIA Fake (sm_90a)" in server.ready_line
            nodes = server.run("import os\ndef main(): return [n for n in os.listdir('/dev') if n[-1].isdigit()]\n")
            assert nodes.value() == ["nvidia1"]

    def test_one_of_the_other_kind(self, three):
        with three.server("--gpus", "2", "--workers-per-gpu", "1") as server:
            assert server.health()["target"] == {"arch": "sm_89"}

    def test_as_the_environment_says_unless_a_flag_does(self, three):
        three.more_environment = {"KCORAL_SERVER_GPUS": "2", "KCORAL_SERVER_DEVICE": "gpu"}
        with three.server("--workers-per-gpu", "1") as server:
            assert server.health()["target"] == {"arch": "sm_89"}
        with three.server("--workers-per-gpu", "1", "--gpus", "0") as server:
            assert server.health()["target"] == {"arch": "sm_90a"}

    def test_of_two_kinds_is_refused(self, three):
        for flags in ((), ("--gpus", "0,2"), ("--gpus", "2,1")):
            said = three.complaint(*flags)
            assert "sm_90a" in said and "sm_89" in said and "--gpus" in said

    def test_one_that_is_not_there_is_refused(self, three):
        assert "there is no GPU 3; this machine has 0 to 2" in three.complaint("--gpus", "0,3")

    @pytest.mark.parametrize(
        "flags, reason",
        [
            (["--gpus", "0,0"], "twice"),
            (["--gpus", "-1"], "-1"),
            (["--gpus", "x"], "x"),
            (["--gpus", "0", "--device", "cpu"], "--device cpu has none"),
            (["--workers-per-gpu", "0"], "whole number"),
            (["--lease-wait-timeout-seconds", "0"], "whole number"),
        ],
    )
    def test_a_command_line_that_makes_no_sense_is_refused(self, three, flags, reason):
        assert reason in usage_error(three, *flags)

    def test_workers_of_a_cpu_server_are_refused(self, three):
        assert "--workers-per-gpu" in three.complaint("--gpus", "0", "--num-workers", "2")


class TestDevicesThatAreNotAsTheyShould:
    def test_a_node_that_is_missing(self, three):
        three.devices.append(Device(9))
        three.tell()
        assert "/dev/nvidia9 is missing" in three.complaint("--gpus", "3")

    @pytest.mark.parametrize("fault", ["NVML_ERROR", "NVML_MEMORY_ERROR", "NVML_PROCESSES_ERROR"])
    def test_a_driver_that_does_not_work(self, three, fault):
        three.faults[fault] = 999
        three.tell()
        for device in ("auto", "gpu"):
            said = three.complaint("--gpus", "0", "--device", device)
            assert "Unknown Error" in said

    def test_a_driver_that_is_not_loaded_is_none(self, three):
        three.faults["NVML_ERROR"] = 9
        three.tell()
        assert "there is no NVIDIA GPU" in three.complaint("--device", "gpu")
        assert "there is no NVIDIA GPU" in three.complaint("--gpus", "0")
        with three.server("--device", "auto") as server:
            health = server.health()
            assert (health["gpu_count"], health["target"]) == (0, {})
            assert server.request("GET", "/gpus").json() == {"gpus": []}

    def test_no_device_is_none(self, three):
        three.devices.clear()
        three.tell()
        assert "there is no NVIDIA GPU" in three.complaint("--device", "gpu")

    @pytest.mark.parametrize(
        "fault, error, name",
        [
            ("INIT_ERROR", 100, "CUDA_ERROR_NO_DEVICE"),
            ("CONTEXT_ERROR", 2, "CUDA_ERROR_OUT_OF_MEMORY"),
            ("COPY_ERROR", 1, "CUDA_ERROR_INVALID_VALUE"),
        ],
    )
    def test_a_device_on_which_no_context_can_be_made(self, three, fault, error, name):
        three.faults[fault] = error
        three.tell()
        said = three.complaint("--gpus", "0", "--workers-per-gpu", "1", *three.flags)
        assert "no CUDA context can be made" in said and name in said

    def test_programs_that_find_no_driver(self, three):
        """Only the server's process does."""
        said = three.complaint("--gpus", "0", "--workers-per-gpu", "1")
        assert "libcuda.so.1 cannot be loaded" in said

    def test_a_device_that_becomes_free(self, three):
        three.devices[0].processes[ME] = "100"
        three.tell()
        data_dir = three.directory.parent / "late"
        log = three.directory.parent / "late.log"
        with open(log, "w") as file:
            server = subprocess.Popen(
                three.command("--gpus", "0", "--workers-per-gpu", "1", *three.flags, data_dir=str(data_dir)),
                env=three.server_environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        try:
            wait_until(lambda: f"waiting for process {ME} to leave GPU 0" in log.read_text(), "it waits")
            three.devices[0].processes.clear()
            three.tell()
            assert b"ready at" in server.stdout.readline()
        finally:
            server.terminate()
            assert server.wait(PATIENCE_S) == 0
            server.stdout.close()

    def test_devices_of_a_server_that_was_killed(self, three, data_dir):
        """What its programs leave to the driver goes with them, a moment later."""
        flags = [*three.flags, "--gpus", "0,1", "--workers-per-gpu", "2"]
        more = {"environment": three.environment, "prefix": three.prefix, "device": "gpu"}
        served = GpuServer(Server(data_dir, *flags, **more).start(), three)
        pending, _ = served.hold("hold_context")
        served.wait_for_holder(pending)
        served.server.kill()
        again = GpuServer(Server(data_dir, *flags, **more).start(), three)
        assert [gpu["health"] for gpu in again.look()] == ["ok", "ok"]
        assert again.begin("what_it_sees", gpu_count=2).value()[:2] == ["0,1", 2]
        assert again.server.stop() == 0

    def test_a_device_that_stays_busy(self, busy):
        gpus, process = busy
        said = gpus.complaint_of(process)
        assert f"GPU 0 is in use by process {ME}" in said and "--gpus" in said
