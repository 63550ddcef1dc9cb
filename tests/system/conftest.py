import pathlib
from typing import Iterator

import pytest

from harness import KCORAL, Server, running_server


def pytest_configure(config):
    if not KCORAL.exists():
        raise pytest.UsageError(f"{KCORAL} does not exist; build it first (scripts/test does)")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests that leave it as they found it: two slots, NumPy preloaded."""
    with running_server("--num-workers", "2", "--preload", "numpy") as shared:
        yield shared


@pytest.fixture
def data_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "data"
