"""A zygote and runtime whose every word a test decides.

The runtime executes the source of the program's first instruction as it is, with these at hand:
    send(type, fds=(), **fields)   a frame; send_raw(bytes, fds)   a packet
    memfd(text, sealed=True)       a descriptor
    started(i), returned(i, value_text, data=None), failed(i, kind, message), completed()
    channel, blobs (digest -> descriptor), receive()
KCORAL_FAKE_ZYGOTE (in the slot's environment) is executed by the zygote before it is ready, in the same way.
"""

import array
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys

NO_FDS = ()
channel = socket.socket(fileno=3)


def send_raw(packet, fds=NO_FDS):
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    channel.sendmsg([packet], ancillary)


def send(type, fds=NO_FDS, **fields):
    send_raw(json.dumps({"type": type, **fields}).encode(), fds)


def receive():
    packet, ancillary, _, _ = channel.recvmsg(1 << 17, 8192)
    fds = array.array("i")
    for _, _, data in ancillary:
        fds.frombytes(data)
    return (json.loads(packet) if packet else None), list(fds)


def memfd(text, sealed=True):
    fd = os.memfd_create("fake", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(fd, text.encode() if isinstance(text, str) else text)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    return fd


def started(index):
    send("started", index=index)


def returned(index, value_text, data=None):
    fds = [memfd(value_text)] + ([] if data is None else [memfd(data)])
    send("returned", fds, index=index)
    for fd in fds:
        os.close(fd)


def failed(index, kind, message):
    send("failed", [memfd(json.dumps({"kind": kind, "message": message, "traceback": "T"}))], index=index)


def completed():
    send("completed")


class Limits(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "work_bytes", "tmp_bytes", "shm_bytes", "private_bytes", "file_size_bytes", "open_files", "processes",
            "cpu_seconds",
        )
    ]  # fmt: skip


class Sandbox:
    def __init__(self, config, seccomp_filter):
        self.library = ctypes.CDLL("/kcoral/libkcoral_sandbox.so")
        self.error = ctypes.create_string_buffer(512)
        self.own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.limits = Limits(**config["limits"])
        self.filter = seccomp_filter

    def call(self, function, *arguments):
        if function(*arguments, self.error, ctypes.c_size_t(512)) != 0:
            raise OSError(self.error.value.decode())

    def new_namespace(self):
        self.call(self.library.kcoral_new_pid_namespace, self.own)

    def own_namespace(self):
        self.call(self.library.kcoral_own_pid_namespace, self.own)

    def enter(self):
        size = ctypes.c_size_t(len(self.filter))
        self.call(self.library.kcoral_enter_program, ctypes.byref(self.limits), ctypes.c_char_p(self.filter), size)


def context_step(step):
    """What it does when it is to get ready for CUDA; a test may put its own in this place."""
    send({"initialise": "initialised", "make_context": "context_made"}[step])


def run_program():
    send("ready")
    frame, fds = receive()
    while frame["type"] != "program":
        context_step(frame["type"])
        frame, fds = receive()
    (program_fd,) = fds
    blobs = {}
    while len(blobs) < frame["blobs"]:
        blob_frame, fds = receive()
        blobs.update(zip(blob_frame["sha256"], fds))
    program = json.loads(os.pread(program_fd, 1 << 20, 0))
    globals()["blobs"] = blobs
    exec(program["instructions"][0]["source"], globals())


def become_runtime(sandbox, runtime_socket, out, err):
    global channel
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    os.dup2(out, 1)
    os.dup2(err, 2)
    channel.close()
    channel = socket.socket(fileno=runtime_socket)
    for fd in range(3, 64):
        if fd != runtime_socket:
            try:
                os.close(fd)
            except OSError:
                pass
    try:
        sandbox.enter()
    except OSError as error:
        send("setup_failed", message=str(error))
        os._exit(1)
    try:
        run_program()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def prepare(sandbox, frame, fds, children):
    sandbox.new_namespace()
    init = os.posix_spawn("/kcoral/init", ["/kcoral/init"], {})
    runtime = os.fork()
    if runtime == 0:
        become_runtime(sandbox, *fds)
    sandbox.own_namespace()
    children[init] = (frame["id"], "init")
    children[runtime] = (frame["id"], "runtime")
    pidfds = [os.pidfd_open(init), os.pidfd_open(runtime)]
    send("prepared", pidfds, id=frame["id"])
    for fd in [*pidfds, *fds]:
        os.close(fd)


report_ends = True
may_reap = lambda: True  # asked again and again until it says so; the first process of a namespace ends after the others


def reap(children):
    while children and may_reap():
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        run, process = children.pop(pid)
        how = {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"code": os.WEXITSTATUS(status)}
        if report_ends:
            send("exited", id=run, process=process, **how)


prepare_hook = None


def main():
    with open(4, "rb") as file:
        config = json.load(file)
    with open(5, "rb") as file:
        sandbox = Sandbox(config, file.read())
    script = os.environ.get("KCORAL_FAKE_ZYGOTE")
    if script:
        exec(script, globals())
    send("zygote_ready", versions={"python": sys.version.split()[0]})
    children = {}
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    child_ends = (ctypes.c_uint64 * 16)(1 << (signal.SIGCHLD - 1))
    ends = ctypes.CDLL(None).signalfd(-1, child_ends, os.O_CLOEXEC | os.O_NONBLOCK)
    while True:
        ready, _, _ = select.select([3, ends], [], [], 0.02 if children else None)
        if ends in ready:
            os.read(ends, 128)
        reap(children)
        if 3 in ready:
            frame, fds = receive()
            if frame is None:
                return
            if prepare_hook is not None and not prepare_hook(frame, fds):
                continue
            prepare(sandbox, frame, fds, children)


main()
