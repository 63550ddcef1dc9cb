"""Tensors to and from a real GPU: checks that every byte arrives, and measures the ways to bring it there.

    python3 bench/gpu/tensor_check.py [--seconds 55] [--seed N]

Runs the runtime's own modules (executor/runtime: cuda, gpu_arrays, memory) in plain Python, without a server. Each
check is a PASS or FAIL line with what it covered, a SKIP line what is not installed or found no time; the exit status
is 1 after a FAIL. Without PyTorch only the driver is checked. The measurements choose cuda.REGISTERED_BYTES_MIN.

Whatever needs a process that has not used CUDA yet (starting it, breaking it) runs in forks, which come first.
"""

import argparse
import faulthandler
import importlib.util
import json
import os
import random
import signal
import sys
import time
import traceback

from runtime_tensors import (
    ITEM_BYTES,
    KIB,
    MIB,
    Codec,
    DeviceMemory,
    arrays,
    blob_of,
    content_of,
    cuda,
    expect,
    memory,
    random_content,
    timed,
)
from tensor_times import measure

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
REGISTER = "cuMemHostRegister_v2"
HANG_SECONDS = 30  # of one fork


class Report:
    def __init__(self, seconds):
        self._ends = time.monotonic() + seconds
        self.failures = 0

    def check(self, name, work, *arguments):
        """`work` returns how many cases it saw, or raises; Skipped if it cannot look."""
        if time.monotonic() > self._ends:
            print("SKIP %-34s no time left" % name)
            return
        started = time.monotonic()
        try:
            count = work(*arguments)
        except Skipped as reason:
            print("SKIP %-34s %s" % (name, reason))
        except Exception as error:
            self.failures += 1
            place = traceback.extract_tb(error.__traceback__)[-1]
            print("FAIL %-34s %s: %s (line %d)" % (name, type(error).__name__, error, place.lineno))
        else:
            print("PASS %-34s %4d cases %7.2f s" % (name, count, time.monotonic() - started))
        sys.stdout.flush()

    @property
    def has_time(self):
        return time.monotonic() < self._ends


class Skipped(Exception):
    pass


# --- in forks: starting and breaking CUDA ---


def in_fork(work):
    """What `work` returns, as JSON carries it."""
    answer, answer_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(HANG_SECONDS)  # faulthandler's timer is a thread, which a fork does not have
        try:
            said = work()
        except BaseException as error:
            said = {"error": "%s: %s" % (type(error).__name__, error)}
        os.write(answer_end, json.dumps(said).encode())
        os._exit(0)
    os.close(answer_end)
    with os.fdopen(answer, "rb") as file:
        said = json.loads(file.read() or b'{"error": "the fork died"}')
    os.waitpid(child, 0)
    expect("error" not in said, "%s", said.get("error"))
    return said


def first_operations(torch):
    """Milliseconds of what programs do first, each for the first and the second time."""
    x = torch.empty(256)

    def there_and_back():
        x.to("cuda").cpu()

    def add():
        torch.empty(256, device="cuda").add_(1.0)
        torch.cuda.synchronize()

    def randn():
        torch.randn(256, device="cuda")
        torch.cuda.synchronize()

    def product():
        matrix = torch.empty(256, 256, device="cuda")
        torch.mm(matrix, matrix)
        torch.cuda.synchronize()

    operations = [("copy", there_and_back), ("add", add), ("randn", randn), ("mm", product)]
    return {name: [timed(work), timed(work)] for name, work in operations}


def start_cold(torch):
    started = {"init": timed(torch.cuda.init)}
    return {**started, "stats": allocator_state(torch), **first_operations(torch)}


def allocator_state(torch):
    return {name: value for name, value in torch.cuda.memory_stats().items() if value}


def start_warmed(torch, driver):
    before = dict(os.environ)
    said = {"cuInit": timed(driver.initialise)}
    said["context"] = timed(driver._retain, 0)
    said["warm_up"] = timed(driver.make_context)
    said["environment"] = before == dict(os.environ)
    if torch is not None:
        said["stats"] = allocator_state(torch)
        said["seed"] = torch.cuda.initial_seed()
        said["offset"] = int.from_bytes(bytes(torch.cuda.get_rng_state()[8:16].tolist()), "little")
        said.update(first_operations(torch))
    return said


