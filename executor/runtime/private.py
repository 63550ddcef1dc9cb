"""Loads our own modules so that a program which patches its interpreter does not reach them.

Theory of operation. The runtime shares its process with the program, and a program may set `builtins.len = None` or
replace `json.dumps`. So our modules are not imported in the ordinary way:

- Their globals name their own `__builtins__`, a copy of the dictionary that was made before anything else ran. What a
  program does to the module `builtins` is not seen by them.
- They are not in `sys.modules` and their directory is not on `sys.path`: a program's own `values.py` or `files.py`
  never meets ours.
- They take what they need from other modules when they are loaded, that is before any program: `from posix import
  write`, never `os.write` at the moment of use.

The copy's `__import__` resolves our own names for our own modules and hands everything else to the real one.
"""

from __future__ import annotations

import builtins
import os
import types
from typing import Any

PREFIX = "kcoral_runtime."


class PrivateModules:
    """The modules of one directory, each loaded on its first import from one of the others."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._names = frozenset(name[:-3] for name in os.listdir(directory) if name.endswith(".py"))
        self._loaded: dict[str, types.ModuleType] = {}
        self._public_import = builtins.__import__
        self._builtins = dict(vars(builtins))
        self._builtins["__import__"] = self._import

    def load(self, name: str) -> types.ModuleType:
        """The module of that name; executed once."""
        if name in self._loaded:
            return self._loaded[name]
        path = self._directory + "/" + name + ".py"
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        module = types.ModuleType(PREFIX + name)
        module.__file__ = path
        module.__dict__["__builtins__"] = self._builtins
        self._loaded[name] = module
        exec(code, module.__dict__)
        return module

    # Called for imports inside C functions while a program runs, too: nothing here may look up a builtin.
    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level == 0 and name in self._names and globals is not None:
            if globals.get("__builtins__") is self._builtins:
                return self.load(name)
        return self._public_import(name, globals, locals, fromlist, level)
