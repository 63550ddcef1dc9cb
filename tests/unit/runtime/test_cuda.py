"""executor/runtime/cuda.py on a fake driver: contexts, health, copies, and every fault that the driver can play."""

import ctypes

import pytest

from fake_gpu import FakeGpu

MIB = 1 << 20


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    return FakeGpu(tmp_path_factory.mktemp("fake_gpu"))


def test_without_a_driver_there_is_none(gpu):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("a CUDA driver is installed")
    assert gpu.python("say(Driver.load() is None)", LD_LIBRARY_PATH="") is True


def test_loading_starts_nothing(gpu):
    code = "driver = Driver.load()\nsay([driver.is_active(), Driver.load() is driver])"
    assert gpu.python(code) == [False, True]
    assert gpu.calls == []


def test_initialising_makes_no_context(gpu):
    assert gpu.python("driver = Driver.load()\ndriver.initialise()\nsay(driver.is_active())") is False
    assert gpu.calls == ["init"]


def test_a_context_is_made_warm_and_kept_but_is_not_current(gpu):
    code = """
driver = Driver.load()
driver.make_context()
popped = ctypes.c_void_p()
say([driver.is_active(), raw("cuCtxPopCurrent_v2", ctypes.byref(popped))])
"""
    assert gpu.python(code) == [True, 201]
    assert gpu.calls == ["init", "context 0", "copy in 4096 on stream 0", "copy out 4096"]


def test_a_fork_of_whoever_loaded_it_makes_a_context(gpu):
    code = """
driver = Driver.load()
child = os.fork()
if child == 0:
    driver.make_context()
    os._exit(0 if driver.is_active() else 1)
say([os.waitpid(child, 0)[1], driver.is_active()])
"""
    assert gpu.python(code) == [0, False]


def test_a_fork_of_whoever_started_it_is_told_what_to_do(gpu):
    code = """
driver = Driver.load()
driver.make_context()
address = allocate(4)
blob = sealed_blob(b"abcd")
answer, answer_end = os.pipe()
child = os.fork()
if child == 0:
    works = [driver.initialise, driver.make_context, lambda: driver.copy_in(address, blob.address, 4, 0)]
    works.append(lambda: driver.copy_out(blob.address, address, 4))
    said = [failure_of(work) for work in works] + [driver.is_active(), failure_of(driver.synchronise)]
    os.write(answer_end, json.dumps(said).encode())
    os._exit(0)
os.close(answer_end)
said = json.loads(os.read(answer, 65536))
os.waitpid(child, 0)
driver.copy_in(address, blob.address, 4, 0)
say(said)
"""
    *failures, is_active, synchronised = gpu.python(code)
    calls = ["cuInit", "cuInit", "cuPointerGetAttribute", "cuPointerGetAttribute"]
    assert [failure[2] for failure in failures] == calls
    for name, text, _ in failures:
        assert name == "CUDA_ERROR_NOT_INITIALIZED"
        assert "before this process was forked" in text and "spawn" in text and "parent" in text
    assert (is_active, synchronised) == (False, None)


def test_that_nobody_started_it_is_no_matter_of_forks(gpu):
    code = """
child = os.fork()
if child == 0:
    blob = sealed_blob(b"abcd")
    say(failure_of(Driver.load().copy_in, 4096, blob.address, 4, 0))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""
    assert gpu.python(code) == ["CUDA_ERROR_NOT_INITIALIZED", "as the fake driver was told", "cuPointerGetAttribute"]


@pytest.mark.parametrize(
    "variable, error, name, call",
    [
        ("FAKE_GPU_INIT_ERROR", "100", "CUDA_ERROR_NO_DEVICE", "cuInit"),
        ("FAKE_GPU_CONTEXT_ERROR", "2", "CUDA_ERROR_OUT_OF_MEMORY", "cuDevicePrimaryCtxRetain"),
        ("FAKE_GPU_COPY_ERROR", "1", "CUDA_ERROR_INVALID_VALUE", "cuMemcpyHtoDAsync_v2"),
        ("FAKE_GPU_SYNCHRONIZE_ERROR", "700", "CUDA_ERROR_ILLEGAL_ADDRESS", "cuCtxSynchronize"),
    ],
)
def test_a_context_that_cannot_be_made_is_not_kept(gpu, variable, error, name, call):
    code = "driver = Driver.load()\nsay([failure_of(driver.make_context), driver.is_active()])"
    (said, _, where), active = gpu.python(code, **{variable: error})
    assert (said, where, active) == (name, call, False)
    # What follows a failure could not hide it, and once the reason is gone it works.
    code += "\ndel os.environ[%r]\ndriver.make_context()" % variable
    gpu.python(code, **{variable: error})


def test_a_context_of_anybody_on_any_device_counts(gpu):
    code = """