def check_start(torch, driver):
    expect(not driver.is_active(), "a context is active before anything started")
    warmed = [in_fork(lambda: start_warmed(torch, driver)) for _ in range(2)]
    for name in ("cuInit", "context", "warm_up"):
        print("     %-34s %s ms" % (name, " ".join(["%8.1f" % each[name] for each in warmed])))
    expect(all([each["environment"] for each in warmed]), "the environment was changed")
    if torch is None:
        return 2
    cold = in_fork(lambda: start_cold(torch))
    print("     %-34s %8.1f ms" % ("torch.cuda.init, cold", cold["init"]))
    for name in ("copy", "add", "randn", "mm"):
        cold_text = " then ".join(["%.2f" % each for each in cold[name]])
        warm_text = " then ".join(["%.2f" % each for each in warmed[0][name]])
        print("     first %-28s cold %s ms, warmed up %s ms" % (name, cold_text, warm_text))
    expect(warmed[0]["seed"] != warmed[1]["seed"], "two forks have the seed %d", warmed[0]["seed"])
    expect(warmed[0]["offset"] == 0, "the generator has been used: offset %d", warmed[0]["offset"])
    expect(warmed[0]["stats"] == cold["stats"], "the allocator is not fresh: %s", warmed[0]["stats"])
    return 3


def break_context(torch, driver):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the device prints each failed assertion
    driver.make_context()
    codec = Codec(driver)
    values = torch.zeros(4, device="cuda")
    broken = values[torch.tensor([99], device="cuda")]
    said = {}
    for name, work in (
        ("return", lambda: codec.read(broken)),
        ("strided return", lambda: codec.read(torch.as_strided(values, (2, 2), (1, 2)))),
        ("upload", lambda: codec.upload(b"1234", "float32", [1])),
        ("synchronise", driver.synchronise),
    ):
        try:
            work()
            said[name] = "nothing"
        except cuda.CudaError as error:
            said[name] = "CudaError " + error.name
        except Exception as error:
            said[name] = type(error).__name__ + " " + str(error).split("\n")[0]
    return said


def check_broken(torch, driver):
    if torch is None:
        raise Skipped("PyTorch is not installed")
    said = in_fork(lambda: break_context(torch, driver))
    print("     %s" % said)
    for name in ("return", "strided return", "synchronise"):
        expect(said[name].startswith("CudaError"), "%s gave %s", name, said[name])
    expect("CUDA" in said["upload"] or "Accelerator" in said["upload"], "upload gave %s", said["upload"])
    return len(said)


# --- the driver alone ---

SIZES = [1, 3, 4095, 4096, 4097, 64 * KIB, MIB - 1, MIB, MIB + 1, 5 * MIB + 13, 64 * MIB, 256 * MIB]


def check_driver(driver):
    count = 0
    for size_bytes in SIZES:
        content = random_content(size_bytes)
        device = DeviceMemory(driver, size_bytes)
        blob = blob_of(content)
        device.fill(blob)
        blob.note_use()
        writer = memory.Writer()
        writer.append(b"odd")
        writer.fill(size_bytes, lambda host: driver.copy_out(host, device.address, size_bytes))
        writer.append(b"end")
        device.free()
        expect(content_of(writer) == b"odd" + content + b"end", "%d bytes differ", size_bytes)
        count += 1
    expect(driver.is_active(), "no context is active")
    driver.synchronise()
    return count


def registering(driver):
    """Whether the driver takes the two kinds of mapping, as text."""
    refused = []
    real = driver._functions[REGISTER]

    def watched(address, size_bytes, flags):
        result = real(address, size_bytes, flags)
        if result:
            refused.append("%s: %s" % ("upload" if flags & 8 else "return", driver._describe("cuGetErrorName", result)))
        return result

    driver._functions[REGISTER] = watched
    try:
        size_bytes = 4 * MIB
        device = DeviceMemory(driver, size_bytes)
        blob = blob_of(random_content(size_bytes))
        device.fill(blob)
        blob.drop()
        writer = memory.Writer()
        writer.fill(size_bytes, lambda host: driver.copy_out(host, device.address, size_bytes))
        writer.close()
        device.free()
    finally:
        driver._functions[REGISTER] = real
    return "registered, both ways" if not refused else "REFUSED " + ", ".join(refused)


