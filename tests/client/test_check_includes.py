"""scripts/check_includes finds what it is there to find."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_includes"


def check(root):
    return subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, timeout=60)


@pytest.fixture
def tree(tmp_path):
    files = {
        "base/error.h": "#include <string>\n#include <tl/expected.hpp>\n",
        "base/sha256.cc": "#include <openssl/evp.h>\n",
        "schema/value.h": '#include "base/error.h"\n',
        "store/store.h": '#include "schema/value.h"\n',
        "store/sqlite.cc": '#include <sqlite3.h>\n#include "store/store.h"\n',
        "store/content.h": '#include "base/error.h"\n',
        "executor/executor.h": '#include "base/error.h"\n',
        "executor/frame.h": "",
        "scheduler/loop.cc": '#include "executor/executor.h"\n#include "store/store.h"\n',
        "gateway/routes.cc": '#include "store/store.h"\n',
        "server/main.cc": '#include "gateway/routes.h"\n#include "executor/frame.h"\n',
        "gateway/routes.h": "",
        "tests/unit/store/a_test.cc": '#include <gtest/gtest.h>\n#include <sqlite3.h>\n#include "store/content.h"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_tree_that_keeps_the_rules(tree):
    result = check(tree)
    assert result.returncode == 0, result.stdout
    assert "13 files" in result.stdout


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("base/bad.h", '#include "schema/value.h"', "base may not include"),
        ("schema/bad.h", '#include "store/store.h"', "schema may not include"),
        ("store/bad.cc", '#include "executor/executor.h"', "store may not include"),
        ("executor/bad.cc", '#include "store/store.h"', "executor may not include"),
        ("scheduler/bad.cc", '#include "store/content.h"', "scheduler may not include"),
        ("scheduler/bad.cc", '#include "executor/frame.h"', "scheduler may not include"),
        ("scheduler/bad.cc", '#include "gateway/routes.h"', "scheduler may not include"),
        ("gateway/bad.cc", '#include "executor/executor.h"', "gateway may not include"),
        ("gateway/bad.cc", '  #  include "scheduler/loop.h"', "not the path"),
        ("store/bad.cc", '#include "content.h"', "not the path of a header from the root"),
        ("store/bad.cc", '#include "../base/error.h"', "not the path of a header from the root"),
        ("store/bad.cc", "#include <base/error.h>", "is ours"),
        ("store/bad.cc", "#include <sqlite3.h>", "store/sqlite* only"),
        ("store/sqlite.h", "#include <rocksdb/db.h>", "store/content* bench/plain_rocksdb.cc only"),
        ("gateway/bad.cc", "#include <pistache/http.h>", "gateway/pistache.h only"),
        ("executor/bad.cc", "#include <seccomp.h>", "seccomp_filter* only"),
        ("gateway/bad.cc", "#include <openssl/sha.h>", "base/sha256.cc only"),
        ("server/bad.cc", "#include <gtest/gtest.h>", "tests only"),
    ],
)
def test_a_planted_include_is_found(tree, file, line, complaint):
    (tree / file).write_text(f"// A comment.\n{line}\n")
    result = check(tree)
    assert result.returncode == 1
    assert f"{file}:2: " in result.stdout and complaint in result.stdout
    assert len(result.stdout.splitlines()) == 1


def test_a_loop_is_found(tree):
    (tree / "base/a.h").write_text('#include "base/b.h"\n')
    (tree / "base/b.h").write_text('#include "base/error.h"\n#include "base/c.h"\n')
    (tree / "base/c.h").write_text('#include "base/b.h"\n')
    result = check(tree)
    assert result.returncode == 1 and "base/b.h -> base/c.h -> base/b.h" in result.stdout


def test_an_empty_tree_is_no_success(tmp_path):
    assert check(tmp_path).returncode == 1
