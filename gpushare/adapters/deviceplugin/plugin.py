"""The plugin's process: offers slots to kubelet, makes grants for the slots that it allocates, and ends the grants.

kubelet does not report the end of a pod; it only lists the slots that pods have, so this list is read whenever a grant
is idle. The only state is which grants have been listed and since when each is known; the rest is in the grants' keys.
"""

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.adapters import common
from gpushare.adapters.common import Changes
from gpushare.adapters.deviceplugin import slots
from gpushare.adapters.deviceplugin.kubelet import Answer, Identity, Plugin, Pods, Waits
from gpushare.adapters.deviceplugin.slots import Json, Sizes
from gpushare.client import AWAY_SECONDS, Client
from gpushare.errors import GpushareError, RefusedError
from gpushare.inject import oci

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""Maximum wait while room is made; kubelet admits no other pod meanwhile, and fails the pod after a refusal."""
LOOK_SECONDS = 1.0
"""Interval between checks of kubelet's sockets, and of its pods while a grant is idle or its pod is not listed yet."""
TRUST_SECONDS = 60.0
"""Time after which a started kubelet is assumed to know all its pods: a pod not listed by then is gone."""
ERROR_SECONDS = 1.0
SETTLE_SECONDS = 0.05
"""Time over which changes are gathered, so that a burst of pods does not reread all grants for each."""


@dataclass(frozen=True, slots=True)
class Options:
    """`sizes`: how devices are divided. `annotations`: a container's annotations may set its size, and the grant is
    made when the container is created; otherwise its slots set the size. `more`: fields of every GrantRequest."""

    sizes: Sizes
    resource: str
    annotations: bool
    more: Mapping[str, Any]


