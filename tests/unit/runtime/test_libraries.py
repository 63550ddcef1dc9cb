"""Uploaded libraries (contract section 3): with the real TVM FFI where it is installed, else with a program's own."""

import importlib.util
import shutil
import struct
import subprocess
import sys

import pytest

from driver import RUNTIME_DIRECTORY, digest, function, module, returns, run

HAS_TVM_FFI = importlib.util.find_spec("tvm_ffi") is not None
CPP_SOURCE = """
void add_one(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const float* from = static_cast<const float*>(x.data_ptr());
  float* to = static_cast<float*>(y.data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = from[i] + 1;
}
int64_t times(int64_t x) { return FACTOR * x; }
void fails(int64_t n) { TVM_FFI_THROW(ValueError) << "bad number " << n; }
"""


def library_upload(content, id="l"):
    return {"op": "upload", "id": id, "kind": "library", "blob": digest(content)}


def tensor_upload(id, content):
    shape = [len(content) // 4]
    return {"op": "upload", "id": id, "kind": "tensor", "dtype": "float32", "shape": shape, "blob": digest(content)}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A library whose `times` multiplies by that factor."""
    if not HAS_TVM_FFI:
        pytest.skip("TVM FFI is not installed")
    if not (shutil.which("ninja") and shutil.which("g++")):
        pytest.skip("no compiler")
    import tvm_ffi.cpp

    def build(factor):
        path = tvm_ffi.cpp.build_inline(
            name="times",
            cpp_sources=CPP_SOURCE,
            functions=["add_one", "times", "fails"],
            extra_cflags=["-DFACTOR=%d" % factor],
            build_directory=str(tmp_path_factory.mktemp("library")),
        )
        with open(path, "rb") as file:
            return file.read()

    return build


@pytest.fixture(scope="module")
def library(build):
    return build(2)


def test_tensors_go_in_and_are_written_to(slot, library):
    x, y = struct.pack("<3f", 1, 2, 3), bytes(12)
    call = run("add_one", {"$ref": "x"}, {"$ref": "y"})
    instructions = [library_upload(library), function("add_one", module="l"), tensor_upload("x", x)]
    outcome = slot.run(
        [*instructions, tensor_upload("y", y), call, returns("y")], [library, x, y], needs_lease=False
    )
    assert not outcome.error, outcome.error
    assert outcome.returned["result"].parts == [struct.pack("<3f", 2, 3, 4)]


def test_a_function_is_passed_on_and_called_later(slot, library):
    source = "import gc\ndef keep(f):\n    gc.collect()\n    return lambda n: [f(n), gc.collect() * 0]\n"
    outcome = slot.run(
        [
            library_upload(library),
            function("times", module="l"),
            module(source),
            function("keep"),
            run("keep", {"$ref": "times"}, id="kept"),
            run("kept", 21),
            returns(),
        ],
        [library],
    )
    assert outcome.returned["result"].wire["value"][0]["value"] == 42


def test_a_function_that_throws_is_a_runtime_error(slot, library):
    error = slot.run([library_upload(library), function("fails", module="l"), run("fails", 3)], [library]).error
    assert (error["kind"], error["message"], error["index"]) == ("runtime", "bad number 3", 2)


def test_a_missing_function_is_a_compile_error(slot, library):
    error = slot.run([library_upload(library), function("thrice", module="l")], [library]).error
    assert error["kind"] == "compile" and "'thrice'" in error["message"] and error["index"] == 1


def test_one_library_twice_and_two_in_one_program(slot, build, library):
    other = build(3)
    names = {"one": library, "again": library, "other": other}
    outcome = slot.run(
        [
            *[library_upload(content, name) for name, content in names.items()],
            *[function("times", id="f" + name, module=name) for name in names],
            *[run("f" + name, 7, id="r" + name) for name in names],
            *[returns("r" + name, name) for name in names],
        ],
        [library, other],
    )
    assert not outcome.error, outcome.error
    assert [outcome.returned[name].wire["value"] for name in names] == [14, 14, 21]


@pytest.mark.parametrize("handle", ["l", "times"])
def test_neither_library_nor_function_is_returned(slot, library, handle):
    outcome = slot.run([library_upload(library), function("times", module="l"), returns(handle)], [library])
    assert outcome.error["kind"] == "serialization"


@pytest.mark.skipif(not HAS_TVM_FFI, reason="TVM FFI is not installed")
@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"#!/bin/sh\n" * 100, b"\x7fELF\x02\x01" + bytes(200)])
def test_what_is_no_library_is_a_compile_error(slot, content):
    error = slot.run([library_upload(content)], [content]).error
    assert error["kind"] == "compile" and error["index"] == 0


def test_a_library_that_is_cut_anywhere_is_a_compile_error(slot, library):
    for kept in (10, 63, 64, 500, len(library) // 3, len(library) * 3 // 4):
        outcome = slot.run([library_upload(library[:kept])], [library[:kept]])
        assert not outcome.died, "the first %d bytes ended the process: %s" % (kept, outcome.exit)
        assert outcome.error is None or outcome.error["kind"] == "compile"


# A program that brings a tvm_ffi of its own, whose functions do not keep their module alive.
TVM_FFI = b"""
import weakref

class Module:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.content = file.read()
        weakref.finalize(self, print, "unloaded")
    def get_function(self, name):
        if name == "f":
            return len
        if name == "absent":
            return None
        raise AttributeError(name)

def load_module(path):
    module = Module(path)
    if not module.content.startswith(b"good"):
        raise RuntimeError("no library")
    return module
"""


@pytest.mark.skipif(HAS_TVM_FFI, reason="TVM FFI is installed, and a program cannot bring another once it is imported")
def test_libraries_live_as_long_as_the_program(slot):
    content = b"good"
    bring = {"op": "upload", "id": "tvm_ffi", "kind": "file", "path": "tvm_ffi.py", "blob": digest(TVM_FFI)}
    source = "import gc\ndef f(call):\n    gc.collect()\n    return call('abc')\n"
    outcome = slot.run(
        [
            bring,
            library_upload(content),
            function("f", id="length", module="l"),
            module(source),
            function("f"),
            run("f", {"$ref": "length"}),
            returns(),
        ],
        [TVM_FFI, content],
    )
    assert outcome.returned["result"].wire["value"] == 3 and b"unloaded" not in outcome.stdout
    for name in ("absent", "missing"):
        error = slot.run([bring, library_upload(content), function(name, module="l")], [TVM_FFI, content]).error
        assert error["kind"] == "compile" and name in error["message"]
    error = slot.run([bring, library_upload(b"bad")], [TVM_FFI, b"bad"]).error
    assert error["kind"] == "compile" and "no library" in error["message"]


ONE_AFTER_ANOTHER = """
import importlib.util, os, shutil, sys
runtime, directory, *paths = sys.argv[1:]
spec = importlib.util.spec_from_file_location("private", runtime + "/private.py")
private = importlib.util.module_from_spec(spec)
spec.loader.exec_module(private)
modules = private.PrivateModules(runtime)
boundary = modules.load("boundary").Boundary(lambda: None)
for path in paths:
    os.mkdir(directory)
    libraries = modules.load("libraries").Libraries(directory, boundary)
    with open(path, "rb") as file:
        library = libraries.load(memoryview(file.read()))
    print(libraries.look_up(library, "times", "l")(7))
    shutil.rmtree(directory)
"""


def test_the_next_program_of_a_process_gets_its_own_library(build, library, tmp_path):
    paths = [str(tmp_path / "first"), str(tmp_path / "second")]
    for path, content in zip(paths, (library, build(5))):
        with open(path, "wb") as file:
            file.write(content)
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, RUNTIME_DIRECTORY, str(tmp_path / "libraries"), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["14", "35"], done.stderr
