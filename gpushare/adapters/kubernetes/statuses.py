"""Writes what a claim got into its status: `devices` of a ResourceClaim's status, asynchronously after the answers to
kubelet.

Nothing waits for it, and nothing is lost: what was not written when the driver ended is found when it next looks at all
claims of the node. A claim costs one write, and no more while its grants stay the same.
"""

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpushare.adapters import common
from gpushare.adapters.kubernetes import DRIVER
from gpushare.adapters.kubernetes.claims import PARAMETERS, Wanted
from gpushare.adapters.kubernetes.slices import Json, Shown, device_name
from gpushare.errors import FailedError, NotFoundError, UnreachableError
from gpushare.text.units import format_size, format_time

if TYPE_CHECKING:
    from gpushare.adapters.kubernetes.cluster import Cluster

log = logging.getLogger(__name__)

WRITE_SECONDS = 0.1
"""Interval between two writes: a booting node prepares all its claims at once."""
RETRY_SECONDS = 5.0
WAITING_MAX = 4096
"""Maximum number of claims whose status is queued. A node has fewer pods than that."""


_READY = {"type": "Ready", "status": "True", "reason": "Prepared"}
_ASLEEP = {"type": "Asleep", "status": "True", "reason": "MemoryInHostMemory"}


def entries(wanted: Wanted, grant: Shown) -> list[Json]:
    """Returns an AllocatedDeviceStatus for each device of a request. `data` is deterministic for a grant."""
    shares = {device_name(part["id"]): part for part in grant["devices"]}
    return [_entry(wanted.pool, part.device, part.share, grant, shares[part.device]) for part in wanted.parts]


def _entry(pool: str, device: str, share: str | None, grant: Shown, part: Shown) -> Json:
    since, state = _clock(grant["created_ns"] / 1e9), common.state(grant)
    memory, milli = format_size(part["memory_limit_bytes"]), format_time(part["time_milli"])
    message = f"grant {grant['id']} has {memory} of the device's memory and {milli} of its time"
    found: Json = {
        "driver": DRIVER,
        "pool": pool,
        "device": device,
        "conditions": [{**_READY, "message": message, "lastTransitionTime": since}],
        "data": {
            **PARAMETERS,
            "grant": grant["id"],
            "tenant": grant["tenant"],
            "memoryBytes": part["memory_limit_bytes"],
            "timeMilli": part["time_milli"],
            "timeLimitMilli": part["time_limit_milli"],
            **({"state": state} if state == "asleep" else {}),
        },
    }
    if state == "asleep":
        message = "its memory is in host memory, and comes back when its programs need it"
        found["conditions"].append({**_ASLEEP, "message": message, "lastTransitionTime": _clock(time.time())})
    if share is not None:
        found["shareID"] = share
    return found


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def has_entries(claim: Json, devices: Sequence[Json]) -> bool:
    """Whether the claim's status has all these entries already."""
    known = {_key(one): one.get("data") for one in (claim.get("status") or {}).get("devices") or ()}
    return all(known.get(_key(one)) == one["data"] for one in devices)


def _key(one: Json) -> tuple[str, str, str, str | None]:
    return one["driver"], one["pool"], one["device"], one.get("shareID")


def with_entries(claim: Json, devices: Sequence[Json]) -> Json:
    """Returns the claim with these entries in its status in place of our earlier ones; other drivers' entries stay."""
    status = claim.get("status") or {}
    others = [one for one in status.get("devices") or () if one["driver"] != DRIVER]
    return {**claim, "status": {**status, "devices": [*others, *devices]}}


class Statuses:
    """The queue of statuses to write; the latest per claim."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self._due: dict[str, tuple[str, str, list[Json]]] = {}
        self._warned = False

    def put(self, claim: Json, devices: list[Json]) -> None:
        """Queues a claim's entries unless its status has them already, or the queue is full."""
        metadata = claim["metadata"]
        with self._changed:
            self._due.pop(metadata["uid"], None)
            if not has_entries(claim, devices) and len(self._due) < WAITING_MAX:
                self._due[metadata["uid"]] = metadata["namespace"], metadata["name"], devices
                self._changed.notify()

    def drop(self, uid: str) -> None:
        """Removes a claim from the queue: it no longer has a grant."""
        with self._changed:
            self._due.pop(uid, None)

    def run(self, ended: threading.Event) -> None:
        """Writes until `ended` is set, which is checked at least once a second while the queue is empty."""
        while not ended.is_set():
            with self._changed:
                if not self._due:
                    self._changed.wait(1.0)
                    continue
                uid, one = next(iter(self._due.items()))
            done = self._write(uid, *one)
            with self._changed:
                if self._due.get(uid) is one:
                    del self._due[uid]
                    if not done:
                        self._due[uid] = one  # after the others
            ended.wait(WRITE_SECONDS if done else RETRY_SECONDS)

    def _write(self, uid: str, namespace: str, name: str, devices: list[Json]) -> bool:
        """Writes one status. False: to be retried."""
        try:
            claim = self._cluster.claim(namespace, name)
            if claim["metadata"]["uid"] != uid or has_entries(claim, devices):
                return True
            return self._cluster.put_claim_status(with_entries(claim, devices))
        except NotFoundError:
            return True
        except UnreachableError as error:
            log.debug("status of claim %s/%s: %s", namespace, name, error)
            return False
        except (FailedError, LookupError, TypeError) as error:
            # The pod runs without it. Warn once: a missing permission would fail for every claim.
            log.log(logging.DEBUG if self._warned else logging.WARNING, "claims get no status: %s", error)
            self._warned = True
            return True
