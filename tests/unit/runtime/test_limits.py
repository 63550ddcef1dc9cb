"""Bounds stand in schema/limits.h; the copies that the runtime needs are held equal to it."""

import ast
import os
import re

import pytest

from driver import RUNTIME_DIRECTORY

HEADER = os.path.join(RUNTIME_DIRECTORY, "../../schema/limits.h")
COPIES = [
    ("kernel", "PACKET_BYTES_MAX", "kFrameBytesMax"),
    ("kernel", "PACKET_FDS_MAX", "kFrameFdsMax"),
    ("files", "PATH_BYTES_MAX", "kPathBytesMax"),
    ("files", "COMPONENT_BYTES_MAX", "kPathComponentBytesMax"),
    ("values", "DEPTH_MAX", "kValueDepthMax"),
    ("values", "PARTS_MAX", "kPartsMax"),
    ("memory", "RETURNED_BYTES_MAX", "kReturnedBytesMax"),
    ("errors", "MESSAGE_BYTES_MAX", "kErrorMessageBytesMax"),
    ("errors", "TRACEBACK_BYTES_MAX", "kTracebackBytesMax"),
]


def limits():
    """Name and value of every plain number in the header."""
    with open(HEADER, encoding="utf-8") as file:
        text = re.sub(r"//.*", "", file.read())
    found = {}
    for name, expression in re.findall(r"inline constexpr \w+ (k\w+)\s*=\s*([^;]+);", text):
        try:
            found[name] = eval(expression, {"__builtins__": {}}, found)
        except SyntaxError:
            pass  # a duration
    return found


def constants(module):
    """The public numbers of a runtime module, which cannot be imported outside of a runtime."""
    with open(os.path.join(RUNTIME_DIRECTORY, module + ".py"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return {
        node.targets[0].id: eval(compile(ast.Expression(node.value), module, "eval"), {"__builtins__": {}})
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.endswith("_MAX")
        and not node.targets[0].id.startswith("_")
    }


@pytest.mark.parametrize("module, name, limit", COPIES)
def test_a_copy_equals_its_limit(module, name, limit):
    assert constants(module)[name] == limits()[limit]


def test_every_public_bound_of_the_runtime_is_held_here():
    modules = sorted({name[:-3] for name in os.listdir(RUNTIME_DIRECTORY) if name.endswith(".py")})
    assert sorted((module, name) for module in modules for name in constants(module)) == sorted(
        (module, name) for module, name, _ in COPIES
    )
