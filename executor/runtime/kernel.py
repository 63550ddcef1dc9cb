"""System calls that the runtime must be able to make whatever Python it runs on and whatever the program did to it.

Theory of operation. Two reasons lead to ctypes instead of `os`, `fcntl` and `socket`: builds of Python for old glibc
versions lack `os.memfd_create` and `os.pidfd_open`; and an audit hook of the program (`sys.addaudithook`) is called
by `socket.sendmsg` or `fcntl.fcntl` and could refuse them, while plain foreign calls raise no audit event. The
functions are bound when this module is loaded.

Every function raises OSError as its namesake in `os` does, and goes on after EINTR.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    addressof,
    byref,
    c_char,
    c_char_p,
    c_int,
    c_long,
    c_size_t,
    c_ssize_t,
    c_uint,
    c_uint32,
    c_ulong,
    c_void_p,
    get_errno,
)
from errno import EINTR, ETOOMANYREFS
from os import O_CLOEXEC, O_RDONLY, strerror, sysconf
from struct import Struct, calcsize
from typing import Any, Optional, Sequence

_MFD_CLOEXEC = 1
_MFD_ALLOW_SEALING = 2
_F_ADD_SEALS = 1033
_SEALS = 1 | 2 | 4 | 8  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE
_F_DUPFD_CLOEXEC = 1030
_F_GETFL, _F_SETFL = 3, 4
_SS_DISABLE = 2
_PR_SET_CHILD_SUBREAPER = 36
_DEFAULT_FLOATING_POINT = c_void_p(-1)  # FE_DFL_ENV
_SYS_PIDFD_OPEN = 434  # these two numbers are the same on every architecture
_SYS_CLOSE_RANGE = 436
_FD_MAX = 2**32 - 1
_PROT_READ, _PROT_READ_WRITE = 1, 1 | 2
_MAP_SHARED = 1
_MAP_PRIVATE_NORESERVE = 2 | 0x4000
_MADV_DONTFORK, _MADV_POPULATE_WRITE = 10, 23
_MAP_FAILED = 2 ** (8 * ctypes.sizeof(c_void_p)) - 1
_MSG_NOSIGNAL = 0x4000
_MSG_CMSG_CLOEXEC = 0x40000000
_MSG_TRUNC = 0x20
_MSG_CTRUNC = 0x8
_SOL_SOCKET = 1
_SCM_RIGHTS = 1
_IOLBF = 1
_IN_FLIGHT_PAUSE_MS = 10
_SHM_INFO, _SEM_INFO, _MSG_INFO = 14, 19, 12  # see shmctl(2), semctl(2), msgctl(2)
_IPC_FACTS = 32  # more than any of their structures holds
_POINTER_BYTES = ctypes.sizeof(c_void_p)
_String = c_char_p

PAGE_BYTES = sysconf("SC_PAGE_SIZE")
PACKET_BYTES_MAX = 64 * 1024  # schema/limits.h, kFrameBytesMax
PACKET_FDS_MAX = 64  # schema/limits.h, kFrameFdsMax


class _Iovec(ctypes.Structure):
    _fields_ = [("base", c_void_p), ("length", c_size_t)]


class _Message(ctypes.Structure):
    _fields_ = [
        ("name", c_void_p),
        ("name_length", c_uint32),
        ("iov", c_void_p),
        ("iov_length", c_size_t),
        ("control", c_void_p),
        ("control_length", c_size_t),
        ("flags", c_int),
    ]


class _SignalStack(ctypes.Structure):
    _fields_ = [("base", c_void_p), ("flags", c_int), ("size", c_size_t)]


_CONTROL_HEADER = Struct("@Nii")  # length, level, type
_DESCRIPTOR = Struct("@i")
_CONTROL_BYTES_MAX = _CONTROL_HEADER.size + PACKET_FDS_MAX * calcsize("@i")

# Made once: a fresh one would be cleared, and each of its pages would be a page fault in a fork.
_packet = (c_char * PACKET_BYTES_MAX)()
_control = (c_char * (_CONTROL_BYTES_MAX + _CONTROL_HEADER.size))()

_libc = ctypes.CDLL(None, use_errno=True)


def _bind(name: str, result: Any, *arguments: Any) -> Any:
    function = _libc[name]  # a fresh object each time: one function may be bound with several signatures
    function.restype = result
    function.argtypes = arguments
    return function


_memfd_create = _bind("memfd_create", c_int, c_char_p, c_uint)
_fcntl = _bind("fcntl", c_int, c_int, c_int, c_int)
_pidfd_open = _bind("syscall", c_long, c_long, c_int, c_uint)
_close_range = _bind("syscall", c_long, c_long, c_uint, c_uint, c_uint)
_mmap = _bind("mmap", c_void_p, c_void_p, c_size_t, c_int, c_int, c_int, c_long)
_munmap = _bind("munmap", c_int, c_void_p, c_size_t)
_madvise = _bind("madvise", c_int, c_void_p, c_size_t, c_int)
_ftruncate = _bind("ftruncate", c_int, c_int, c_long)
_open = _bind("open", c_int, c_char_p, c_int)
_close = _bind("close", c_int, c_int)
_sendmsg = _bind("sendmsg", c_ssize_t, c_int, c_void_p, c_int)
_recvmsg = _bind("recvmsg", c_ssize_t, c_int, c_void_p, c_int)
_poll = _bind("poll", c_int, c_void_p, c_ulong, c_int)
_fflush = _bind("fflush", c_int, c_void_p)
_setvbuf = _bind("setvbuf", c_int, c_void_p, c_char_p, c_int, c_size_t)
_clearenv = _bind("clearenv", c_int)
_shmctl = _bind("shmctl", c_int, c_int, c_int, c_void_p)
_semctl = _bind("semctl", c_int, c_int, c_int, c_int, c_void_p)
_msgctl = _bind("msgctl", c_int, c_int, c_int, c_void_p)
_sigaltstack = _bind("sigaltstack", c_int, c_void_p, c_void_p)
_prctl = _bind("prctl", c_int, c_int, c_ulong, c_ulong, c_ulong, c_ulong)
_fesetenv = ctypes.CDLL("libm.so.6").fesetenv
_fesetenv.argtypes = [c_void_p]
_environ = c_void_p.in_dll(_libc, "environ")
_c_stdout = c_void_p.in_dll(_libc, "stdout")
_Bytes = c_char  # captured: `c_char * n` makes the buffer types below


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = get_errno()
        raise OSError(number, what + ": " + strerror(number))
    return result


def memfd_create(name: bytes) -> int:
    """A new memfd that can be sealed."""
    return _checked(_memfd_create(name, _MFD_CLOEXEC | _MFD_ALLOW_SEALING), "memfd_create")


def seal(fd: int) -> None:
    """Makes a memfd's content final for everybody who holds a descriptor of it."""
    _checked(_fcntl(fd, _F_ADD_SEALS, _SEALS), "seal a memfd")


