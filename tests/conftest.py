"""Fixtures of all areas: a real daemon with its simulator, in a state directory of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Daemon

# What is tested is the installed package: programs started here do not pick up the tree they are started in.
os.environ["PYTHONSAFEPATH"] = "1"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Daemon]:
    """A running daemon with one simulated 16 GiB device."""
    daemon = Daemon(tmp_path / "state")
    try:
        yield daemon.start()
    finally:
        daemon.stop()
