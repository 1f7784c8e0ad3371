"""A daemon and dashboards for the tests of a module."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from run.running import Daemon
from views.dashboards import Dashboard, dashboard


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    """Two simulated devices. Its socket lies in directories that every user can traverse."""
    with tempfile.TemporaryDirectory(prefix="gsb-") as short:
        Path(short).chmod(0o755)
        daemon = Daemon(Path(short, "d"), "2x64GiB")
        try:
            yield daemon.start()
        finally:
            daemon.stop()


@pytest.fixture(scope="module")
def board(node: Daemon) -> Iterator[Dashboard]:
    """Root's dashboard of the node."""
    with dashboard("--socket", str(node.layout.socket)) as found:
        yield found
