"""The driver's process: prepares claims as grants for kubelet, and publishes the node's devices to the API server.

It keeps no persistent state. Grants are found by their keys, so that kubelet may repeat a call, and the driver, the
daemon and kubelet may be killed, at any time.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.adapters import common
from gpushare.adapters.kubernetes import claims, slices, statuses
from gpushare.adapters.kubernetes.kubelet import Claim, Device, Health, Kubelet, Waits
from gpushare.adapters.kubernetes.pace import Pace
from gpushare.adapters.kubernetes.slices import Json, Shown
from gpushare.client import Client
from gpushare.errors import FailedError, GpushareError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from gpushare.adapters.kubernetes.cluster import Cluster

log = logging.getLogger(__name__)

WAIT_SECONDS = 10.0
"""Maximum wait of one call while room is made. kubelet retries later, and allows a call 45 s."""
SETTLE_SECONDS = 1.0
"""Changes within this time are combined into one write."""
RETRY_SECONDS = (1.0, 2.0, 5.0, 15.0, 60.0)
RECONCILE_SECONDS = 600.0
SOCKETS_SECONDS = 5.0
ANSWER_SECONDS = 5.0
"""Timeout for the daemon's answer: if it takes longer, it hangs."""
AWAY_SECONDS = 5.0
"""Time without an answer after which the daemon counts as away; a restart takes less."""
_ASKERS = 4


class Preparer:
    """Answers kubelet's calls. Called by several threads; calls for the same claim are serialised."""

    def __init__(self, daemon: Client, cluster: "Cluster", node: str) -> None:
        self._daemon, self._cluster, self._node = daemon, cluster, node
        self.statuses = statuses.Statuses(cluster)
        # Threads that query the daemon while the API server is queried for the claim.
        self._askers = ThreadPoolExecutor(_ASKERS, "daemon")
        # The node's devices as last read for publishing; None before that.
        self.devices: Sequence[Shown] | None = None
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def _alone(self, uid: str, waits: Waits) -> Iterator[None]:
        """Holds the claim's lock. Raises UnreachableError if kubelet has given up meanwhile: an abandoned call must not
        undo a later one."""
        with self._guard:
            lock, users = self._locks.get(uid, (threading.Lock(), 0))
            self._locks[uid] = lock, users + 1
        try:
            with lock:
                if not waits():
                    raise UnreachableError("kubelet does not wait any more")
                yield
        finally:
            with self._guard:
                lock, users = self._locks.pop(uid)
                if users > 1:
                    self._locks[uid] = lock, users - 1

    def stop(self) -> None:
        """Stops querying the daemon."""
        self._askers.shutdown(wait=False, cancel_futures=True)

    def prepare(self, asked: Sequence[Claim], waits: Waits) -> dict[str, list[Device] | str]:
        """As kubelet.Prepare. A claim that is prepared already gets the same grants."""
        answers: dict[str, list[Device] | str] = {}
        deadline = time.monotonic() + WAIT_SECONDS
        for claim in asked:
            try:
                with self._alone(claim.uid, waits):
                    answers[claim.uid] = self._prepare(claim, deadline)
            except GpushareError as error:
                answers[claim.uid] = str(error)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                answers[claim.uid] = f"the claim is not as Kubernetes describes claims: {error!r}"
            if isinstance(answer := answers[claim.uid], str):
                log.warning("claim %s/%s: %s", claim.namespace, claim.name, answer)
        return answers

    def _prepare(self, asked: Claim, deadline: float) -> list[Device]:
        there = self._askers.submit(self._there, asked.uid)
        claim = self._cluster.claim(asked.namespace, asked.name)
        if claim["metadata"]["uid"] != asked.uid:
            raise FailedError(f"claim {asked.namespace}/{asked.name} is another one by now: its pod is about to go")
        tenants, devices, grants = there.result()
        wanted = claims.wanted(claim, self._node, devices, tenants)
        keys = {one.ask["key"] for one in wanted}
        before = {grant["key"]: grant for grant in grants}
        for key in before.keys() - keys:  # of an earlier allocation whose end kubelet did not report
            common.release(self._daemon, before[key]["id"])
        found: list[Device] = []
        made: list[Shown] = []
        try:
            for one in wanted:
                # An existing grant is reused as it is, even if a tenant named as the namespace was made since.
                grant = before.get(one.ask["key"])
                if grant is None:
                    grant = self._daemon.create(**one.ask, wait_seconds=max(0.0, deadline - time.monotonic()))
                    made.append(grant)
                    before[one.ask["key"]] = grant
                found += _devices(one, grant)
        except BaseException:
            # kubelet will retry; until then the claim must not hold grants that it cannot use.
            for grant in made:
                common.release(self._daemon, grant["id"])
            raise
        self._queue_status(claim, wanted, before)
        return found

    def _there(self, uid: str) -> tuple[list[str], Sequence[Shown], Sequence[Shown]]:
        """Queries the daemon; returns the names of tenants, the devices, and the claim's grants."""
        tenants = [tenant["name"] for tenant in self._daemon.tenants()]
        return tenants, self._daemon.devices() if self.devices is None else self.devices, self._grants(uid)

    def _queue_status(self, claim: Json, wanted: Sequence[claims.Wanted], grants: Mapping[str | None, Shown]) -> None:
        """Queues the claim's grants for its status. `grants`: by key."""
        got = [(one, grants.get(one.ask["key"])) for one in wanted]
        self.statuses.put(claim, [entry for one, grant in got if grant for entry in statuses.entries(one, grant)])

    def unprepare(self, asked: Sequence[Claim], waits: Waits) -> dict[str, str]:
        """As kubelet.Unprepare."""
        answers = {}
        for claim in asked:
            try:
                with self._alone(claim.uid, waits):
                    self.statuses.drop(claim.uid)
                    for grant in self._grants(claim.uid):
                        common.release(self._daemon, grant["id"])
                answers[claim.uid] = ""
            except GpushareError as error:
                answers[claim.uid] = str(error)
        return answers

    def reconcile(self) -> list[str]:
        """Ends grants whose claims are gone, and returns their ids. Grants are listed before claims, so that a claim
        made in between is safe. Queues the statuses of the other claims if they are missing."""
        grants = [grant for grant in self._daemon.grants() if claims.is_claims(grant)]
        if not grants:
            return []
        found = list(self._claims())
        stale = claims.stale(grants, found, self._node)
        for grant_id in stale:
            log.info("grant %s: its claim is gone", grant_id)
            common.release(self._daemon, grant_id)
        by_key = {grant["key"]: grant for grant in grants if grant["id"] not in stale}
        for claim in found:
            with contextlib.suppress(GpushareError, LookupError, TypeError, ValueError):
                self._queue_status(claim, claims.wanted(claim, self._node, self.devices or (), ()), by_key)
        return stale

    def _claims(self) -> Iterator[Json]:
        """Yields the claims of the node's pods: a large cluster may have too many claims to list them all."""
        for namespace, name in sorted(
            {named for pod in self._cluster.pods(self._node) for named in claims.of_pod(pod)}
        ):
            with contextlib.suppress(NotFoundError):
                yield self._cluster.claim(namespace, name)

    def _grants(self, uid: str) -> Sequence[Shown]:
        return self._daemon.grants(key_prefix=claims.key_of(uid))


