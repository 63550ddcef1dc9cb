"""From the descriptors that the executor passed to a zygote that serves, or to a `zygote_failed` that says why not.

Theory of operation. The executor starts the zygote with its control socket as descriptor 3, the configuration (JSON
in a sealed memfd: `preload`, `limits`, `environment`, `visible_devices`, `reuse`, `memory_bytes_max`, `seccomp_filter_fd`) as 4 and the
seccomp filter of programs as 5. Descriptors 0 to 2 are kept taken by something harmless, since forks put a program's
own in their place.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn

from environment import program_environment, settle_zygote
from frames import Channel, end_process
from jsontext import parse
from memory import read_all
from namespaces import Namespaces, Places, SandboxNamespaces
from preload import PreloadFailed, import_all, prove_forks, versions
from serving import Zygote

_CONTROL_FD, _CONFIG_FD = 3, 4
_REFUSED = 1
_MESSAGE_CHARACTERS_MAX = 8192  # a frame is one packet


def main(directory: str) -> NoReturn:
    """The zygote of a slot. `directory`: where our own files lie."""
    for fd in (_CONTROL_FD, _CONFIG_FD):
        os.set_inheritable(fd, False)
    channel = Channel(_CONTROL_FD)
    try:
        config = parse(read_all(_CONFIG_FD).decode("utf-8"))
        seccomp_filter = read_all(config["seccomp_filter_fd"])
        root = os.path.dirname(directory)
        namespaces = SandboxNamespaces(root + "/libkcoral_sandbox.so", root + "/init", config["limits"], seccomp_filter)
    except BaseException as error:
        _give_up(channel, "the zygote cannot start: %s: %s" % (type(error).__name__, error))
    places = Places("/work", "/run/kcoral", "/tmp", directory + "/importable")
    become_zygote(channel, config, namespaces, places)


def become_zygote(channel: Channel, config: dict[str, Any], namespaces: Namespaces, places: Places) -> NoReturn:
    """Prepares this process and serves until the channel closes."""
    try:
        _empty_input()
        environment = program_environment(config["environment"], places, config["visible_devices"])
        os.environ.update(environment)  # preloads read it, too
        import_all(config["preload"])
        prove_forks(config["preload"])
        found = versions()
        streams = settle_zygote(environment, places)
        zygote = Zygote(channel, namespaces, places, streams, config)
        zygote.rehearse()
    except PreloadFailed as failure:
        _give_up(channel, str(failure))
    except BaseException as error:
        _give_up(channel, "the zygote cannot start: %s: %s" % (type(error).__name__, error))
    channel.send("zygote_ready", {"versions": found})
    zygote.serve()


def _empty_input() -> None:
    empty = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(empty, fd)
    os.dup2(empty, 0)
    if empty > 2:
        os.close(empty)


def _give_up(channel: Channel, message: str) -> NoReturn:
    channel.send("zygote_failed", {"message": message[:_MESSAGE_CHARACTERS_MAX]})
    end_process(_REFUSED)
