"""Check and time an elementwise GPU addition. KCORAL_URL is the address of a server with PyTorch and CUPTI."""

import os
from kcoral import Client, Program

source = """
import torch
from kcoral.builtins import benchmark

def evaluate(n):
    x = torch.arange(n, dtype=torch.float32, device="cuda")
    y = torch.empty_like(x)

    def candidate():
        torch.add(x, 1.0, out=y)

    candidate()
    torch.testing.assert_close(y, x + 1.0)
    return {"correct": True, "timing": benchmark(candidate)}
"""

program = Program()
module = program.upload(kind="module", source=source)
evaluate = program.get_function(module=module, name="evaluate")
report = program.run(fn=evaluate, args=[4096])
program.return_(key="report", value=report)

with Client(os.environ["KCORAL_URL"]) as client:
    result = client.execute(program)

if not result.completed:
    raise RuntimeError(result.error)
print(result.results["report"])
