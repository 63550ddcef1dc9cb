"""The process that the service is compared with: the same measurement without a service around it.

    python3 plain.py IMPORTABLE...

Started in a directory that holds measured.py and driver.py; IMPORTABLE are further directories to import from. For each
line on standard input, a JSON object of arguments for measured.measure, it answers with a line: the result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    sys.path[:0] = [os.getcwd(), *sys.argv[1:]]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import measured

    cubin = Path("kernels.cubin").read_bytes()
    for line in sys.stdin:
        print(json.dumps(measured.measure(cubin, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
