"""A ledger in this process."""

import threading

import pytest

from gpushare.ledger import ledger as ledgers
from gpushare.ledger import mover as movers
from gpushare.ledger.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def opened(path, tmp_path, monkeypatch):
    """Opens a ledger that retries a failing disk often."""
    monkeypatch.setattr(ledgers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(movers, "RETRY_SECONDS", 0.02)
    # Patience for a slow machine, which is not what is tested.
    monkeypatch.setattr(movers, "_SALVAGE_SECONDS", 20)
    monkeypatch.setattr(ledgers, "_CLOSE_SECONDS", 60)
    path.parent.mkdir()
    made = []

    def open_one(tmpfs=True):
        made.append(Ledger(path, tmp_path / "run" if tmpfs else None))
        return made[-1]

    yield open_one
    for ledger in made:
        ledger.close()


@pytest.fixture
def answering(monkeypatch):
    """An event: the disk answers once it is set."""
    found, write = threading.Event(), movers.LedgerFile.write
    monkeypatch.setattr(movers.LedgerFile, "write", lambda *given: found.wait() and write(*given))
    yield found
    found.set()
