"""The experiments of scripts/demo: what a newcomer sees kcoral do.

Usage: demo_experiments.py URL     (PYTHONPATH has client/python, or the kcoral package is installed)
"""

from __future__ import annotations

import sys
import textwrap

import numpy as np

from kcoral import Client, Program, ProgramResult

# What the compiler function below gets: CUDA C, with a host function that launches the kernel.
CUDA_SOURCE = r"""
__global__ void add_one_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}

extern "C" void add_one(const float* x, float* y, int n) {
  add_one_kernel<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""

# The same for a server without nvcc. Selected names of a source module are text for a compiler, whatever its dialect.
CPP_SOURCE = r"""
extern "C" void add_one(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = x[i] + 1.0f;
}
"""

COMPILER = r"""
import os
import pathlib
import shutil
import subprocess


def find_nvcc():
    return shutil.which("nvcc", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")


def compile_library(source, config):
    suffix = {"nvcc": "cu", "g++": "cc"}[config["compiler"]]
    input_path = pathlib.Path(f"{source.name}.{suffix}")
    input_path.write_text(source.source)
    output_path = input_path.with_suffix(".so")
    if config["compiler"] == "nvcc":
        command = [find_nvcc(), "-O3", "-shared", "-Xcompiler", "-fPIC", f"-arch={config['arch']}"]
    else:
        command = ["g++", "-O3", "-shared", "-fPIC"]
    done = subprocess.run([*command, "-o", output_path, input_path], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{config['compiler']} failed:\n{done.stderr}")
    return output_path.read_bytes()
"""

PRODUCT = r"""
import time

import numpy as np


def multiply(a, b, repeats):
    a, b = np.asarray(a), np.asarray(b)
    times_ms = []
    for _ in range(repeats):
        start = time.perf_counter()
        product = a @ b
        times_ms.append((time.perf_counter() - start) * 1e3)

    # The reference sums in double precision, and in another order.
    reference = np.einsum("ik,kj->ij", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(product, reference, rtol=1e-3, atol=1e-3)

    with open("times.csv", "w") as file:
        file.write("repeat,ms\n")
        file.writelines(f"{index},{ms:.4f}\n" for index, ms in enumerate(times_ms))
    report = {
        "correct": True,
        "largest_error": float(np.abs(product - reference).max()),
        "median_ms": float(np.median(times_ms)),
        "gflops": 2 * a.shape[0] * a.shape[1] * b.shape[1] / float(np.median(times_ms)) / 1e6,
    }
    return report, product


def first(pair):
    return pair[0]


def second(pair):
    return pair[1]
"""

FAILING = r"""
import numpy as np


def candidate(n):
    print(f"computing {n} values")
    values = np.sqrt(np.arange(n, dtype=np.float32))
    values[n // 2] += 1  # the mistake that the check must find
    return values


def check(values):
    np.testing.assert_allclose(values, np.sqrt(np.arange(len(values))), rtol=1e-6)


def never_reached(values):
    return float(values.sum())
"""


def compile_program(source_text: str, compiler: str, arch: str) -> Program:
    program = Program()
    operations = program.upload(kind="module", source=COMPILER)
    compile_library = program.get_function(module=operations, name="compile_library", cpu_only=True)
    module = program.upload(kind="module", language="cuda", source=source_text)
    source = program.get_function(module=module, name="add_one")
    library = program.run(fn=compile_library, args=[source, {"compiler": compiler, "arch": arch}])
    program.return_(key="library", value=library)
    return program


def product_program(a: np.ndarray, b: np.ndarray) -> Program:
    program = Program()
    module = program.upload(kind="module", source=PRODUCT)
    left = program.upload(kind="tensor", value=a)
    right = program.upload(kind="tensor", value=b)
    pair = program.run(fn=program.get_function(module=module, name="multiply"), args=[left, right, 10])
    report = program.run(fn=program.get_function(module=module, name="first"), args=[pair])
    product = program.run(fn=program.get_function(module=module, name="second"), args=[pair])
    program.return_(key="report", value=report)
    program.return_(key="product", value=product)
    program.return_file(key="times", path="times.csv")
    return program


def failing_program() -> Program:
    program = Program()
    module = program.upload(kind="module", source=FAILING)
    values = program.run(fn=program.get_function(module=module, name="candidate"), args=[8])
    program.return_(key="values", value=values)
    program.run(id="check", fn=program.get_function(module=module, name="check"), args=[values])
    total = program.run(fn=program.get_function(module=module, name="never_reached"), args=[values])
    program.return_(key="total", value=total)
    return program


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"   This is not as it should be: {what}")


def show(text: str) -> None:
    print(textwrap.indent(text.rstrip(), "   "))


def show_times(result: ProgramResult) -> None:
    show(f"It waited {result.queue_ms:.1f} ms for a free process and ran {result.elapsed_ms:.1f} ms in it.")


def remote_compilation(client: Client) -> None:
    print("a) Compiling on the server: source code goes up, a shared library comes back.")
    nvcc = client.health()["versions"].get("nvcc")
    if nvcc is not None:
        arch = client.target().get("arch", "sm_80")
        show(f"The server has nvcc {nvcc}: CUDA C with a host function is compiled for {arch}, which needs no GPU.")
        program = compile_program(CUDA_SOURCE, "nvcc", arch)
    else:
        show("The server has no nvcc, so this compiles plain C++ with g++ instead of CUDA C. The steps are the same.")
        program = compile_program(CPP_SOURCE, "g++", "")
    result = client.execute(program, timeout_seconds=120)
    expect(result.completed, f"{result.error}\n{result.error.traceback if result.error else ''}")
    library = result.results["library"]
    expect(library.startswith(b"\x7fELF") and b"add_one" in library, "no shared library with add_one came back")
    show(f"Back came a shared library of {len(library) / 1024:.0f} KiB that exports add_one.")
    show_times(result)


def matrix_product(client: Client) -> None:
    print("b) A matrix product with NumPy, checked against a reference and timed.")
    generator = np.random.default_rng(seed=7)
    a = generator.standard_normal((384, 512), dtype=np.float32)
    b = generator.standard_normal((512, 256), dtype=np.float32)
    result = client.execute(product_program(a, b), timeout_seconds=120)
    expect(result.completed, str(result.error))
    report, product, times = result.results["report"], result.results["product"], result.results["times"]
    np.testing.assert_allclose(product, a @ b, rtol=1e-3, atol=1e-3)
    show(
        f"A report: correct, largest error {report['largest_error']:.1e}, median {report['median_ms']:.2f} ms "
        f"({report['gflops']:.1f} GFLOP/s)."
    )
    show(f"A tensor: {product.dtype} {product.shape}, equal to the product computed here.")
    show(f"A file: times.csv, {times.size} bytes, {len(times.data.splitlines()) - 1} measurements.")
    show_times(result)


def failing_check(client: Client) -> None:
    print("c) An experiment with a mistake in it: its own check must fail.")
    result = client.execute(failing_program(), timeout_seconds=120)
    expect(not result.completed, "the check passed")
    expect(result.error.kind == "correctness", f"the error is {result.error}")
    expect("total" not in result.results, "an instruction after the failed check ran")
    show(f"The server says {result.status}: {result.error.kind} error in instruction {result.error.instruction_id!r}:")
    show(textwrap.indent(result.error.message.strip(), "| ", lambda line: True))
    values = " ".join(f"{value:.3f}" for value in result.results["values"])
    show(f"What was returned before it is here: values = {values}")
    show(f"So is what it printed: {result.stdout.strip()!r}. Nothing after the failed check was run.")
    show_times(result)


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    with Client(sys.argv[1], client_name="demo") as client:
        for experiment in (remote_compilation, matrix_product, failing_check):
            print()
            experiment(client)


if __name__ == "__main__":
    main()
