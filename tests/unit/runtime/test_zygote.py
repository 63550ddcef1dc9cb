"""The zygote: readiness, preloads, versions, and what it reports of processes."""

import os
import platform
import signal
import sys

import pytest

import driver
from driver import DEADLINE_SECONDS, Died, Slot, program, receive_frame, send_frame


def hello(tmp_path, preload, modules=(), **config):
    """The first frame of a zygote whose Python finds these modules."""
    for name, source in modules:
        (tmp_path / (name + ".py")).write_text(source)
    slot = Slot(tmp_path / "slot", preload=preload, command=command(tmp_path), **config)
    try:
        return slot.hello
    finally:
        slot.close()


def command(directory):
    """Starts the fake zygote with `directory` on its path."""
    fake = os.path.join(os.path.dirname(driver.__file__), "fake_zygote.py")
    root = str(directory / "slot")
    code = "import sys; sys.path[:0] = ['', %r]; sys.argv = %r; exec(open(%r).read())" % (
        str(directory),
        [fake, driver.RUNTIME_DIRECTORY, root],
        fake,
    )
    return [sys.executable, "-B", "-s", "-c", code]


def test_versions(slot):
    versions = slot.hello["versions"]
    assert versions["python"] == platform.python_version()
    assert all(type(name) is str and type(version) is str and version for name, version in versions.items())
    assert set(versions) <= {"python", "torch", "cuda", "tvm", "tvm_ffi", "triton", "cutlass", "numpy", "nvcc"}
    numpy = pytest.importorskip("numpy")
    assert versions["numpy"] == numpy.__version__


@pytest.mark.parametrize(
    "source, reason",
    [
        (None, "No module named"),
        ("raise ValueError('broken build')\n", "broken build"),
        ("import sys\nsys.exit('no')\n", "SystemExit"),
        ("def f(:\n", "SyntaxError"),
    ],
)
def test_a_preload_that_fails_is_named(tmp_path, source, reason):
    frame = hello(tmp_path, ["bad_preload"], [("bad_preload", source)] if source else [])
    assert frame["type"] == "zygote_failed" and "bad_preload" in frame["message"] and reason in frame["message"]


def test_a_preload_whose_forks_hang_is_named(tmp_path):
    source = """
import threading
class Stuck:
    def __matmul__(self, other): threading.Event().wait()
def ones(shape): return Stuck()
"""
    frame = hello(tmp_path, ["numpy"], [("numpy", source)], probe_seconds=0.2)
    assert frame["type"] == "zygote_failed" and "numpy" in frame["message"] and "hung" in frame["message"]


def test_a_preload_whose_forks_fail_is_named(tmp_path):
    frame = hello(tmp_path, ["numpy"], [("numpy", "")])
    assert frame["type"] == "zygote_failed" and "numpy" in frame["message"]


@pytest.mark.parametrize("refuse", ["new", "enter"])
def test_refused_namespaces_are_found_at_the_start(tmp_path, refuse):
    frame = hello(tmp_path, [], refuse=refuse)
    assert frame["type"] == "zygote_failed" and "not today" in frame["message"]


def test_a_configuration_that_cannot_be_read(tmp_path):
    slot = Slot(tmp_path, preload=(), environment=7)
    assert slot.hello["type"] == "zygote_failed"
    slot.close()


def test_what_preloads_changed_does_not_reach_programs(tmp_path):
    (tmp_path / "meddler.py").write_text(
        "import os, signal, sys\nos.environ['MEDDLED'] = '1'\nos.umask(0)\nos.chdir('/')\nsys.argv.append('x')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nleft_open = open('/dev/zero')\n"
    )
    slot = Slot(tmp_path / "slot", preload=["meddler"], command=command(tmp_path), environment={"FROM_OPERATOR": "yes"})
    source = """
import os, signal, sys
def f():
    return [os.environ.get("MEDDLED"), os.environ["FROM_OPERATOR"], os.umask(0), len(sys.argv),
            int(signal.getsignal(signal.SIGTERM)),
            "meddler" in sys.modules, os.path.exists("/proc/self/fd/3")]
"""
    values = slot.run(program(source)).returned["result"].wire["value"]
    assert [each.get("value") for each in values] == [None, "yes", 0o022, 1, 0, True, False]
    slot.close()


