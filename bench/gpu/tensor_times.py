"""How long the ways to bring content to a GPU and back take: for tensor_check.py."""

import statistics

from runtime_tensors import KIB, MIB, DeviceMemory, blob_of, cuda, memory, random_content, timed

NEVER, ALWAYS = 1 << 62, 1  # for REGISTERED_BYTES_MIN


def median_ms(work, repeats):
    return statistics.median([work() for _ in range(repeats)])


def upload_ms(driver, device, content, threshold, for_gpu=True):
    """From a mapping that nobody has touched, as it is when a blob has just come."""
    blob = blob_of(content, for_gpu=for_gpu)
    cuda.REGISTERED_BYTES_MIN = threshold
    try:
        return timed(driver.copy_in, device.address, blob.address, len(content), 0)
    finally:
        blob.drop()


def return_ms(driver, device, size_bytes, threshold):
    cuda.REGISTERED_BYTES_MIN = threshold
    writer = memory.Writer()
    try:
        return timed(writer.fill, size_bytes, lambda host: driver.copy_out(host, device.address, size_bytes))
    finally:
        writer.close()


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
    print("Returns: plain and registered into the memfd, its pages alone, PyTorch's through ordinary memory.")
    print("ms, medians         upload: plain registered  private    torch   return: plain registered    pages    torch")
    better = {"upload": None, "return": None}
    for size_bytes in [4 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB]:
        if not report.has_time:
            print("SKIP larger sizes: no time left")
            break
        repeats = 21 if size_bytes < 4 * MIB else 7
        content = random_content(size_bytes)
        device = DeviceMemory(driver, size_bytes)
        row = [
            median_ms(lambda: upload_ms(driver, device, content, NEVER), repeats),
            median_ms(lambda: upload_ms(driver, device, content, ALWAYS), repeats),
            median_ms(lambda: upload_ms(driver, device, content, NEVER, False), repeats),
            median_ms(lambda: torch_upload_ms(torch, content), repeats) if torch else float("nan"),
            median_ms(lambda: return_ms(driver, device, size_bytes, NEVER), repeats),
            median_ms(lambda: return_ms(driver, device, size_bytes, ALWAYS), repeats),
            median_ms(lambda: pages_ms(size_bytes), repeats),
            median_ms(lambda: torch_return_ms(torch, size_bytes), repeats) if torch else float("nan"),
        ]
        device.free()
        print("%8d KiB             %9.3f  %9.3f %8.3f %8.3f      %9.3f  %9.3f %8.3f %8.3f" % (size_bytes >> 10, *row))
        for name, plain, registered in (("upload", row[0], row[1]), ("return", row[4], row[5])):
            if registered >= plain:
                better[name] = None
            elif better[name] is None:
                better[name] = size_bytes
    cuda.REGISTERED_BYTES_MIN = chosen
    for name, size_bytes in better.items():
        print("%s: registering pays from %s" % (name, "never" if size_bytes is None else "%d KiB" % (size_bytes >> 10)))
    print("REGISTERED_BYTES_MIN is %d KiB" % (chosen >> 10))
