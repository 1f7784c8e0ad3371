"""What a user's nodes have now, asked of all of them at once."""

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import GpushareError, UnreachableError
from gpushare.policy.remote.link import CLASSES
from gpushare.remote.choice import Candidate
from gpushare.remote.nodes import Target
from gpushare.remote.reach import Reach, opened_all

CHOICE_SECONDS = 3.0
"""For all nodes together, before one is chosen."""
_LEAST_SECONDS = 0.1


@dataclass(slots=True)
class Facts:
    """A node, as it answered. `trouble`: why it did not; empty: it did. `devices`, `remote`, `plan`: in JSON, as the
    node API has them; `plan`: of the share that was asked for, if one was. `link`: of the latest attachment of this
    machine there: in JSON, as Attachment.link; None: there is none."""

    target: Target
    trouble: str = ""
    devices: list[Mapping[str, Any]] = field(default_factory=list)
    remote: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None

    @property
    def usable(self) -> list[Mapping[str, Any]]:
        """The devices that take new grants."""
        return [one for one in self.devices if one["state"] == "ready" and one["health"] == "healthy"]

    def free(self, what: str) -> int:
        """What nobody is guaranteed, on all its devices. `what`: `memory`, in bytes, or `time`, in thousandths of a
        device."""
        return sum(one["allocatable"][what] for one in self.usable)

    def whole(self, what: str) -> int:
        """What there is to guarantee, as `free`."""
        return sum(one["capacity"][what] - one["reserved"][what] for one in self.usable)

    @property
    def carriers(self) -> list[str]:
        """The carriers that it can serve."""
        return [one["name"] for one in self.remote.get("carriers", ()) if not one["trouble"]]

    @property
    def relay(self) -> str:
        """Where its relay is: HOST:PORT, or :PORT where ssh goes; empty: it has none."""
        told = self.remote.get("relay")
        return f"{told['host']}:{told['port']}" if told else ""

    @property
    def link(self) -> Mapping[str, Any] | None:
        """As the latest attachment of this machine had it."""
        return latest(self.remote.get("attachments", ()), socket.gethostname())

    def candidate(self) -> Candidate:
        """The node, for the choice of one."""
        link = self.link or {}
        checked = link.get("checked")
        return Candidate(
            self.target.name,
            self.refusal(),
            checked if checked in CLASSES else None,
            link.get("rtt_us", 0),
            self.free("time"),
            self.free("memory"),
        )

    def refusal(self) -> str:
        """Why a program of another machine cannot have the share there; empty: it can."""
        if self.trouble:
            return self.trouble
        if not self.relay:
            return str(self.remote.get("reason") or "it takes no programs of other machines")
        if self.plan is not None and not self.plan["fits"]:
            return "; ".join(self.plan["reasons"]) or "it does not fit"
        return ""


def latest(attachments: Iterable[Mapping[str, Any]], origin: str) -> Mapping[str, Any] | None:
    """The link of the latest attachment of a machine that was checked, else of the latest; None: there is none."""
    own = [one for one in attachments if one["origin"] == origin]
    found = max(own, key=lambda one: (bool(one["link"]["checked"]), one["created_ns"]), default=None)
    return found["link"] if found is not None else None


def ask(targets: Sequence[Target], seconds: float, request: Mapping[str, Any] | None = None) -> list[Facts]:
    """Asks the nodes what they have; each answers within so many seconds or is in trouble. `request`: a GrantRequest of
    which each says whether it fits."""
    deadline = time.monotonic() + seconds
    with opened_all(targets, seconds) as nodes, ThreadPoolExecutor(max(1, len(targets))) as pool:
        return list(pool.map(lambda target, reach: _facts(target, reach, deadline, request), targets, nodes))


def _facts(target: Target, reach: Reach, deadline: float, request: Mapping[str, Any] | None) -> Facts:
    facts, node = Facts(target), reach()
    if isinstance(node, UnreachableError):
        facts.trouble = str(node)
        return facts

    def call(method: str, path: str, body: Any = None) -> Any:
        return node.client.call(method, path, body, timeout=max(_LEAST_SECONDS, deadline - time.monotonic()))

    try:
        facts.devices = call("GET", "/v1/devices")["devices"]
        facts.remote = call("GET", "/v1/remote")
        if request is not None:
            facts.plan = call("POST", "/v1/plan", request)
    except GpushareError as error:
        facts.trouble = str(error)
    return facts
