"""Makes a context on the first visible device, says "made", and does nothing until its standard input ends."""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if code != 0:
        sys.exit(f"CUDA error {code}")
    print("made", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