class Allocator:
    """Grants for slots. Called by several threads. `pods`: where kubelet lists which pods have which."""

    def __init__(self, daemon: Client, options: Options, pods: Pods | None = None) -> None:
        self._daemon, self._options, self._pods = daemon, options, pods
        self._one = threading.Lock()
        self._asked = slots.Asked()
        self._seen: set[str] = set()
        # When this plugin first saw each grant, monotonic seconds.
        self._since: dict[str, float] = {}

    def allocate(self, containers: list[list[str]], waits: Waits = lambda: True) -> list[Answer]:
        """As kubelet.Allocate."""
        # kubelet does not repeat an allocation that fails: its pod has failed.
        daemon = self._daemon.patient(AWAY_SECONDS)
        devices = daemon.devices()
        wanted = [slots.chosen(names, devices, self._options.sizes) for names in containers]
        if self._options.annotations:
            return [self._annotated(device, those) for device, those in wanted]
        names = [name for names in containers for name in names]
        with self._one:
            turns = [self._turn(daemon, device, of) for (device, _), of in zip(wanted, containers, strict=True)]
            mine = self._asked.begin(names)
        made: list[Json] = []
        try:
            # Without the lock: other calls continue while this one waits for room that is made.
            for (device, those), turn in zip(wanted, turns, strict=True):
                made.append(self._grant(daemon, device, those, turn))
            with self._one:
                self._asked.check(mine, waits=waits())
        except GpushareError:
            for grant in made:
                common.release(self._daemon, grant["id"])
            raise
        finally:
            with self._one:
                self._asked.end(mine)
        return [Answer(cdi=grant["cdi"]) for grant in made]

    def preferred(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """As slots.preferred, of the device on which the node would place a share of this size."""
        try:
            plan = self._daemon.plan(**self._options.sizes.share(size), **self._options.more)
        except GpushareError as error:
            log.debug("which device is preferred: %s", error)
            return slots.preferred(available, must, size)
        return slots.preferred(available, must, size, plan["devices"][0]["id"] if plan["fits"] else None)

    def _turn(self, daemon: Client, device: Json, wanted: list[str]) -> str:
        """Returns the set of grants for slots that are given out: that of another container of the same pod that has
        some of them, else a new one. Ends the grants of other pods that had them, which are gone."""
        there = slots.sets(daemon.grants(key_prefix=slots.key_prefix(device["id"])))
        have = {name: own for name, own in there.items() if not slots.of_set(own).isdisjoint(wanted)}
        may = [name for name, own in have.items() if slots.may_continue(own, wanted) and not self._was_listed(own)]
        # A pod uses the slots of one set again; where several seem to be, its is the latest.
        found = max(may, key=lambda name: int(have[name][-1]["created_ns"]), default=None)
        for name, own in have.items():
            if name == found:
                continue
            # Not all of the set: it may have grants of several pods, where one failed after its allocation.
            for stale in slots.overlapping(own, wanted):
                log.info("grant %s: its slots are given to another pod", stale)
                common.release(self._daemon, stale)
        if found is not None and len(have[found]) >= slots.SET_MAX:
            raise RefusedError(f"{slots.SET_MAX} containers of the pod use the same slots, which is all that may")
        return found or secrets.token_hex(4)

    def _was_listed(self, grants: list[Json]) -> bool:
        """Whether kubelet has listed slots of these grants and lists none any more: their pod is gone."""
        if self._pods is None or self._seen.isdisjoint(grant["id"] for grant in grants):
            return False
        try:
            listed = slots.listed(self._pods.list(self._pods.kubelet()), self._options.resource)
        except GpushareError as error:
            log.debug("pods: %s", error)
            return False
        return slots.of_set(grants).isdisjoint(listed)

    def _annotated(self, device: Json, those: frozenset[int]) -> Answer:
        memory, share = self._options.sizes.of(device, len(those))
        request = {"device": device["id"], "slot-memory": memory, "slot-time": share}
        return Answer(annotations=tuple((oci.PREFIX + name, str(value)) for name, value in request.items()))

    def _grant(self, daemon: Client, device: Json, those: frozenset[int], turn: str) -> Json:
        memory, share = self._options.sizes.of(device, len(those))
        grant = daemon.create(
            wait_seconds=WAIT_SECONDS,
            memory=memory,
            time=share,
            device=device["id"],
            key=slots.key(device["id"], those, secrets.token_hex(4)),
            keep=True,
            in_turn={"set": turn, "parts": sorted(those)},
            **self._options.more,
        )
        log.info("grant %s: %d slots of %s", grant["id"], len(those), device["id"])
        return grant

    def forget(self) -> None:
        """Forgets which grants were listed: another kubelet lists the pods from now on."""
        with self._one:
            self._seen.clear()

    def release_over(self, pods: Pods, kubelet: Identity | None, now: float, *, trusted: bool) -> None:
        """Ends the grants of pods that are gone. `now`: monotonic seconds. `trusted`: `kubelet` has run long enough to
        know all its pods, so that one that it does not list is gone."""
        with self._one:
            ours = [grant for grant in self._daemon.grants() if slots.is_slots(grant)]
            self._seen &= {grant["id"] for grant in ours}
            self._since = {grant["id"]: self._since.get(grant["id"], now) for grant in ours}
            # Also look for grants that are in use: unless seen listed once, they would be taken for new ones later.
            if not any(slots.is_idle(grant) or grant["id"] not in self._seen for grant in ours):
                return
            listed = slots.listed(pods.list(kubelet), self._options.resource)
            self._seen |= {grant["id"] for grant in ours if slots.names(grant) & listed}
            ages = {grant_id: now - since for grant_id, since in self._since.items()}
            for one in slots.over(ours, listed, self._seen, ages, trusted=trusted):
                log.info("grant %s: its pod is gone", one)
                common.release(self._daemon, one)


class DevicePlugin:
    """Serves kubelet until `stop`."""

    def __init__(self, daemon: Client, kubelet: Path, options: Options) -> None:
        """`kubelet`: its directory, /var/lib/kubelet by default."""
        self._daemon, self._options = daemon, options
        self._pods = Pods(kubelet / "pod-resources" / "kubelet.sock")
        self._allocator = Allocator(daemon, options, self._pods)
        directory, calls = kubelet / "device-plugins", self._allocator
        self._plugin = Plugin(directory, options.resource, calls.allocate, calls.preferred)
        self._changed, self._ended = threading.Event(), threading.Event()
        self._changes = Changes(log, logging.WARNING)

    def stop(self) -> None:
        """Makes `run` return soon."""
        self._ended.set()
        self._changed.set()

    def run(self) -> None:
        """Serves until `stop`."""
        for work in (self._watch, self._register):
            threading.Thread(target=work, name=work.__name__, daemon=True).start()
        while not self._ended.is_set():
            self._changed.clear()
            try:
                grants = self._daemon.grants()
                self._plugin.shown.put(slots.slots(self._daemon.devices(), grants, self._options.sizes))
                self._changes.log("")
            except GpushareError as error:
                self._changes.log(f"the slots stay as they were: {error}")
                self._ended.wait(ERROR_SECONDS)
                continue
            self._changed.wait()
            self._ended.wait(SETTLE_SECONDS)
        self._plugin.stop()

    def _register(self) -> None:
        """Keeps the plugin registered and ends the grants of pods that are gone."""
        kubelet, since = None, 0.0
        while not self._ended.is_set():
            self._plugin.keep()
            if self._pods.kubelet() != kubelet:
                kubelet, since = self._pods.kubelet(), time.monotonic()
                self._allocator.forget()
            trusted = time.monotonic() - since >= TRUST_SECONDS
            try:
                self._allocator.release_over(self._pods, kubelet, time.monotonic(), trusted=trusted)
            except GpushareError as error:
                log.debug("pods: %s", error)
            self._ended.wait(LOOK_SECONDS)

    def _watch(self) -> None:
        """Wakes `run` whenever something may have changed."""
        common.watch(lambda: self._daemon, self._ended, self._changed.set, retry_seconds=ERROR_SECONDS)
