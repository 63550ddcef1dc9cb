"""A first program of one's own: two functions go up, one feeds the other, and a value, an array and a file come back.

    KCORAL_URL=http://127.0.0.1:8000 python3 examples/hello_cpu.py

Any server will do. NumPy is needed on the server only.
"""

import os

from kcoral import Client, Program

SOURCE = """
import numpy as np


def roll(count, seed):
    print(f"rolling {count} dice")
    return np.random.default_rng(seed).integers(1, 7, size=count)


def judge(dice):
    with open("dice.txt", "w") as file:
        file.write(" ".join(str(face) for face in dice))
    return {"sum": int(dice.sum()), "mean": float(dice.mean())}
"""


def build_program() -> Program:
    program = Program()
    module = program.upload(kind="module", source=SOURCE)
    roll = program.get_function(module=module, name="roll")
    judge = program.get_function(module=module, name="judge")
    dice = program.run(fn=roll, args=[10, 42])
    verdict = program.run(fn=judge, args=[dice])
    program.return_(key="dice", value=dice)
    program.return_(key="verdict", value=verdict)
    program.return_file(key="file", path="dice.txt")
    return program


def main() -> None:
    with Client(os.environ.get("KCORAL_URL", "http://127.0.0.1:8000")) as client:
        result = client.execute(build_program(), timeout_seconds=30)
    if not result.completed:
        raise SystemExit(f"{result.error}\n{result.error.traceback}")
    print("verdict:", result.results["verdict"])
    print("dice:   ", result.results["dice"])
    print("file:   ", result.results["file"].data.decode())
    print("printed:", result.stdout.strip())


if __name__ == "__main__":
    main()
