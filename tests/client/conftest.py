import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))
sys.path.insert(0, str(Path(__file__).parent))

from fake_server import FakeServer  # noqa: E402


@pytest.fixture
def server():
    fake = FakeServer()
    yield fake
    fake.close()
