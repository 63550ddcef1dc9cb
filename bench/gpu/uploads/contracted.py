"""What programs can see and do on a GPU server."""

import os
import time

import torch
from kcoral.builtins import benchmark


def where(tensor):
    return [str(tensor.device), str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.is_contiguous()]


def same(tensor):
    return tensor


def surroundings():
    return {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "devices": torch.cuda.device_count(),
        "is_in_its_directory": os.environ.get("KCORAL_DIR") == os.getcwd(),
        "name": torch.cuda.get_device_name(0),
        "capability": list(torch.cuda.get_device_capability(0)),
    }


def random_number():
    return [float(torch.rand(1).item()), float(torch.rand(1, device="cuda").item())]


def hold(seconds):
    tensor = torch.ones(1024, device="cuda")
    time.sleep(seconds)
    return float(tensor.sum().item())


def views():
    base = torch.arange(24, dtype=torch.float32, device="cuda").reshape(4, 6)
    return {
        "transposed": base.t(),
        "strided": base[::2, 1::2],
        "with gradient": (base + 0).requires_grad_(),
        "nested": [base[0], {"deep": base[:, 0]}],
        "conjugate": torch.complex(base[0], base[1]).conj(),
    }


def of_cupy():
    import cupy

    return [cupy.arange(12, dtype=cupy.float32).reshape(3, 4), cupy.ones((2, 2), dtype=cupy.int64).T]


def of_jax():
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy

    values = jax.numpy.arange(12, dtype=jax.numpy.float32).reshape(3, 4)
    return [values, str(next(iter(values.devices())).platform)]


def bad_index():
    tensor = torch.zeros(4, device="cuda")
    tensor[torch.tensor([1 << 20], device="cuda")]
    torch.cuda.synchronize()


def bad_shapes():
    return torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")


def _add(n=1 << 20):
    x = torch.ones(n, device="cuda")
    y = torch.empty_like(x)
    return lambda: torch.add(x, 1.0, out=y)


def timed():
    return benchmark(_add())


def timed_with_counts():
    return benchmark(_add(), {"warmup": 3, "repeat": 17, "flush_l2": False})


def timed_with_arguments(tensor):
    def double(x, y):
        torch.mul(x, 2.0, out=y)

    return benchmark(double, tensor, torch.empty_like(tensor), {"repeat": 5, "warmup": 1})


def timed_after_the_profiler():
    add = _add()
    before = benchmark(add)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        add()
        torch.cuda.synchronize()
    kernels = sum(1 for event in profile.events() if "elementwise" in event.name)
    return {"before": before, "after": benchmark(add), "kernels": kernels}


def timed_during_the_profiler():
    add = _add()
    add()
    said = "it was timed"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        add()
        try:
            benchmark(add)
        except Exception as error:
            said = "%s: %s" % (type(error).__name__, error)
        torch.cuda.synchronize()
    return {"said": said, "kernels": sum(1 for event in profile.events() if "elementwise" in event.name)}


def timed_changing():
    calls = []
    x = torch.ones(1 << 16, device="cuda")

    def changing():
        calls.append(1)
        for _ in range(1 + len(calls) % 2):
            x.add_(1.0)

    return benchmark(changing, {"warmup": 2, "repeat": 20})


def timed_on_a_stream():
    x = torch.ones(1 << 26, device="cuda")
    stream = torch.cuda.Stream()

    def on_a_stream():
        with torch.cuda.stream(stream):
            x.add_(1.0)
        torch.cuda.current_stream().wait_stream(stream)

    return benchmark(on_a_stream, {"repeat_ms": 50})


def timed_nothing():
    return benchmark(lambda: None)


def timed_raising():
    def raising():
        torch.ones(1, device="cuda")
        raise KeyError("on purpose")

    return benchmark(raising)


def timed_breaking():
    return benchmark(bad_index)


def timed_no_callable():
    return benchmark(42)


def timed_bad_config():
    return benchmark(_add(), {"repeats": 3})
