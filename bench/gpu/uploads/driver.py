"""Kernels of a cubin through the CUDA driver, for programs: no compiler, no extension module.

Uploaded beside a program's module, which imports it. The context is PyTorch's.
"""

import ctypes

import torch

_cuda = ctypes.CDLL("libcuda.so.1")


class DriverError(RuntimeError):
    pass


def check(code, call):
    if code != 0:
        name = ctypes.c_char_p()
        _cuda.cuGetErrorName(code, ctypes.byref(name))
        raise DriverError("%s: %s" % (call, (name.value or b"?").decode()))


class Kernels:
    """The kernels of one cubin."""

    def __init__(self, cubin):
        torch.zeros(1, device="cuda")  # makes the context current
        self._module = ctypes.c_void_p()
        check(_cuda.cuModuleLoadData(ctypes.byref(self._module), cubin), "cuModuleLoadData")

    def launcher(self, name, *parameter_types):
        """A function (grid, block, *arguments) that launches the kernel on PyTorch's current stream."""
        function = ctypes.c_void_p()
        check(_cuda.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()), "cuModuleGetFunction")

        def launch(grid, block, *arguments):
            values = [kind(each) for kind, each in zip(parameter_types, arguments, strict=True)]
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            code = _cuda.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, pointers, None)
            check(code, "cuLaunchKernel")

        return launch
