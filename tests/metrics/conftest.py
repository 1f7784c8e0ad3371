"""One daemon for all tests, which leave it unchanged."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from views.scrapes import Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="gpushare-metrics-") as directory:
        made = Site(Path(directory))
        yield made
        made.close()
