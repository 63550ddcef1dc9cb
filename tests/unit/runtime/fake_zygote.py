"""A zygote without namespaces: the real one in everything else, for tests outside a sandbox.

Usage: fake_zygote.py RUNTIME_DIRECTORY ROOT, with the control socket as descriptor 3 and the configuration as 4. A
program's places lie under ROOT and are made afresh for each.
"""

import errno
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys


class FakeNamespaces:
    """Plain forks. `refuse`: the step at which the kernel is to say no: "new", "enter",
    "later" (a new namespace after the first), or "pidfd" (of the runtime, after the first)."""

    def __init__(self, refused_type, places, refuse):
        self._refused_type = refused_type
        self._places = places
        self._refuse = refuse
        self._made = 0

    def new_pid_namespace(self):
        self._made += 1
        if self._refuse == "new" or self._refuse == "later" and self._made > 1:
            raise self._refused_type("make a pid namespace: not today")

    def own_pid_namespace(self):
        pass

    def start_init(self):
        child = os.fork()
        if child == 0:
            os.closerange(0, 100)
            while True:
                signal.pause()
        return child

    def enter_program(self):
        if self._refuse == "enter":
            raise self._refused_type("mount tmpfs on /work: not today")
        for path in (self._places.work, os.path.dirname(self._places.home)):
            subprocess.run(["/bin/rm", "-rf", path])  # however deep it is
            os.makedirs(path, 0o700)
        os.chdir(self._places.work)


def refuse_pidfds(serving, given):
    """Two are for the rehearsal, one for the init of the first program."""
    real, asked = serving["pidfd_open"], []

    def pidfd_open(pid):
        asked.append(pid)
        if len(asked) == given + 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(pid)

    serving["pidfd_open"] = pidfd_open


def alone_in_its_namespaces(first_state, root, config):
    """A runtime that serves several programs looks at its pid namespace and empties its /dev/shm, which are the host's
    here. `last_pid`: "changes" where programs start others."""
    os.makedirs(root + "/shm", exist_ok=True)
    names = first_state.__init__.__globals__
    assert names["_SHARED_MEMORY"] == "/dev/shm"
    names["_SHARED_MEMORY"] = root + "/shm"
    pids = itertools.count() if config.get("last_pid") == "changes" else itertools.repeat(1)
    names["_last_pid"] = lambda: next(pids)


def main():
    directory, root = sys.argv[1:3]
    spec = importlib.util.spec_from_file_location("zygote", os.path.join(directory, "zygote.py"))
    zygote = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(zygote)
    sys.path[0] = os.path.join(directory, "importable")
    startup = zygote.start(directory)
    names = vars(startup)
    config = json.loads(os.pread(4, 1 << 20, 0))
    places = names["Places"](root + "/work", root + "/private", root + "/tmp", directory + "/importable")
    refused_type = names["SandboxNamespaces"].__init__.__globals__["Refused"]
    namespaces = FakeNamespaces(refused_type, places, config.get("refuse"))
    if config.get("refuse") == "pidfd":
        refuse_pidfds(names["Zygote"].__init__.__globals__, given=3)
    if config["reuse"]:
        alone_in_its_namespaces(names["Zygote"].__init__.__globals__["run"].__globals__["FirstState"], root, config)
    prove_forks = names["prove_forks"]
    names["prove_forks"] = lambda preload: prove_forks(preload, config.get("probe_seconds", 5))
    os.makedirs(places.temporary, exist_ok=True)
    startup.become_zygote(names["Channel"](3), config, namespaces, places)


main()
