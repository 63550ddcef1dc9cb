"""One zygote serves the tests of a file: as in production, nothing may pass from one program to the next."""

import pytest

from driver import Slot


@pytest.fixture(scope="module")
def slot(tmp_path_factory):
    slot = Slot(tmp_path_factory.mktemp("slot"))
    assert slot.hello["type"] == "zygote_ready", slot.hello
    yield slot
    slot.close()
