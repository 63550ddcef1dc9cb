"""Client of the kcoral server.

A `Program` describes an experiment, a `Client` has a server run it, a `ProgramResult` holds what came back:

    from kcoral import Client, Program

    program = Program()
    module = program.upload(kind="module", source="def double(x):\\n    return 2 * x\\n")
    double = program.get_function(module=module, name="double")
    program.return_(key="answer", value=program.run(fn=double, args=[21]))

    with Client("http://localhost:8000") as client:
        result = client.execute(program)
    print(result.results["answer"] if result.completed else result.error)

The package needs the standard library only. Where NumPy is installed, returned tensors are NumPy arrays.
"""

from .client import Client
from .errors import KCoralError, MalformedAnswerError, ProgramError, ServerError, TransportError
from .program import Handle, Program
from .result import InstructionError, ProgramResult
from .returned import ReturnedFile, ReturnedFolder
from .tensor import Tensor

__version__ = "0.1.0"

__all__ = [
    "Client",
    "Handle",
    "InstructionError",
    "KCoralError",
    "MalformedAnswerError",
    "Program",
    "ProgramError",
    "ProgramResult",
    "ReturnedFile",
    "ReturnedFolder",
    "ServerError",
    "Tensor",
    "TransportError",
]
