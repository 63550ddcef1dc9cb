"""One process of an all-reduce: uploaded as a file, since spawned processes import it."""

import os

import torch
import torch.distributed


def reduce(rank, size, count, directory):
    torch.cuda.set_device(rank)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    store = "file://" + os.path.join(directory, "rendezvous")
    torch.distributed.init_process_group("nccl", init_method=store, rank=rank, world_size=size)
    tensor = torch.full((count,), float(rank + 1), device="cuda")
    torch.distributed.all_reduce(tensor)
    torch.cuda.synchronize()
    with open(os.path.join(directory, "rank-%d" % rank), "w") as file:
        file.write("%r %r" % (float(tensor.min()), float(tensor.max())))
    torch.distributed.destroy_process_group()
