"""One relay for the tests of a file, with a grant whose server sends back what it gets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from links.relayed import Echo, RelayProcess


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path_factory.mktemp("relay")) as made:
        yield made


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path