def _devices(wanted: claims.Wanted, grant: Shown) -> list[Device]:
    # One CDI name covers all devices of the grant: given twice, the engine would mount twice.
    names = (tuple(grant["cdi"]), *((),) * (len(wanted.parts) - 1))
    return [
        Device(wanted.request, wanted.pool, part.device, cdi, part.share)
        for part, cdi in zip(wanted.parts, names, strict=True)
    ]


class Publisher:
    """The node's slice, written only if it differs from what it should be."""

    def __init__(self, cluster: "Cluster", node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._node = cluster, node
        self._clock, self._pace = clock, Pace()
        self._known: Json | None = None
        # Number of calls of look_again, which come from other threads.
        self._doubts = 0
        # resourceVersion and spec of the last write. The API server may have dropped a field that it does not know: the
        # slice it returns for this version counts as equal, so that it is not rewritten forever.
        self._wrote: tuple[str, Json] | None = None

    def look_again(self) -> None:
        """To be called if the slice may have been changed or removed: a starting kubelet removes all of its node's."""
        self._known = None
        self._doubts += 1

    def published(self) -> list[Json]:
        """Returns the devices in the published slice. Raises UnreachableError or FailedError."""
        found = self._cluster.slice(self._node)
        return list(found["spec"].get("devices") or ()) if found is not None else []

    def publish(self, shown: list[Json]) -> float:
        """Writes the slice if needed. Returns the seconds after which to call again; 0: the slice is up to date. Raises
        UnreachableError or FailedError; the next call rereads the slice."""
        doubts, before = self._doubts, self._known
        if before is None:
            before = self._cluster.slice(self._node)
        if before is not None and self._wrote is not None and before["metadata"]["resourceVersion"] == self._wrote[0]:
            before = {**before, "spec": self._wrote[1]}
        if before is not None and slices.same(before["spec"].get("devices") or [], shown):
            self._believe(before, doubts)
            return 0.0
        if wait := self._pace.wait(self._clock()):
            return wait
        generation = before["spec"]["pool"]["generation"] + 1 if before is not None else 1
        body = slices.resource_slice(self._node, self._cluster.node_uid(self._node), generation, shown)
        if before is not None:
            body["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
        self._known = None
        self._pace.wrote()
        written = self._cluster.put_slice(body)
        self._wrote = written["metadata"]["resourceVersion"], body["spec"]
        self._believe({**written, "spec": body["spec"]}, doubts)
        log.info("slice %s: %d devices, generation %d", body["metadata"]["name"], len(shown), generation)
        return 0.0

    def _believe(self, known: Json, doubts: int) -> None:
        if self._doubts == doubts:
            self._known = known


class Driver:
    """Serves kubelet and publishes devices until `stop`."""

    def __init__(self, daemon: Client, cluster: "Cluster", node: str, kubelet: Path) -> None:
        self._daemon, self._cluster, self._node = daemon, cluster, node
        self._preparer, self._publisher = Preparer(daemon, cluster, node), Publisher(cluster, node)
        self._kubelet = Kubelet(kubelet, self._preparer.prepare, self._preparer.unprepare)
        self._changed, self._ended = threading.Event(), threading.Event()
        self._away_since: float | None = None
        self._shown: list[Json] | None = None
        self._healths: list[Health] = []

    def stop(self) -> None:
        """Makes `run` return soon."""
        self._ended.set()
        self._changed.set()

    def run(self) -> None:
        """Runs until `stop`."""
        for work in (self._watch, self._watch_slice, self._watch_sockets, self._write_statuses):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        attempt, reconciled = 0, 0.0
        while not self._ended.is_set():
            self._changed.clear()
            try:
                early = self._publish()
                due = time.monotonic() - reconciled >= RECONCILE_SECONDS or reconciled == 0.0
                if due and self._away_since is None:
                    self._preparer.reconcile()
                    reconciled = time.monotonic()
                attempt, wait = 0, early or RECONCILE_SECONDS
            except GpushareError as error:
                wait = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
                attempt += 1
                log.warning("%s: tried again in %g s", error, wait)
                self._ended.wait(wait)
                continue
            self._changed.wait(wait)
            self._ended.wait(SETTLE_SECONDS)
        self._kubelet.stop()
        self._preparer.stop()

    def _publish(self) -> float:
        asked = time.monotonic()
        try:
            devices = self._daemon.call("GET", "/v1/devices", timeout=ANSWER_SECONDS)["devices"]
            others = [grant for grant in self._daemon.grants() if not claims.is_claims(grant)]
        except UnreachableError as error:
            return self._publish_away(error, asked)
        if self._away_since is not None:
            log.info("the daemon answers")
        self._away_since, self._preparer.devices = None, devices
        self._healths = [self._health(device) for device in devices]
        self._kubelet.healths.put(self._healths)
        self._shown = slices.devices(devices, others)
        return self._publisher.publish(self._shown)

    def _publish_away(self, error: UnreachableError, asked: float) -> float:
        """Taints the node's devices for the scheduler once the daemon has not answered for AWAY_SECONDS. Running pods
        continue. Returns as Publisher.publish does."""
        if self._away_since is None:
            log.warning("%s", error)
            self._away_since = asked
        if (left := self._away_since + AWAY_SECONDS - time.monotonic()) > 0:
            return left
        self._kubelet.healths.put([replace(one, healthy=None, reason=str(error)) for one in self._healths])
        if self._shown is None:
            self._shown = self._publisher.published()
        return self._publisher.publish(slices.unreachable(self._shown)) if self._shown else 0.0

    def _write_statuses(self) -> None:
        self._preparer.statuses.run(self._ended)

    def _health(self, device: Shown) -> Health:
        since = device["unhealthy_since_ns"] or 0
        name = slices.device_name(device["id"])
        return Health(self._node, name, device["health"] == "healthy", since // 1_000_000_000, device["health_reason"])

    def _watch(self) -> None:
        """Wakes `run` whenever something may have changed; `run` then reads the state from the daemon's lists."""
        common.watch(
            lambda: self._daemon, self._ended, self._changed.set, matters=matters, retry_seconds=RETRY_SECONDS[0]
        )

    def _watch_slice(self) -> None:
        while not self._ended.is_set():
            try:
                for _ in self._cluster.slice_changes(self._node):
                    self._look_again()
            except GpushareError as error:
                log.debug("watch of the slice: %s", error)
            self._ended.wait(RETRY_SECONDS[0])  # bounds the rate also if the server ends every watch at once
            self._look_again()

    def _watch_sockets(self) -> None:
        while not self._ended.wait(SOCKETS_SECONDS):
            try:
                self._kubelet.serve()
            except (GpushareError, OSError) as error:
                log.warning("kubelet's directory: %s", error)
            try:
                self._daemon.call("GET", "/v1/version", timeout=ANSWER_SECONDS)
            except UnreachableError:
                self._changed.set()  # a watch does not end if the daemon hangs

    def _look_again(self) -> None:
        self._publisher.look_again()
        self._changed.set()


def matters(event: Json) -> bool:
    """Whether the event can change the slice. Of any type: a resize is `changed` too. A grant of a claim does not,
    unless its memory may be moved: then others may borrow the room while it is away."""
    if event["kind"] == "grant":
        grant = event["object"]
        return grant is not None and (not claims.is_claims(grant) or grant.get("residency") is not None)
    return event["kind"] in ("device", "node")
