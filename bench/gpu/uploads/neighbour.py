"""What others do while somebody measures."""

import subprocess
import sys
import time

import torch


def compute(seconds):
    """Keeps a CPU busy, and another until the program has ended."""
    subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    deadline = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < deadline:
        rounds += 1
    return rounds


def touch(rounds):
    return float(torch.ones(1024, device="cuda").sum().item())


def work(size):
    """Products, copies and memory that comes and goes."""
    for _ in range(3):
        a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        b = (a @ a).float().softmax(1)
        a = torch.empty(1 << 28, dtype=torch.uint8, device="cuda").fill_(1)
    return float(b.sum().item())