# --- PyTorch ---


def check_dtypes(codec):
    count = 0
    for dtype in ITEM_BYTES:
        for shape in ([2, 3], [], [1], [0, 4], [3, 5, 7], [0], [700_001]):
            elements = 1
            for dimension in shape:
                elements *= dimension
            codec.round_trip(random_content(elements, dtype), dtype, shape)
            count += 1
    return count


def check_sizes(codec):
    for size_bytes in SIZES:
        codec.round_trip(random_content(size_bytes), "uint8", [size_bytes])
    return len(SIZES)


def check_many(codec):
    """Small copies are not waited for, and no more than so much content stays mapped for that."""
    contents = [random_content(900 * KIB) for _ in range(40)]
    blobs = [blob_of(content) for content in contents]
    tensors = [codec.codec.make(blob, "uint8", [900 * KIB]) for blob in blobs]
    mapped = sum(blob.size_bytes for blob in blobs)
    expect(mapped <= 9 * MIB, "%d bytes are still mapped", mapped)
    for tensor, content in zip(tensors, contents):
        expect(codec.read(tensor)[1] == content, "a small tensor differs")
    return len(contents)


def check_refused(codec, driver):
    real = driver._functions[REGISTER]
    driver._functions[REGISTER] = lambda *_: 801
    try:
        return check_sizes(codec)
    finally:
        driver._functions[REGISTER] = real


def check_layouts(codec, torch):
    base = torch.arange(2 * 3 * 5 * 1000, dtype=torch.float32, device="cuda").reshape(2, 3, 5, 1000)
    complex_one = torch.randn(300, 500, dtype=torch.complex64, device="cuda")
    large = torch.randn(2000, 1000, device="cuda")
    cases = [
        base.permute(3, 1, 0, 2), base[:, 1:, ::2, 3::7], base[1], base[..., 5], base[:1].expand(4, 3, 5, 1000),
        complex_one.conj(), complex_one.conj().imag, complex_one.T.conj(), large.T, large[1:, 1:], large[:0],
        large.T.requires_grad_(), torch.nn.Parameter(large[5]), large.view(torch.bfloat16)[:, ::2],
    ]  # fmt: skip
    for at, tensor in enumerate(cases):
        array, returned = codec.read(tensor)
        wanted = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        expect(list(array.shape) == list(tensor.shape), "layout %d has shape %s", at, array.shape)
        expect(returned == wanted.reshape(-1).view(torch.uint8).numpy().tobytes(), "layout %d differs", at)
    return len(cases)


def check_offsets(codec, torch):
    writer, wanted = memory.Writer(), b""
    for size_bytes in [1, 4095, 7, 2 * MIB + 1, 0, 3, MIB, 5000]:
        content = random_content(size_bytes)
        wanted += content + b"-"
        codec.codec.read(codec.upload(content, "uint8", [size_bytes]))[1].write_to(writer)
        writer.append(b"-")
    expect(content_of(writer) == wanted, "several parts in one memfd differ")
    return 8


