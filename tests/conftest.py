"""Fixtures of all areas: a real daemon with its simulator, in a state directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Daemon


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Daemon]:
    """A running daemon with one simulated 16 GiB device."""
    daemon = Daemon(tmp_path / "state")
    try:
        yield daemon.start()
    finally:
        daemon.stop()
