from collections.abc import Iterator

import pytest

from tests.tools.fake_web import FakeWeb, fake_web


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with fake_web() as web:
        yield web
