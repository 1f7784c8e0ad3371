"""A daemon, a sandbox helper, and a hostile server in a grant, shared by the tests."""

from collections.abc import Iterator
from typing import Any

import pytest
from remote import sandboxes
from remote.sandboxes import Sandbox, Server
from run.running import Daemon, daemon_apart


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with daemon_apart() as node:
        yield node
        node.nothing_left()


@pytest.fixture(scope="session")
def bound(daemon: Daemon) -> Iterator[dict[str, Any]]:
    """A grant for servers that do not use its device."""
    with sandboxes.bound_grant(daemon) as bound:
        yield bound


@pytest.fixture(scope="session")
def sandbox(daemon: Daemon) -> Iterator[Sandbox]:
    with sandboxes.sandbox(daemon) as made:
        yield made


@pytest.fixture(scope="session")
def hostile(sandbox: Sandbox) -> Server:
    """In a grant of its own."""
    return sandbox.hostile(None)
