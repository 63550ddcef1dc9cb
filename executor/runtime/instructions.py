"""Runs the instructions of one program (contract section 3) and says how each went (docs/frames.md).

Theory of operation. The program was checked when it was admitted: every field is there and of its type, every
reference leads to an earlier instruction. An instruction makes a handle or fails the program. Code of the program is
only ever called through the Boundary. After each instruction the program's output is flushed before the executor
hears of the next, so that output and outcome never disagree.

A failure is an InstructionFailed with one of the contract's kinds. Anything else that reaches `run_program` is our
own failure, or the program's attack on us; either way it becomes an answer.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from arrays import ArrayCodec
from boundary import Boundary
from cuda import CudaError, Driver
from errors import InstructionFailed, ending_message_of, error_fields, message_of, name_of
from files import BadPath, WorkingDirectory, normalise, reason_of
from frames import Channel
from gpu_arrays import GpuArrays
from jsontext import quote, to_text
from kcoral.builtins import CudaFunction
from lease import Lease
from libraries import Libraries
from memory import Blob, sealed_copy
from modules import PythonModules, call_failed
from namespaces import Places
from timing import Violation, guard
from values import Unencodable, ValueDocument, ValueEncoder


_CONTAINERS = (list, tuple, dict)


class Handle:
    """What an instruction made."""

    __slots__ = ("value", "kind", "cpu_only")

    def __init__(self, value: Any, kind: str, cpu_only: bool = False) -> None:
        self.value = value
        self.kind = kind  # "python", "cuda", "library": modules; "function"; "value"
        self.cpu_only = cpu_only


class Execution:
    """One program on its way."""

    def __init__(
        self,
        channel: Channel,
        boundary: Boundary,
        places: Places,
        instructions: list[dict[str, Any]],
        blobs: dict[str, Blob],
        needs_lease: bool,
        may_pass_lease_on: Callable[[], bool],
    ) -> None:
        """`may_pass_lease_on`: asked when the program's work on its devices has ended, whether others may have them from
        then on. Requires: `blobs` holds every blob of the program, each knowing its number of uses."""
        self._channel = channel
        self._boundary = boundary
        self._instructions = instructions
        self._blobs = blobs
        self._may_pass_lease_on = may_pass_lease_on
        self.lease = Lease(channel, needs_lease)
        # Where there is no GPU there is nothing to guard.
        self._guard = guard if needs_lease else None
        self._own_directories = (places.modules, places.work)
        self._directory = WorkingDirectory(places.work)
        self._modules = PythonModules(places.modules, boundary)
        self._libraries = Libraries(places.libraries, boundary)
        self._handles: dict[str, Handle] = {}
        self.index = 0  # of the instruction that runs, or was the last
        self.is_spent = False  # it ended in a way that no other program should follow in this process
        # Now: loading a library needs an interpreter that no program has damaged.
        self._driver = Driver.load() if needs_lease else None
        gpu = GpuArrays(self._driver) if needs_lease else None
        self._arrays = ArrayCodec(lambda: self.lease.acquire(self.index), gpu)

    def run_program(self) -> None:
        """Reports each instruction as it starts, then `completed` or the failure that ended the program."""
        for self.index, instruction in enumerate(self._instructions):
            self._channel.send_text(b'{"type":"started","index":%d}' % self.index)
            try:
                self._perform(instruction)
                self._boundary.flush()
            except BaseException as raised:
                self._fail(raised)
                return
        self._channel.send_text(b'{"type":"completed"}')

    def give_device_back(self) -> None:
        """After the answer: waits for what the program has started on its devices, and gives the lease back where
        others may have them from then on.

        Raises InstructionFailed if that work failed: the devices cannot be used in this process any more."""
        if self._driver is None or not self.lease.held:
            return
        self._finish_gpu_work()
        if self._may_pass_lease_on():
            self.lease.release(self.index)

    def _give_device_back_early(self) -> None:
        """Before the answer, where it can be done without a wait. Requires: the program's work on its devices has
        ended, and none of its code ran since."""
        is_last = self.index == len(self._instructions) - 1
        # Flushing other streams would run its code once more.
        if is_last and self.lease.held and self._boundary.flush_if_unchanged() and self._may_pass_lease_on():
            self.lease.release(self.index)

    def _finish_gpu_work(self) -> None:
        if self._driver is None:
            return
        try:
            self._driver.synchronise()
        except CudaError as error:
            raise InstructionFailed("runtime", message_of(error), error) from None

    def _fail(self, raised: BaseException) -> None:
        if type(raised) is InstructionFailed:
            fields = error_fields(raised.kind, raised.message, raised.cause, raised.details)
        else:
            fields = error_fields(
                "engine", "the runtime failed: " + name_of(raised) + ": " + message_of(raised), raised
            )
        cause = raised.cause if type(raised) is InstructionFailed else raised
        self.is_spent = cause is not None and (not issubclass(type(cause), Exception) or type(cause) is MemoryError)
        # After the message: making that may call the program's code, which may print.
        self._boundary.flush()
        document = sealed_copy(to_text(fields).encode("utf-8", "replace"))
        self._channel.send("failed", {"index": self.index}, [document.fd])
        document.close()

    def _perform(self, instruction: dict[str, Any]) -> None:
        op = instruction["op"]
        if op == "return":
            self._return(instruction)
            return
        if op == "upload":
            handle = self._upload(instruction)
        elif op == "get_function":
            handle = self._get_function(instruction)
        else:
            handle = self._run(instruction)
        self._handles[instruction["id"]] = handle

    # --- upload ---

    def _upload(self, instruction: dict[str, Any]) -> Handle:
        kind = instruction["kind"]
        if kind == "module":
            return self._upload_module(instruction)
        blob = self._blobs[instruction["blob"]]
        if kind == "tensor":
            return self._upload_tensor(instruction, blob)
        if kind == "bytes":
            content = bytes(blob.view())
            blob.note_use()
            return Handle(content, "value")
        if kind == "file":
            return self._upload_file(instruction, blob)
        self.lease.acquire(self.index)
        library = self._libraries.load(blob.view())
        blob.note_use()
        return Handle(library, "library")

    def _upload_module(self, instruction: dict[str, Any]) -> Handle:
        source = instruction["source"]
        if instruction.get("language", "python") == "cuda":
            return Handle(source, "cuda")
        if not self.lease.held:
            self.lease.ask(self.index)
        # Storing and compiling it needs no GPU, and takes about as long as a lease that nobody else has.
        module = self._modules.prepare(instruction["id"], source)
        self.lease.wait()
        return Handle(self._modules.execute(module), "python")

    def _upload_tensor(self, instruction: dict[str, Any], blob: Blob) -> Handle:
        self.lease.acquire(self.index)
        shape = tuple(instruction["shape"])
        tensor, raised = self._boundary.call(self._arrays.make, blob, instruction["dtype"], shape)
        if raised is not None:
            raise call_failed(raised)
        return Handle(tensor, "value")

    def _upload_file(self, instruction: dict[str, Any], blob: Blob) -> Handle:
        path = normalise(instruction["path"])
        try:
            self._directory.write_file(path, blob.view())
        except OSError as error:
            raise InstructionFailed("runtime", "%s cannot be written: %s" % (quote(path), reason_of(error))) from None
        blob.note_use()
        self._modules.forget_directories(self._directory.path)
        return Handle(path, "value")

    # --- get_function and run ---

    def _get_function(self, instruction: dict[str, Any]) -> Handle:
        id, name = instruction["module"]["$ref"], instruction["name"]
        module = self._handles[id]
        cpu_only = instruction.get("cpu_only", False)
        if module.kind == "python":
            return Handle(self._modules.look_up(module.value, name, id), "function", cpu_only)
        if module.kind == "cuda":
            return Handle(CudaFunction(module.value, name), "function", cpu_only)
        return Handle(self._libraries.look_up(module.value, name, id), "function", cpu_only)

    def _run(self, instruction: dict[str, Any]) -> Handle:
        id = instruction["fn"]["$ref"]
        function = self._handles[id]
        if not callable(function.value):
            message = "the handle %s is not callable: it is of type %s" % (quote(id), _type_name(type(function.value)))
            raise InstructionFailed("runtime", message)
        arguments = [self._argument(each) for each in instruction.get("args", ())]
        violation: Optional[Violation] = None
        if function.cpu_only:
            self._give_lease_back()
            value, raised, violation = self._call_guarded(function.value, arguments)
        else:
            self.lease.acquire(self.index)
            value, raised = self._boundary.call(function.value, *arguments)
        if violation is not None:
            raise _gpu_access(violation, raised)
        if raised is not None:
            raise call_failed(raised)
        return Handle(value, "value")

    def _call_guarded(
        self, function: Any, arguments: list[Any]
    ) -> tuple[Any, Optional[BaseException], Optional[Violation]]:
        if self._guard is None:
            return (*self._boundary.call(function, *arguments), None)
        self._guard.begin(self._own_directories)
        value, raised = self._boundary.call(function, *arguments)
        return value, raised, self._guard.end()

    def _argument(self, argument: Any) -> Any:
        id = _reference(argument)
        return argument if id is None else self._handles[id].value

    def _give_lease_back(self) -> None:
        if not self.lease.held:
            return
        self._finish_gpu_work()
        self.lease.release(self.index)

    # --- return ---

    def _return(self, instruction: dict[str, Any]) -> None:
        document = ValueDocument()
        try:
            self._encode(instruction, document)
            self._channel.send("returned", {"index": self.index}, document.finish())
        except Unencodable as fault:
            raise InstructionFailed("serialization", fault.message(), fault.__cause__) from None
        except CudaError as fault:  # GPU work of the program that failed, noticed only now
            raise InstructionFailed("runtime", message_of(fault), fault) from None
        except BaseException as raised:  # a value's own methods may raise anything
            message = "the value cannot be returned: " + ending_message_of(raised)
            raise InstructionFailed("serialization", message, raised) from None
        finally:
            document.close()

    def _encode(self, instruction: dict[str, Any], document: ValueDocument) -> None:
        kind = instruction.get("kind")
        if kind == "file":
            self._directory.encode_file(self._path_of(instruction["path"]), document)
        elif kind == "folder":
            self._directory.encode_folder(self._path_of(instruction["path"]), document)
        else:
            handle = self._handles[instruction["value"]["$ref"]]
            if handle.kind != "value":
                raise Unencodable("a handle of a module or function cannot be returned")
            copies = self._copies_out()
            ValueEncoder(document, self._arrays).encode(handle.value)
            # A copy waits for all work on the device, and is the last that happens to one array by itself.
            if self._copies_out() != copies and not issubclass(type(handle.value), _CONTAINERS):
                self._give_device_back_early()

    def _copies_out(self) -> int:
        return 0 if self._driver is None else self._driver.copies_out

    def _path_of(self, field: Any) -> str:
        id = _reference(field)
        path = field if id is None else self._handles[id].value
        if not issubclass(type(path), str):
            raise Unencodable("the path must be a string, and it is of type " + _type_name(type(path)))
        try:
            return normalise(str.__str__(path))
        except BadPath as error:
            raise Unencodable(message_of(error)) from None


_type_name = type.__dict__["__name__"].__get__


def _reference(field: Any) -> Optional[str]:
    """The id of a handle, where an object of exactly the shape {"$ref": id} stands."""
    if type(field) is dict and len(field) == 1 and type(field.get("$ref")) is str:
        return field["$ref"]
    return None


def _gpu_access(violation: Violation, raised: Optional[BaseException]) -> InstructionFailed:
    """Also where the function raised: more often than not because of that very call, which is what it must not do."""
    message = "the function was selected with cpu_only and called CUDA: %s at %s" % (violation.call, violation.location)
    if violation.count > 1:
        message += ", the first of %d calls" % violation.count
    details = {"cuda_call": violation.call, "location": violation.location}
    return InstructionFailed("gpu_access", message, raised, details)


def count_uses(instructions: list[dict[str, Any]], blobs: dict[str, Blob]) -> None:
    """Tells each blob how many instructions will ask for it."""
    for instruction in instructions:
        if instruction["op"] == "upload" and instruction["kind"] != "module":
            blobs[instruction["blob"]].uses_left += 1
