"""The executor's side of docs/frames.md, as far as tests of the Python side need it.

A Slot starts a zygote (with fake namespaces, or the real thing) and runs programs in it one after another. Every wait
has a deadline: a test that hangs fails instead.
"""

import array
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

RUNTIME_DIRECTORY = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../executor/runtime"))
DEADLINE_SECONDS = 30.0  # of one program; generous, for machines that are busy
SEALS_WANTED = 1 | 2 | 4 | 8


class Died(Exception):
    """The zygote or runtime closed its socket where a frame was due."""


def sealed(content):
    import fcntl

    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view.nbytes:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS_WANTED)
    return fd


def send_frame(sock, body, fds=()):
    sock.sendmsg(
        [json.dumps(body).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    )


def receive_frame(sock):
    text, ancillary, _, _ = sock.recvmsg(65536, socket.CMSG_SPACE(64 * 4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data)
    if not text:
        raise Died
    return json.loads(text), list(fds)


def read_sealed(fd):
    """The content of a memfd from a runtime, which must be sealed."""
    import fcntl

    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    assert seals & SEALS_WANTED == SEALS_WANTED, "not sealed: %x" % seals
    size = os.fstat(fd).st_size
    content = b""
    while len(content) < size:
        content += os.pread(fd, size - len(content), len(content))
    os.close(fd)
    return content


class Outcome:
    """What the executor learned of one program."""

    def __init__(self):
        self.frames = []
        self.returned = {}  # key: decoded value document (Value)
        self.error = None
        self.completed = False
        self.stdout = b""
        self.stderr = b""
        self.died = False
        self.exit = None
        self.seconds = 0.0

    @property
    def types(self):
        return [frame["type"] for frame in self.frames]


class Value:
    """A value document: `wire` as the runtime wrote it, `parts` the bytes."""

    def __init__(self, text, data):
        self.text = text
        document = json.loads(text)
        assert set(document) == {"value", "parts"}
        self.wire = document["value"]
        self.parts = [data[offset : offset + length] for offset, length in document["parts"]]
        assert sum(map(len, self.parts)) == len(data)


class Slot:
    def __init__(
        self, root, preload=("numpy",), environment=None, command=None, python=None, seccomp_filter=b"", **config
    ):
        self.root = str(root)
        self._id = 0
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(120)
        self.keep = config.get("reuse", False)  # what programs are told
        given = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "TZ": "UTC"}
        given = (
            {**given, **environment} if isinstance(environment, dict) else given if environment is None else environment
        )
        config = {
            "preload": list(preload), "limits": {}, "environment": given, "seccomp_filter_fd": 5, "reuse": False,
            "visible_devices": "", "memory_bytes_max": 0, **config,
        }  # fmt: skip
        # By number, as the zygote will find them; far away first, so that none overwrites another.
        inherited = [theirs.detach(), sealed(json.dumps(config).encode()), sealed(seccomp_filter)]
        command = command or [
            python or sys.executable,
            "-B",
            "-s",
            os.path.join(os.path.dirname(__file__), "fake_zygote.py"),
            RUNTIME_DIRECTORY,
            self.root,
        ]
        self.log = tempfile.TemporaryFile()

        def place_descriptors():
            for number, fd in enumerate(inherited):
                os.dup2(fd, 190 + number)
            for number in range(3):
                os.dup2(190 + number, 3 + number)
            os.closerange(6, 200)

        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            close_fds=False,
            preexec_fn=place_descriptors,
            env={"PATH": os.environ["PATH"], "SECRET_OF_THE_SERVER": "1"},
        )
        for fd in inherited:
            os.close(fd)
        self.hello, _ = receive_frame(self.control)

    def close(self):
        self.control.close()
        self.process.wait(20)

    def prepare(self):
        """A runtime that stands by: (socket, stdout, stderr, pidfds, id)."""
        self._id += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(DEADLINE_SECONDS)
        out, out_write = os.pipe()
        err, err_write = os.pipe()
        send_frame(
            self.control,
            {"type": "prepare", "id": self._id},
            [theirs.fileno(), out_write, err_write],
        )
        theirs.close()
        os.close(out_write)
        os.close(err_write)
        frame, fds = receive_frame(self.control)
        if frame["type"] != "prepared":
            os.close(out)
            os.close(err)
            ours.close()
            raise Died(frame["message"])
        assert frame["id"] == self._id and len(fds) == 2
        return ours, out, err, fds, self._id

    def run(self, instructions, blobs=(), devices=(), killed_after=None, needs_lease=True):
        """Runs a program to its end. `devices`: what each lease is granted. `killed_after(outcome)`: the deadline strikes once this is true."""
        ours, out, err, pidfds, id = self.prepare()
        self._devices = list(devices)
        outcome = Outcome()
        started = time.monotonic()
        try:
            frame, _ = receive_frame(ours)
            assert frame["type"] == "ready", frame
            self._send_program(ours, instructions, blobs, needs_lease)
            self._follow(ours, out, err, instructions, outcome, killed_after)
        finally:
            outcome.seconds = time.monotonic() - started
            for pidfd in (pidfds[1], pidfds[0]):
                try:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                os.close(pidfd)
            ours.close()
            for _ in range(2):
                frame, _ = receive_frame(self.control)
                assert frame["type"] == "exited" and frame["id"] == id
                if frame["process"] == "runtime":
                    outcome.exit = frame
            outcome.stdout += _drain(out)
            outcome.stderr += _drain(err)
        return outcome

    def _send_program(self, ours, instructions, blobs, needs_lease):
        blobs = {hashlib.sha256(content).hexdigest(): content for content in blobs}
        fd = sealed(json.dumps({"instructions": instructions}).encode())
        fields = {"blobs": len(blobs), "needs_lease": needs_lease, "keep": self.keep}
        send_frame(ours, {"type": "program", **fields}, [fd])
        os.close(fd)
        names = list(blobs)
        for at in range(0, len(names), 64):
            some = names[at : at + 64]
            fds = [sealed(blobs[name]) for name in some]
            send_frame(ours, {"type": "blobs", "sha256": some}, fds)
            for fd in fds:
                os.close(fd)

    def _follow(self, ours, out, err, instructions, outcome, killed_after):
        deadline = time.monotonic() + DEADLINE_SECONDS
        watched = {ours.fileno(), out, err}
        while not (outcome.completed or outcome.error or outcome.died):
            ready, _, _ = select.select(list(watched), [], [], max(0, deadline - time.monotonic()))
            assert ready, "no answer within the deadline; so far %s, %r" % (outcome.types, outcome.stderr)
            for fd in (out, err):
                if fd in ready:
                    content = os.read(fd, 65536)
                    if not content:
                        watched.discard(fd)
                    if fd == out:
                        outcome.stdout += content
                    else:
                        outcome.stderr += content
            if ours.fileno() in ready:
                try:
                    frame, fds = receive_frame(ours)
                except (Died, ConnectionError):
                    outcome.died = True
                    break
                self._note(ours, frame, fds, instructions, outcome)
            if killed_after is not None and killed_after(outcome):
                return

    def _note(self, ours, frame, fds, instructions, outcome):
        outcome.frames.append(frame)
        if frame["type"] == "lease_request":
            send_frame(ours, {"type": "lease_granted", "devices": self._devices})
        elif frame["type"] == "returned":
            key = instructions[frame["index"]]["key"]
            outcome.returned[key] = Value(read_sealed(fds[0]).decode(), read_sealed(fds[1]) if len(fds) > 1 else b"")
        elif frame["type"] == "failed":
            outcome.error = json.loads(read_sealed(fds[0]).decode())
            outcome.error["index"] = frame["index"]
            expected = {"kind", "message", "traceback", "index"}
            if outcome.error["kind"] == "gpu_access":
                expected |= {"cuda_call", "location"}
            assert set(outcome.error) == expected
        elif frame["type"] == "completed":
            outcome.completed = True


def _drain(pipe):
    """What is left in a pipe whose writers are killed, or are children that outlive a runtime without namespaces."""
    content = b""
    os.set_blocking(pipe, False)
    try:
        while chunk := os.read(pipe, 65536):
            content += chunk
    except BlockingIOError:
        pass
    os.close(pipe)
    return content


def module(source, id="m", **more):
    return {"op": "upload", "id": id, "kind": "module", "source": source, **more}


def function(name, id=None, module="m", **more):
    return {"op": "get_function", "id": id or name, "module": {"$ref": module}, "name": name, **more}


def run(fn, *args, id="result"):
    return {"op": "run", "id": id, "fn": {"$ref": fn}, "args": list(args)}


def returns(value="result", key="result"):
    return {"op": "return", "key": key, "value": {"$ref": value}}


def program(source, *args, name="f"):
    """Uploads `source`, calls its function and returns the result."""
    return [module(source), function(name), run(name, *args), returns()]


def digest(content):
    return hashlib.sha256(content).hexdigest()