def test_managed_variables_cannot_be_overridden(tmp_path):
    slot = Slot(tmp_path, preload=(), environment={"KCORAL_DIR": "/x", "CUDA_VISIBLE_DEVICES": "7", "HOME": "/root"})
    source = "import os\ndef f():\n    return [os.environ[n] for n in ('KCORAL_DIR', 'CUDA_VISIBLE_DEVICES', 'HOME')]\n"
    values = slot.run(program(source)).returned["result"].wire["value"]
    assert [each["value"] for each in values] == [str(tmp_path) + "/work", "", str(tmp_path) + "/private/home"]
    slot.close()


def test_each_end_is_reported_with_code_or_signal(slot):
    ours, out, err, pidfds, id = slot.prepare()
    assert receive_frame(ours)[0] == {"type": "ready"}
    ours.close()  # a runtime without an executor has no purpose
    assert receive_frame(slot.control)[0] == {"type": "exited", "id": id, "process": "runtime", "code": 0}
    signal.pidfd_send_signal(pidfds[0], signal.SIGKILL)
    assert receive_frame(slot.control)[0] == {"type": "exited", "id": id, "process": "init", "signal": 9}
    for fd in (out, err, *pidfds):
        os.close(fd)


def test_several_runtimes_stand_by(slot):
    prepared = []
    for _ in range(3):
        prepared.append(slot.prepare())
        # One after another: without namespaces they share their places.
        assert receive_frame(prepared[-1][0])[0] == {"type": "ready"}
    for ours, out, err, pidfds, _ in reversed(prepared):
        ours.close()
        signal.pidfd_send_signal(pidfds[0], signal.SIGKILL)
        for fd in (out, err, *pidfds):
            os.close(fd)
    ends = [receive_frame(slot.control)[0] for _ in range(6)]
    assert sorted((end["id"], end["process"]) for end in ends) == sorted(
        (p[4], name) for p in prepared for name in ("init", "runtime")
    )
    assert slot.run(program("def f(): return 1\n")).completed


def test_a_refused_namespace_later_is_reported(tmp_path):
    slot = Slot(tmp_path, preload=(), refuse="later")
    with pytest.raises(Died, match="not today"):
        slot.prepare()
    slot.close()


def test_a_malformed_prepare_is_answered(slot):
    ours, theirs = os.pipe()
    for fds in ([theirs], [theirs] * 4):
        send_frame(slot.control, {"type": "prepare", "id": 77}, fds)
        frame, _ = receive_frame(slot.control)
        assert (frame["type"], frame["id"]) == ("prepare_failed", 77)
        assert "%d descriptors" % len(fds) in frame["message"]
    os.close(ours)
    os.close(theirs)
    assert slot.run(program("def f(): return 1\n")).completed


def test_a_prepare_that_fails_halfway_leaves_nothing(tmp_path):
    slot = Slot(tmp_path, preload=(), refuse="pidfd")
    assert slot.hello["type"] == "zygote_ready"
    before = len(os.listdir("/proc/%d/fd" % slot.process.pid))
    with pytest.raises(Died, match="Too many open files"):
        slot.prepare()
    # With its next program's end it has come to the end of this one's start.
    assert slot.run(program("def f(): return 1\n")).completed
    assert len(os.listdir("/proc/%d/fd" % slot.process.pid)) == before
    with open("/proc/%d/task/%d/children" % (slot.process.pid, slot.process.pid)) as children:
        assert children.read() == ""
    slot.close()


def test_the_zygote_ends_with_its_control_socket(tmp_path):
    slot = Slot(tmp_path, preload=())
    slot.control.close()
    assert slot.process.wait(DEADLINE_SECONDS) == 0


def test_no_descriptor_stays_behind(slot):
    def count():
        return len(os.listdir("/proc/%d/fd" % slot.process.pid))

    slot.run(program("def f(): return b'x'\n"))
    before = count()
    for _ in range(5):
        slot.run(program("def f(): return b'x'\n"))
    assert count() == before
