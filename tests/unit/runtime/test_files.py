"""File uploads, file returns and folder returns (contract section 3): relative to the original directory, no link
followed.
"""

import pytest

from driver import digest, function, module, program, returns, run


def upload_file(path, content, id="u"):
    return {"op": "upload", "id": id, "kind": "file", "path": path, "blob": digest(content)}


def returns_path(kind, path, key="out"):
    return {"op": "return", "key": key, "kind": kind, "path": path}


def after(slot, body, *returned):
    """Runs `body` in the working directory, then the returns."""
    source = "import os, sys, socket\ndef f():\n" + "".join("    %s\n" % line for line in body.strip().split("\n"))
    return slot.run([module(source), function("f"), run("f"), *returned])


def test_an_uploaded_file(slot):
    content = bytes(range(256)) * 5000
    source = """
import os
def f(path):
    facts = [os.stat(each).st_mode & 0o777 for each in ("a", "a/b", path)]
    return [path, facts, open(path, "rb").read()]
"""
    outcome = slot.run(
        [
            upload_file("./a//b/c.bin", content),
            module(source),
            function("f"),
            run("f", {"$ref": "u"}),
            returns(),
            returns("u", "handle"),
            returns_path("file", "a/./b/c.bin"),
        ],
        [content],
    )
    path, modes, _ = outcome.returned["result"].wire["value"]
    assert path["value"] == "a/b/c.bin" and [each["value"] for each in modes["value"]] == [0o700, 0o700, 0o600]
    assert outcome.returned["result"].parts == [content]
    assert outcome.returned["handle"].wire["value"] == "a/b/c.bin"
    assert outcome.returned["out"].wire == {"type": "file", "size": len(content), "part": 0}
    assert outcome.returned["out"].parts == [content]


def test_modes_do_not_depend_on_the_programs_umask(slot):
    source = "import os\nos.umask(0o777)\n"
    outcome = slot.run([module(source), upload_file("d/f", b"x"), returns_path("file", "d/f")], [b"x"])
    assert outcome.returned["out"].parts == [b"x"]


@pytest.mark.parametrize(
    "trap, path",
    [
        ("os.symlink('/tmp', 'd')", "d/f"),
        ("os.symlink('elsewhere', 'f')", "f"),
        ("open('f', 'w').close()", "f"),
        ("open('d', 'w').close()", "d/f"),
        ("os.mkdir('f')", "f"),
    ],
)
def test_an_upload_goes_through_nothing_that_the_program_laid_out(slot, trap, path):
    outcome = slot.run([module("import os\n" + trap + "\n"), upload_file(path, b"x")], [b"x"])
    assert outcome.error["kind"] == "runtime" and '"%s"' % path in outcome.error["message"]


def test_uploaded_modules_and_packages_can_be_imported(slot):
    use = """
import sys
def f():
    import late.part, early
    return [late.part.x, early.y, sys.path[0]]
"""
    early = "import early\n"
    outcome = slot.run(
        [
            upload_file("early.py", b"y = 2\n"),
            module(early, id="e"),
            module(use),
            upload_file("late/__init__.py", b"", id="i"),
            upload_file("late/part.py", b"x = 1\n", id="p"),
            function("f"),
            run("f"),
            returns(),
        ],
        [b"y = 2\n", b"", b"x = 1\n"],
    )
    values = outcome.returned["result"].wire["value"]
    assert [each["value"] for each in values] == [1, 2, slot.root + "/work"]


def test_returns_are_relative_to_the_original_directory(slot):
    body = "open('f', 'w').write('here')\nos.mkdir('sub')\nos.chdir('sub')\nopen('f', 'w').write('there')"
    outcome = after(slot, body, returns_path("file", "f"), returns_path("folder", "sub", "folder"))
    assert outcome.returned["out"].parts == [b"here"] and outcome.returned["folder"].parts == [b"there"]


def test_a_folder(slot):
    body = """
for path in ('r/a.txt', 'r/a/b', 'r/a/x/y', 'r/.hidden', 'r/a.b/z', 'r/\\u00e9'):
    os.makedirs(os.path.dirname(path), exist_ok=True); open(path, 'w').write(path)
os.makedirs('r/empty/deep')
"""
    outcome = after(slot, body, returns_path("folder", "r"))
    value = outcome.returned["out"]
    names = [".hidden", "a.b/z", "a.txt", "a/b", "a/x/y", "\u00e9"]
    assert value.wire["type"] == "folder" and set(value.wire) == {"type", "files", "directories"}
    assert list(value.wire["files"]) == names == sorted(names, key=str.encode)
    assert value.wire["directories"] == ["a", "a.b", "a/x", "empty", "empty/deep"]
    for index, name in enumerate(names):
        content = ("r/" + name).encode()
        assert value.wire["files"][name] == {"type": "file", "size": len(content), "part": index}
        assert value.parts[index] == content