def check_streams(codec, torch):
    side = torch.cuda.Stream()
    shape, cycles = (4 * MIB,), 200_000_000  # about 0.1 s
    with torch.cuda.stream(side):
        tensor = torch.zeros(shape, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(cycles)
        tensor.fill_(7)
    expect(codec.read(tensor)[1] == b"\7" * shape[0], "a return did not wait for another stream")
    del tensor
    for stream in (side, torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            old = torch.empty(shape, dtype=torch.uint8, device="cuda")
            address = old.data_ptr()
            torch.cuda._sleep(cycles)
            old.fill_(9)
            del old
            content = random_content(shape[0])
            tensor = codec.upload(content, "uint8", shape)
            expect(tensor.data_ptr() == address, "the allocator gave other memory: nothing was tested")
            doubled = tensor + 0
        stream.synchronize()
        expect(doubled.cpu().numpy().tobytes() == content, "an upload was overwritten by work queued before")
        del tensor, doubled
    return 3


class OnlyDlpack:
    def __init__(self, tensor):
        self._tensor = tensor

    def __dlpack__(self, **more):
        return self._tensor.__dlpack__(**more)

    def __dlpack_device__(self):
        return self._tensor.__dlpack_device__()


def check_dlpack(codec, torch):
    base = torch.arange(24_000, dtype=torch.int16, device="cuda").reshape(20, 30, 40)
    cases = [base, base[3], base[:, 1:, ::3], base.permute(2, 0, 1), base[0, 0, 0], base[:0], base > 7]
    cases += [base.to(torch.bfloat16), base.to(torch.complex64)]
    for without_torch in (False, True):
        for at, tensor in enumerate(cases):
            wanted = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            if without_torch:
                del sys.modules["torch"]
            try:
                array, returned = codec.read(OnlyDlpack(tensor))
            finally:
                sys.modules["torch"] = torch
            expect(list(array.shape) == list(tensor.shape) and returned == wanted, "case %d differs", at)
            expect("torch." + array.dtype == str(tensor.dtype), "case %d has dtype %s", at, array.dtype)
    return 2 * len(cases)


def check_cupy(codec):
    if importlib.util.find_spec("cupy") is None:
        raise Skipped("CuPy is not installed")
    import cupy

    base = cupy.arange(6000, dtype=cupy.float32).reshape(20, 300)
    cases = [base, base.T, base[::-1], base[:, ::7], base.astype(cupy.complex128), base > 9, base.astype(cupy.float16)]
    for at, array in enumerate(cases):
        read, returned = codec.read(array)
        expect(returned == cupy.asnumpy(array).tobytes() and read.dtype == str(array.dtype), "case %d differs", at)
    return len(cases)


def check_jax(codec):
    if importlib.util.find_spec("jax") is None:
        raise Skipped("JAX is not installed")
    import jax
    import numpy

    if jax.default_backend() != "gpu":
        raise Skipped("JAX has no GPU backend")
    cases = [jax.numpy.arange(7000.0), jax.numpy.ones((3, 0)), jax.numpy.ones((300, 200), dtype="bfloat16").T + 1]
    for at, array in enumerate(cases):
        read, returned = codec.read(array)
        expect(returned == numpy.asarray(array).tobytes() and read.dtype == str(array.dtype), "case %d differs", at)
    return len(cases)


def check_out_of_memory(codec, torch):
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    side = 8192
    torch.cuda.set_per_process_memory_fraction(1.5 * 4 * side * side / total)
    try:
        tensor = torch.zeros(side, side, device="cuda").T
        try:
            codec.read(tensor)
        except arrays.NotAnArray as refusal:
            expect("too little memory" in str(refusal), "it says %s", refusal)
        else:
            raise AssertionError("it was returned")
        try:
            tensor = codec.upload(bytes(4 * side * side), "uint8", [4 * side * side])
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("an upload found memory")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return 2


def import_if_installed(name):
    return importlib.import_module(name) if importlib.util.find_spec(name) is not None else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=55)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    options = parser.parse_args()
    random.seed(options.seed)
    faulthandler.dump_traceback_later(options.seconds + 5, exit=True)  # what hangs is shown
    report = Report(options.seconds)
    driver = cuda.Driver.load()
    if driver is None:
        sys.exit("FAIL there is no libcuda.so.1")
    started = time.monotonic()
    torch = import_if_installed("torch")
    version = "none" if torch is None else torch.__version__
    print("seed %d, PyTorch %s (imported in %.1f s)" % (options.seed, version, time.monotonic() - started))

    report.check("start, warm-up, fresh state", check_start, torch, driver)
    report.check("a broken context", check_broken, torch, driver)
    driver.make_context()
    report.check("driver, 1 B to 256 MiB", check_driver, driver)
    print("     %s" % registering(driver))
    codec = Codec(driver)
    if torch is not None:
        report.check("dtypes and shapes", check_dtypes, codec)
        report.check("sizes", check_sizes, codec)
        report.check("many small ones", check_many, codec)
        report.check("sizes, registering refused", check_refused, codec, driver)
        report.check("layouts", check_layouts, codec, torch)
        report.check("parts at any offset", check_offsets, codec, torch)
        report.check("streams", check_streams, codec, torch)
        report.check("DLPack", check_dlpack, codec, torch)
        report.check("out of GPU memory", check_out_of_memory, codec, torch)
    report.check("CuPy", check_cupy, codec)
    measure(driver, torch, report)
    report.check("JAX", check_jax, codec)
    print("%d failed" % report.failures)
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()