driver = Driver.load()
driver.initialise()
context = ctypes.c_void_p()
said = [driver.is_active()]
raw("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
said.append(driver.is_active())
os.environ["FAKE_GPU_SYNCHRONIZE_ERROR"] = "700"
said.append(failure_of(driver.synchronise))
del os.environ["FAKE_GPU_SYNCHRONIZE_ERROR"]
driver.synchronise()
raw("cuDevicePrimaryCtxRelease_v2", 1)
said.append(driver.is_active())
said.append(failure_of(driver.synchronise))
say(said)
"""
    before, after, failure, released, idle = gpu.python(code, FAKE_GPU_DEVICES="2")
    assert (before, after, released, idle) == (False, True, False, None)
    assert failure == ["CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered", "cuCtxSynchronize"]


def test_synchronising_before_anything_started_is_nothing(gpu):
    assert gpu.python("say(failure_of(Driver.load().synchronise))", FAKE_GPU_SYNCHRONIZE_ERROR="700") is None
    assert gpu.calls == []


# Content of a blob goes to the device, and from there behind three other bytes into a memfd.
ROUND_TRIP = """
driver = Driver.load()
driver.make_context()
size = %d
address = allocate(size, %r)
content = os.urandom(size)
blob = sealed_blob(content)
writer = memory.Writer()
writer.append(b"odd")
def there_and_back():
    driver.copy_in(address, blob.address, size, 77)
    blob.note_use()
    writer.fill(size, lambda host: driver.copy_out(host, address, size))
"""


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "fake_gpu_allocate_from_pool"])
@pytest.mark.parametrize("size", [1, 4093, 4096, MIB - 1, MIB, MIB + 1, 3 * MIB + 5])
def test_content_arrives_whatever_its_size(gpu, size, function):
    code = ROUND_TRIP % (size, function) + """
there_and_back()
writer.append(b"end")
say(content_of(writer) == b"odd" + content + b"end")
"""
    assert gpu.python(code) is True
    copies = ["copy in %d on stream 77" % size, "copy out %d" % size]
    if size >= MIB:
        pages_in, pages_out = size + -size % 4096, size + 3 + -(size + 3) % 4096
        copies = [
            "register %d flags 9" % pages_in, copies[0], "unregister %d" % pages_in,
            "register %d flags 1" % pages_out, copies[1], "unregister %d" % pages_out,
        ]  # fmt: skip
    assert gpu.calls[4:] == copies


def test_where_registering_is_refused_copies_are_plain(gpu):
    code = ROUND_TRIP % (2 * MIB, "cuMemAlloc_v2") + "there_and_back()\nsay(content_of(writer) == b'odd' + content)"
    assert gpu.python(code, FAKE_GPU_HOST_REGISTER_ERROR="801") is True
    assert gpu.calls[4:] == ["copy in %d on stream 77" % (2 * MIB), "copy out %d" % (2 * MIB)]


def test_after_a_copy_that_failed_nothing_is_registered_mapped_or_current(gpu):
    code = ROUND_TRIP % (2 * MIB, "cuMemAlloc_v2") + """
os.environ["FAKE_GPU_COPY_ERROR"] = "1"
said = [failure_of(there_and_back)]
os.environ["FAKE_GPU_SYNCHRONIZE_ERROR"] = "700"
said.append(failure_of(writer.fill, size, lambda host: driver.copy_out(host, address, size)))
writer.seal()
said.append(raw("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p())))
say(said)
"""
    there, back, popped = gpu.python(code)
    assert (there[0], back[0], popped) == ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_ILLEGAL_ADDRESS", 201)
    assert gpu.calls[4:] == ["register %d flags 9" % (2 * MIB), "unregister %d" % (2 * MIB)]


def test_a_copy_waits_for_work_that_is_under_way(gpu):
    code = ROUND_TRIP % (4096, "cuMemAlloc_v2") + """
driver.copy_in(address, blob.address, size, 0)
assert raw("fake_gpu_launch_fill", ctypes.c_uint64(address), 7, ctypes.c_size_t(100)) == 0
writer.fill(size, lambda host: driver.copy_out(host, address, size))
say(content_of(writer) == b"odd" + b"\\7" * 100 + content[100:])
"""
    assert gpu.python(code) is True


def test_what_somebody_else_still_maps_is_returned_all_the_same(gpu):
    code = """
import fcntl, mmap
writer = memory.Writer()
content = os.urandom(3 << 20)
writer.append(content)
theirs = mmap.mmap(writer.fd, 4096)
was = content_of(writer)
theirs[0] = (content[0] + 1) % 256
say([was == content, os.pread(writer.fd, 1, 0) == content[:1], fcntl.fcntl(writer.fd, 1034)])
"""
    assert gpu.python(code) == [True, True, 15]


def test_memory_of_nobody_is_an_error(gpu):
    code = ROUND_TRIP % (4096, "cuMemAlloc_v2") + "say(failure_of(driver.copy_in, 4096, blob.address, 1, 0))"
    assert gpu.python(code)[0] == "CUDA_ERROR_INVALID_VALUE"


def test_a_program_that_patches_its_interpreter_does_not_reach_it(gpu):
    code = ROUND_TRIP % (2 * MIB, "cuMemAlloc_v2") + """
import builtins
write, end = os.write, os._exit
def spoil(names):
    for name in [*names]:
        if name[0] != "_":
            names[name] = None
for names in [vars(os), vars(sys), vars(ctypes), vars(builtins)]:
    spoil(names)
failure = failure_of(driver.copy_in, 4096, blob.address, 1, 0)
there_and_back()
driver.synchronise()
if driver.is_active() and failure[0] == "CUDA_ERROR_INVALID_VALUE":
    write(1, b"true")
end(0)
"""
    assert gpu.python(code) is True
