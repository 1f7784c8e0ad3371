from collections.abc import Iterator
from pathlib import Path

import pytest
from pages.handmade import Simulator
from pages.lending import Lender


@pytest.fixture
def lender(tmp_path: Path, sim: Simulator) -> Iterator[Lender]:
    """2 GiB of the device, with the lease held, and a host pool of 8 GiB."""
    made = Lender(tmp_path / "lender", sim)
    made.lease()
    yield made
    made.close()