def test_an_empty_folder_and_an_empty_file(slot):
    outcome = after(
        slot, "os.mkdir('d')\nopen('f', 'w').close()", returns_path("folder", "d"), returns_path("file", "f", "file")
    )
    assert outcome.returned["out"].wire == {"type": "folder", "files": {}, "directories": []}
    assert outcome.returned["file"].wire == {"type": "file", "size": 0, "part": 0} and outcome.returned[
        "file"
    ].parts == [b""]


def test_a_folder_deeper_than_python_calls(slot):
    body = """
os.makedirs('r')
start = os.getcwd()
os.chdir('r')
for _ in range(1500): os.mkdir('d'); os.chdir('d')
open('f', 'w').write('bottom')
os.chdir(start)
"""
    value = after(slot, body, returns_path("folder", "r")).returned["out"]
    assert list(value.wire["files"]) == ["d/" * 1500 + "f"] and value.parts == [b"bottom"]
    assert len(value.wire["directories"]) == 1500


def test_thousands_of_files(slot):
    outcome = after(
        slot, "os.mkdir('d')\nfor i in range(5000): open('d/%04d' % i, 'w').write(str(i))", returns_path("folder", "d")
    )
    value = outcome.returned["out"]
    assert len(value.parts) == 5000 and value.parts[4321] == b"4321" and list(value.wire["files"])[4321] == "4321"


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize(
    "body, path, reason",
    [
        ("pass", "missing", "No such file"),
        ("os.symlink('/etc', 'link')", "link", None),
        ("os.symlink('/etc', 'link')", "link/passwd", None),
        ("os.mkfifo('pipe')", "pipe", None),
        ("s = socket.socket(socket.AF_UNIX); s.bind('sock')", "sock", None),
    ],
)
def test_what_is_not_returned(slot, kind, body, path, reason):
    error = after(slot, body, returns_path(kind, path)).error
    assert error["kind"] == "serialization" and '"%s"' % path in error["message"] and (reason or "") in error["message"]


@pytest.mark.parametrize(
    "body, reason",
    [
        ("os.symlink('/etc/passwd', 'd/l')", '"d/l": a symbolic link'),
        ("os.mkdir('d/s'); os.symlink('/etc', 'd/s/l')", '"d/s/l": a symbolic link'),
        ("os.mkfifo('d/p')", '"d/p": it is no regular file'),
        ("s = socket.socket(socket.AF_UNIX); s.bind('d/s')", '"d/s": it is no regular file'),
        ("open(b'd/\\xff', 'w').close()", "not valid UTF-8"),
        ("os.mkdir(b'd/\\xff')", "not valid UTF-8"),
    ],
)
def test_what_a_folder_may_not_hold(slot, body, reason):
    outcome = after(slot, "os.mkdir('d'); open('d/a', 'w').close()\n" + body, returns_path("folder", "d"))
    assert outcome.error["kind"] == "serialization" and reason in outcome.error["message"] and not outcome.returned


@pytest.mark.parametrize(
    "path", ["", ".", "./", "/etc/passwd", "a/../b", "..", "a\\b", "a\0b", "x" * 256, "x/" * 2100, "\ud800"]
)
def test_the_rules_for_paths_hold_for_references(slot, path):
    outcome = slot.run(
        [module("def f():\n    return %r\n" % path), function("f"), run("f"), returns_path("file", {"$ref": "result"})]
    )
    assert outcome.error["kind"] == "serialization" and "path" in outcome.error["message"]


def test_a_path_by_reference(slot):
    source = """
class P(str):
    def __str__(self): return "other"
def f():
    open("real", "w").write("x")
    return P("./real")
"""
    outcome = slot.run([module(source), function("f"), run("f"), returns_path("file", {"$ref": "result"})])
    assert outcome.returned["out"].parts == [b"x"]
    outcome = slot.run(program("def f():\n    return 7\n") + [returns_path("file", {"$ref": "result"})])
    assert outcome.error["kind"] == "serialization" and "int" in outcome.error["message"]


def test_a_file_of_the_wrong_kind(slot):
    outcome = after(slot, "os.mkdir('d')\nopen('f', 'w').close()", returns_path("file", "d"))
    assert outcome.error["kind"] == "serialization" and "no regular file" in outcome.error["message"]
    outcome = after(slot, "open('f', 'w').close()", returns_path("folder", "f"))
    assert outcome.error["kind"] == "serialization" and "Not a directory" in outcome.error["message"]


def test_a_working_directory_that_was_replaced(slot):
    body = "here = os.getcwd()\nos.rename(here, here + '.moved')\nos.symlink('/etc', here)"
    assert after(slot, body, returns_path("file", "passwd")).error["kind"] == "serialization"
    import os
    import shutil

    os.unlink(slot.root + "/work")
    shutil.rmtree(slot.root + "/work.moved")
