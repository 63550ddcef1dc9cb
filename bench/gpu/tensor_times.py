"""How long the ways to bring content to a GPU and back take: for tensor_check.py."""

import ctypes
import mmap
import statistics

from runtime_tensors import KIB, MIB, DeviceMemory, blob_of, cuda, gpu_arrays, memory, random_content, timed

NEVER, ALWAYS = 1 << 62, 1  # for REGISTERED_BYTES_MIN
BUFFER_BYTES = 1 << 20


def median_ms(work, repeats):
    return statistics.median([work() for _ in range(repeats)])


def upload_ms(device, content, threshold, for_gpu=True):
    """From a mapping that nobody has touched, as it is when a blob has just come, until it is there."""
    blob = blob_of(content, for_gpu=for_gpu)
    cuda.REGISTERED_BYTES_MIN = threshold
    try:
        return timed(device.fill, blob)
    finally:
        blob.drop()


def return_ms(driver, device, size_bytes, threshold):
    cuda.REGISTERED_BYTES_MIN = gpu_arrays.REGISTERED_BYTES_MIN = threshold
    array = gpu_arrays.GpuArray("uint8", [size_bytes], device.address, size_bytes, None, driver)
    writer = memory.Writer()
    try:
        return timed(array.write_to, writer)
    finally:
        writer.close()


def pinned_ms(driver, device, size_bytes, buffer):
    """Through a buffer that is registered for good: a way that the runtime does not take."""
    cuda.REGISTERED_BYTES_MIN = NEVER
    writer = memory.Writer()

    def write():
        for start in range(0, size_bytes, BUFFER_BYTES):
            length = min(BUFFER_BYTES, size_bytes - start)
            driver.copy_out(buffer.address, device.address + start, length)
            writer.append(buffer.view[:length])

    try:
        return timed(write)
    finally:
        writer.close()


class PinnedBuffer:
    def __init__(self, driver, device):
        self._driver = driver
        self._device = device
        memory_map = mmap.mmap(-1, BUFFER_BYTES)
        self.view = memoryview(memory_map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory_map))
        self.is_pinned = self._call("cuMemHostRegister_v2", self.address, BUFFER_BYTES, 1) == 0

    def free(self):
        if self.is_pinned:
            self._call("cuMemHostUnregister", self.address)

    def _call(self, name, *arguments):
        with cuda._MemoryContext(self._driver, self._device.address):
            return self._driver._functions[name](*arguments)


def pages_ms(size_bytes):
    writer = memory.Writer()
    try:
        return timed(writer.fill, size_bytes, lambda host: None)
    finally:
        writer.close()


def torch_upload_ms(torch, content):
    blob = blob_of(content, for_gpu=False)
    buffer = blob.take()
    return timed(lambda: (torch.frombuffer(buffer, dtype=torch.uint8).to("cuda"), torch.cuda.synchronize()))


def torch_return_ms(torch, size_bytes):
    tensor = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    writer = memory.Writer()
    try:
        return timed(lambda: writer.append(tensor.cpu().numpy()))
    finally:
        writer.close()


def measure(driver, torch, report):
    chosen = cuda.REGISTERED_BYTES_MIN
    print("Uploads: plain and registered from a shared mapping, plain and PyTorch's from a private one.")
    print("Returns: plain and pinned through a buffer, registered into the memfd, its pages alone, PyTorch's.")
    uploads, returns = "plain registered  private    torch", "plain registered   pinned    pages    torch"
    print("ms, medians         upload: %s   return: %s" % (uploads, returns))
    better = {"upload": None, "return": None}
    for size_bytes in [4 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB]:
        if not report.has_time:
            print("SKIP larger sizes: no time left")
            break
        repeats = 21 if size_bytes < 4 * MIB else 7
        content = random_content(size_bytes)
        device = DeviceMemory(driver, size_bytes)
        buffer = PinnedBuffer(driver, device)
        row = [
            median_ms(lambda: upload_ms(device, content, NEVER), repeats),
            median_ms(lambda: upload_ms(device, content, ALWAYS), repeats),
            median_ms(lambda: upload_ms(device, content, NEVER, False), repeats),
            median_ms(lambda: torch_upload_ms(torch, content), repeats) if torch else float("nan"),
            median_ms(lambda: return_ms(driver, device, size_bytes, NEVER), repeats),
            median_ms(lambda: return_ms(driver, device, size_bytes, ALWAYS), repeats),
            median_ms(lambda: pinned_ms(driver, device, size_bytes, buffer), repeats),
            median_ms(lambda: pages_ms(size_bytes), repeats),
            median_ms(lambda: torch_return_ms(torch, size_bytes), repeats) if torch else float("nan"),
        ]
        buffer.free()
        device.free()
        numbers = "%9.3f  %9.3f %8.3f %8.3f      %9.3f  %9.3f %8.3f %8.3f %8.3f" % tuple(row)
        print("%8d KiB             %s" % (size_bytes >> 10, numbers))
        for name, plain, registered in (("upload", row[0], row[1]), ("return", row[4], row[5])):
            if registered >= plain:
                better[name] = None
            elif better[name] is None:
                better[name] = size_bytes
    cuda.REGISTERED_BYTES_MIN = gpu_arrays.REGISTERED_BYTES_MIN = chosen
    for name, size_bytes in better.items():
        print("%s: registering pays from %s" % (name, "never" if size_bytes is None else "%d KiB" % (size_bytes >> 10)))
    print("REGISTERED_BYTES_MIN is %d KiB" % (chosen >> 10))
