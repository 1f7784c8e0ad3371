"""A daemon and dashboards for the tests of a module."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote import elsewhere
from run.running import Daemon
from views.dashboards import Dashboard, dashboard


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    """Two simulated devices, which programs of other machines may use. Its socket lies in directories that every user
    can traverse."""
    with tempfile.TemporaryDirectory(prefix="gsb-") as short:
        Path(short).chmod(0o755)
        elsewhere.contract(Path(short, "carriers"), "echo", elsewhere.ECHO)
        config = Path(short, "gpushare.toml")
        config.write_text(f'[remote]\nlisten = "127.0.0.1:0"\ncarriers = "{short}/carriers"\n')
        daemon = Daemon(Path(short, "d"), "2x64GiB", options=("--config", str(config)))
        try:
            yield daemon.start()
        finally:
            daemon.stop()


@pytest.fixture(scope="module")
def board(node: Daemon) -> Iterator[Dashboard]:
    """Root's dashboard of the node."""
    with dashboard("--socket", str(node.layout.socket)) as found:
        yield found