def duplicate_from(fd: int, lowest: int) -> int:
    """A close-on-exec duplicate numbered `lowest` or higher."""
    return _checked(_fcntl(fd, _F_DUPFD_CLOEXEC, lowest), "duplicate a descriptor")


def pidfd_open(pid: int) -> int:
    """A descriptor of a process; close-on-exec, readable once the process has ended."""
    return _checked(_pidfd_open(_SYS_PIDFD_OPEN, pid, 0), "pidfd_open")


def close_all_but(kept: int) -> None:
    """Closes every descriptor from 3 up, except one."""
    for first, last in ((3, kept - 1), (kept + 1, _FD_MAX)):
        if first <= last:
            _checked(_close_range(_SYS_CLOSE_RANGE, first, last, 0), "close_range")


def status_flags(fd: int) -> int:
    """Of the open file: O_NONBLOCK, O_APPEND and the like."""
    return _checked(_fcntl(fd, _F_GETFL, 0), "ask for the flags of a descriptor")


def set_status_flags(fd: int, flags: int) -> None:
    _checked(_fcntl(fd, _F_SETFL, flags), "set the flags of a descriptor")


def reset_thread() -> None:
    """What C code of a program can set in the calling thread: rounding, a stack for signals; and a parent's duty."""
    _fesetenv(_DEFAULT_FLOATING_POINT)
    stack = _SignalStack(None, _SS_DISABLE, 0)
    _sigaltstack(byref(stack), None)
    _prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def map_private(fd: int, size_bytes: int) -> int:
    """The address of a private, writable mapping of a file: pages are shared until somebody writes to them."""
    return _map(fd, 0, size_bytes, _PROT_READ_WRITE, _MAP_PRIVATE_NORESERVE)


def map_read_only(fd: int, size_bytes: int) -> int:
    """The address of a shared mapping of a memfd that may be sealed: pinning its pages copies none of them."""
    # Before Linux 6.7 a descriptor that could write cannot be mapped once writing is sealed; one for reading only can.
    reading = _open(b"/proc/self/fd/%d" % fd, O_RDONLY | O_CLOEXEC)
    try:
        return _map(fd if reading < 0 else reading, 0, size_bytes, _PROT_READ, _MAP_SHARED)
    finally:
        if reading >= 0:
            _close(reading)


def map_for_writing(fd: int, offset: int, size_bytes: int) -> int:
    """The address of a shared mapping, with all its pages there since Linux 5.14. A fork inherits it only if it comes
    in the very moment that it is made; a memfd cannot be sealed against writing while anybody has it mapped so.

    Requires: `offset` is a multiple of a page."""
    address = _map(fd, offset, size_bytes, _PROT_READ_WRITE, _MAP_SHARED)
    _madvise(address, size_bytes, _MADV_DONTFORK)
    _madvise(address, size_bytes, _MADV_POPULATE_WRITE)
    return address


