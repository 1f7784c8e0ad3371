"""An attachment, from the grant on the node to the environment of a program here."""

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.api.remote import ORIGIN_MAX, LinkKind
from gpushare.carriers import files as carriers
from gpushare.carriers.contract import Contract
from gpushare.errors import GpushareError, NotFoundError, RefusedError
from gpushare.policy.remote.link import Least
from gpushare.remote import carrying
from gpushare.remote.check import Checked, measure, refuse_slow
from gpushare.remote.environment import UNSET_HERE, changes, environment
from gpushare.remote.far import Far
from gpushare.remote.local import HOST, Local
from gpushare.remote.reach import Node

OWN_CARRIERS = Path("~/.config/gpushare/carriers")
"""A user's own, besides those of the machine."""
RESERVE_SECONDS = 30
"""Time to live of a grant until it is attached: if this process is killed in between, the share comes back then."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user wants of an attachment. `carrier`: None: the only one that both sides have. `least`: the least class
    of link. `host_memory`: of the node, for the carrier's server, as AttachRequest takes it."""

    carrier: str | None = None
    link: LinkKind = "tls"
    least: Least = "poor"
    host_memory: int | str | None = None


@dataclass(frozen=True, slots=True)
class Attached:
    """A living attachment of this machine. `grant`: the grant as it was before. `local`: programs connect to it; it
    works between `start` and `pause`."""

    id: str
    node: str
    grant: Mapping[str, Any]
    contract: Contract
    local: Local
    checked: Checked

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The environment of a program. `base`: what it would have otherwise."""
        assert self.contract.client is not None
        return environment(base, self.contract.client, HOST, self.local.port)

    def changes(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """The variables that a program needs, and those that it must not have."""
        assert self.contract.client is not None
        return changes(self.contract.client, HOST, self.local.port), UNSET_HERE


def served(node: Node) -> list[Mapping[str, Any]]:
    """Returns the node's carriers, in JSON. Raises RefusedError where it takes no programs of other machines."""
    try:
        told = node.client.remote()
    except NotFoundError:
        raise RefusedError(f"{node.name} runs an older gpushare, which takes no programs of other machines") from None
    if not told["attachments_max"]:  # a relay that is being started is waited for, by the node
        raise RefusedError(f"{node.name} takes no programs of other machines: {told['reason']}")
    return list(told["carriers"])


def contract(node: Node, wanted: str | None) -> Contract:
    """Returns the carrier to use with a node. Raises UsageError, and RefusedError where there is none, or where the
    node takes no programs of other machines."""
    there = served(node)
    places = (*carriers.DIRECTORIES, OWN_CARRIERS.expanduser())
    known = carriers.names(places) if wanted is None else {wanted}.intersection(carriers.names(places))
    here = {name: carriers.load(name, places) for name in known}
    found = carrying.choose(node.name, there, here, wanted)
    assert found.client is not None
    carriers.libraries(found.name, found.client)
    return found


@contextlib.contextmanager
def granted(node: Node, request: Mapping[str, Any], kept: str | None = None) -> Iterator[Mapping[str, Any]]:
    """Yields a grant that ends with its attachments. `request`: arguments of Client.create. `kept`: the id of one to
    take instead, which is left as it is."""
    if kept is not None:
        yield node.client.grant(kept)
        return
    grant = node.client.create(**request, ttl_seconds=RESERVE_SECONDS)
    try:
        yield grant
    except BaseException:
        with contextlib.suppress(GpushareError):
            node.client.release(grant["id"])
        raise


@contextlib.contextmanager
def attached(
    node: Node,
    found: Contract,
    grant: Mapping[str, Any],
    wish: Wish,
    heard: Callable[[str], None],
    version: str | None = None,
) -> Iterator[Attached]:
    """Attaches to a grant, checks the link, and yields the attachment, paused; it ends with the context. `heard`:
    called with each line for the user, in a thread of its own. `version`: of the carrier's client half; None: as this
    machine has it. Raises RefusedError, also for a slow link, UnreachableError, and what the node answers."""
    assert found.client is not None
    answer = node.client.attach(
        grant["id"],
        carrier=found.name,
        version=(carriers.client_version(found) if version is None else version) or None,
        link=wish.link,
        host_memory=wish.host_memory,
        origin=socket.gethostname()[:ORIGIN_MAX],
    )
    try:
        lost = f"programs see {found.client.lost}" if found.client.lost else "what programs ask of it fails"
        with contextlib.closing(Local(Far.of(node, answer), heard, lost)) as local:
            local.start()
            local.attach()
            checked = measure(local.checking)
            local.report(checked.report())
            refuse_slow(node.name, checked, wish.least)
            local.pause()
            yield Attached(answer["id"], node.name, grant, found, local, checked)
    finally:
        with contextlib.suppress(GpushareError):  # mostly it has ended with the connection
            node.client.detach(grant["id"], answer["id"])
