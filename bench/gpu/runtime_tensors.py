"""The runtime's own way of bringing content to a GPU and back, in plain Python: for tensor_check.py."""

import fcntl
import importlib.util
import os
import random
import time

RUNTIME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../executor/runtime")
KIB, MIB = 1 << 10, 1 << 20
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "float32": 4, "float64": 8, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8,
    "complex128": 16,
}  # fmt: skip


def load_private(*names):
    spec = importlib.util.spec_from_file_location("private", os.path.join(RUNTIME, "private.py"))
    private = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(private)
    modules = private.PrivateModules(os.path.abspath(RUNTIME))
    return [modules.load(name) for name in names]


cuda, arrays, gpu_arrays, memory, kernel, errors = load_private(
    "cuda", "arrays", "gpu_arrays", "memory", "kernel", "errors"
)


def expect(condition, message, *facts):
    if not condition:
        raise AssertionError(message % facts)


def blob_of(content, uses=1, for_gpu=True):
    fd = os.memfd_create("check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view.nbytes:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, 1033, 15)
    blob = memory.Blob(fd, for_gpu)
    blob.uses_left = uses
    return blob


def content_of(writer):
    """Seals it, which fails if anything is still mapped or pinned."""
    writer.seal()
    content = os.pread(writer.fd, writer.size_bytes, 0)
    while len(content) < writer.size_bytes:
        content += os.pread(writer.fd, writer.size_bytes - len(content), len(content))
    expect(os.fstat(writer.fd).st_size == writer.size_bytes, "the memfd has %d bytes", os.fstat(writer.fd).st_size)
    writer.close()
    return content


class Codec:
    def __init__(self, driver):
        self.gpu = gpu_arrays.GpuArrays(driver)
        self.codec = arrays.ArrayCodec(lambda: None, self.gpu)

    def upload(self, content, dtype, shape):
        return self.codec.make(blob_of(content), dtype, shape)

    def read(self, value):
        array = self.codec.read(value)[1]
        writer = memory.Writer()
        array.write_to(writer)
        return array, content_of(writer)

    def round_trip(self, content, dtype, shape):
        tensor = self.upload(content, dtype, shape)
        expect(tensor.is_cuda and str(tensor.dtype) == "torch." + dtype, "uploaded as %s", tensor.dtype)
        expect(list(tensor.shape) == list(shape) and tensor.is_contiguous(), "uploaded with shape %s", tensor.shape)
        array, returned = self.read(tensor)
        expect((array.dtype, list(array.shape)) == (dtype, list(shape)), "returned as %s %s", array.dtype, array.shape)
        expect(returned == content, "%s %s: content differs", dtype, shape)
        return tensor


def random_content(count, dtype="uint8"):
    size_bytes = count * ITEM_BYTES[dtype]
    content = random.randbytes(min(size_bytes, MIB)) * (size_bytes // MIB + 1)
    content = content[:size_bytes]
    return bytes([each & 1 for each in content]) if dtype == "bool" else content


class DeviceMemory:
    """Of the driver, in the primary context that make_context made."""

    def __init__(self, driver, size_bytes):
        self._driver = driver
        self._current = cuda._Current(driver, driver._retain(0))
        self.address = 0
        address = cuda._DevicePointer()
        with self._current:
            driver._call("cuMemAlloc_v2", cuda.byref(address), size_bytes)
        self.address = address.value

    def fill(self, blob):
        """Copies it in, and waits until it is there."""
        if not self._driver.copy_in(self.address, blob.address, blob.size_bytes, 0):
            self._driver.synchronise()

    def free(self):
        with self._current:
            self._driver._call("cuMemFree_v2", self.address)
        self._driver._call("cuDevicePrimaryCtxRelease_v2", 0)


def timed(work, *arguments):
    started = time.perf_counter()
    work(*arguments)
    return (time.perf_counter() - started) * 1e3
