"""Programs for more than one GPU.

NVLink multicast stays off: a program that uses it can put a host's GPUs out of service. So nothing here touches NCCL
before it has seen that the server's environment says so.
"""

import os
import time

import torch


def multicast_is_off():
    return os.environ.get("NCCL_NVLS_ENABLE") == "0" and os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") == "1"


def visible():
    return {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "devices": torch.cuda.device_count(),
        "names": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "multicast_is_off": multicast_is_off(),
    }


def all_reduce_in_one_process(count):
    if not multicast_is_off():
        raise RuntimeError("NVLink multicast is not switched off: NCCL is left alone")
    import torch.cuda.nccl

    tensors = [torch.full((count,), float(i + 1), device="cuda:%d" % i) for i in range(torch.cuda.device_count())]
    torch.cuda.nccl.all_reduce(tensors)
    for i in range(len(tensors)):
        torch.cuda.synchronize(i)
    return [[float(each.min()), float(each.max())] for each in tensors]


def all_reduce_in_processes(count):
    if not multicast_is_off():
        raise RuntimeError("NVLink multicast is not switched off: NCCL is left alone")
    import ranks
    import torch.multiprocessing

    size = torch.cuda.device_count()
    torch.multiprocessing.spawn(ranks.reduce, args=(size, count, os.getcwd()), nprocs=size)
    return [[float(word) for word in open("rank-%d" % i).read().split()] for i in range(size)]


def copy_between_devices():
    x = torch.arange(1 << 20, device="cuda:0")
    return bool((x.to("cuda:1").to("cuda:0") == x).all())


def on_both_devices():
    return [torch.full((4,), float(i), device="cuda:%d" % i) for i in range(2)]


def hold(seconds):
    """Which device it was: each slot sees its own as number 0."""
    tensor = torch.ones(1024, device="cuda")
    time.sleep(seconds)
    return [str(torch.cuda.get_device_properties(0).uuid), float(tensor.sum().item())]
