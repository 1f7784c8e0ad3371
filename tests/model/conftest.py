import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from page_tenants import Grant

from gpushare.binding.arbiter import Arbiter


@pytest.fixture
def machine(tmp_path):
    """Gives make(share...), which returns an arbiter and its grants."""
    arbiter = Arbiter()
    grants = []

    def make(*shares):
        for share in shares:
            grants.append(Grant(tmp_path, arbiter, share, f"g{len(grants)}"))
        return arbiter, grants

    yield make
    arbiter.close()
    for grant in grants:
        grant.close()
