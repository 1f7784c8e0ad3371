import sys
from pathlib import Path

import built
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from page_tenants import Grant

from gpushare.arbiter import Arbiter


@pytest.fixture(scope="session")
def tenant_program():
    return built.program("page_tenant")


@pytest.fixture
def machine(tmp_path, tenant_program):
    """make(share...) -> arbiter, grants."""
    arbiter = Arbiter()
    grants = []

    def make(*shares):
        for share in shares:
            grants.append(Grant(tmp_path, tenant_program, arbiter, share, f"g{len(grants)}"))
        return arbiter, grants

    yield make
    arbiter.close()
    for grant in grants:
        grant.close()