def _map(fd: int, offset: int, size_bytes: int, protection: int, flags: int) -> int:
    address = _mmap(None, size_bytes, protection, flags, fd, offset)
    if address is None or address == _MAP_FAILED:
        _checked(-1, "map content")
    return address


def resize(fd: int, size_bytes: int) -> None:
    _checked(_ftruncate(fd, size_bytes), "resize a memfd")


def unmap(address: int, size_bytes: int) -> None:
    _munmap(address, size_bytes)


def memory_at(address: int, size_bytes: int) -> Any:
    """A writable buffer object over memory that somebody else keeps alive."""
    return (_Bytes * size_bytes).from_address(address)


def buffer_c_output_by_lines() -> None:
    """What C code prints survives the end of the process line by line, as Python's own output does."""
    _setvbuf(_c_stdout, None, _IOLBF, 0)


def environment_strings() -> list[bytes]:
    """The environment as C code has it: NAME=VALUE, in its order."""
    strings = []
    address = _environ.value
    while address and (string := _String.from_address(address).value) is not None:
        strings.append(string)
        address += _POINTER_BYTES
    return strings


def clear_environment() -> None:
    _clearenv()


def ipc_object_count() -> int:
    """System V segments, semaphore sets and message queues of this ipc namespace; 0 on a kernel without them."""
    count = 0
    for function, arguments, place in (
        (_shmctl, (0, _SHM_INFO), 0),  # used_ids of struct shm_info
        (_semctl, (0, 0, _SEM_INFO), 7),  # semusz of struct seminfo
        (_msgctl, (0, _MSG_INFO), 0),  # msgpool of struct msginfo
    ):
        facts = (c_int * _IPC_FACTS)()
        if function(*arguments, addressof(facts)) >= 0:
            count += facts[place]
    return count


def flush_c_output() -> None:
    _fflush(_c_stdout)


def send_packet(fd: int, packet: bytes, fds: Sequence[int] = ()) -> None:
    """One packet on a SOCK_SEQPACKET socket, with descriptors. The descriptors stay the caller's."""
    text = (_Bytes * len(packet)).from_buffer_copy(packet)
    iov = _Iovec(addressof(text), len(packet))
    message = _Message(None, 0, addressof(iov), 1, None, 0, 0)
    if fds:
        control_bytes = b"".join([_DESCRIPTOR.pack(each) for each in fds])
        control_bytes = (
            _CONTROL_HEADER.pack(_CONTROL_HEADER.size + len(control_bytes), _SOL_SOCKET, _SCM_RIGHTS) + control_bytes
        )
        padded = control_bytes + bytes(-len(control_bytes) % _CONTROL_HEADER.size)
        control = (_Bytes * len(padded)).from_buffer_copy(padded)
        message.control = addressof(control)
        message.control_length = len(padded)
    while _sendmsg(fd, byref(message), _MSG_NOSIGNAL) < 0:
        number = get_errno()
        if number == ETOOMANYREFS:
            # The user has too many descriptors in flight; nothing says when there are fewer.
            _poll(None, 0, _IN_FLIGHT_PAUSE_MS)
        elif number != EINTR:
            _checked(-1, "send a frame")


def receive_packet(fd: int) -> Optional[tuple[bytes, list[int]]]:
    """Waits for the next packet; None once the other side has closed. Not thread-safe."""
    iov = _Iovec(addressof(_packet), PACKET_BYTES_MAX)
    message = _Message(None, 0, addressof(iov), 1, addressof(_control), _CONTROL_BYTES_MAX, 0)
    while True:
        received = _recvmsg(fd, byref(message), _MSG_CMSG_CLOEXEC)
        if received >= 0:
            break
        if get_errno() != EINTR:
            _checked(-1, "receive a frame")
    if received == 0:
        return None
    fds = _descriptors_in(bytes(_control)[: message.control_length])
    if message.flags & (_MSG_TRUNC | _MSG_CTRUNC):
        raise OSError(90, "a frame was cut: it is too long, or there are too few free descriptors")
    return bytes(memoryview(_packet)[:received]), fds


def _descriptors_in(control: bytes) -> list[int]:
    if len(control) < _CONTROL_HEADER.size:
        return []
    length, level, kind = _CONTROL_HEADER.unpack_from(control)
    if level != _SOL_SOCKET or kind != _SCM_RIGHTS:
        return []
    return [_DESCRIPTOR.unpack_from(control, at)[0] for at in range(_CONTROL_HEADER.size, length, _DESCRIPTOR.size)]
