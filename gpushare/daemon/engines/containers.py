"""The calls that an engine makes for a container, in order: `edit`, then `created`.

Engines that do not read CDI start with `edit`; with CDI they start with `place`.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from socket import socket
from typing import TypeVar

import msgspec

from gpushare.api.engines import (
    WAIT_SECONDS,
    ContainerState,
    OciEditAnswer,
    OciEditRequest,
    OciPlaceAnswer,
    OciPlaceRequest,
    PlacedMount,
)
from gpushare.api.types import BindRequest, GrantRequest
from gpushare.daemon.engines.attempts import Attempts
from gpushare.daemon.grants.grants import Grants
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.host.peer import Peer, open_pidfd
from gpushare.daemon.host.readers import Readers, Reading
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live, Prepared
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.workloads import workloads
from gpushare.errors import FailedError, MakingRoomError, RefusedError, UsageError
from gpushare.inject import cdi, edits, grantdir, grantfiles, mounts, oci
from gpushare.inject.node import Node
from gpushare.inject.pod import id_of, pod_of
from gpushare.policy.grants import lifecycle
from gpushare.policy.grants.lifecycle import Kind, Phase
from gpushare.processes.halfopen import has_gone
from gpushare.reader.messages import Asks, Edit, Edited

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_RUNTIME_ENDED = "the runtime ended before it started the container"
_CALLER_GONE = "what asked for it did not wait for the answer"
_PAUSE_SECONDS, _PAUSE_MAX_SECONDS = 0.05, 2.0
"""Shortest and longest time between two looks at whether there is room for a container."""
WAITING_MAX = 16
"""Starts that wait at once: each takes one of the answers that root may have in the making (http/reception.py)."""
_WAITING_BYTES = 1 << 20
"""A larger config does not wait: the daemon has one at a time (http/api.py)."""
_PID_MAX = 1 << 22  # PID_MAX_LIMIT of include/linux/threads.h


def _check_guarded(live: Live, pid: int) -> None:
    """Raises RefusedError for a container that could open devices it was not granted: its engine was given all of
    them."""
    workload = workloads.of_process(live, pid)
    if workload is not None and (why := workload.record.unguarded):
        raise RefusedError(
            f"{cdi.device_name(cdi.ANY)} would open all devices to it ({why}): name the CDI device of one of them, "
            "or of a grant"
        )


def _mounts(edited: Edited) -> list[PlacedMount]:
    return msgspec.convert(edited.mounts, list[PlacedMount])


def _taken(live: Live, bundle: str, config: bytes) -> Prepared | None:
    """What was worked out when this config was made, for its container; for one only."""
    prepared, live.prepared = live.prepared, None
    return prepared if prepared is not None and prepared.is_of(bundle, config) else None


class Containers:
    """Serves the runtime wrapper and the hooks."""

    def __init__(
        self,
        state: State,
        grants: Grants,
        transitions: Transitions,
        hardware: Hardware,
        node: Node,
        readers: Readers,
        attempts: Attempts,
    ) -> None:
        self._state, self._grants, self._transitions = state, grants, transitions
        self._hardware, self._node, self._readers = hardware, node, readers
        self._attempts = attempts
        self._waiting = 0

    async def edit(self, peer: Peer, asked: OciEditRequest, connection: socket) -> OciEditAnswer:
        """Gives a container what its annotations ask for: a grant, bound, and the configuration with the grant in it.

        Without gpushare's annotations the configuration stays as it is. A grant that was made for a container whose
        configuration cannot be edited ends, and so does one whose caller or runtime ends meanwhile. Raises UsageError
        for such a configuration, what Grants.create raises, and what Readers raises.
        """
        return await self._once_there_is_room(
            lambda: self._edit(peer, asked, connection), asked.wait_seconds, asked.config, connection
        )

    async def _once_there_is_room(
        self, start: Callable[[], Awaitable[_Answer]], wait_seconds: float, config: msgspec.Raw, connection: socket
    ) -> _Answer:
        """What `start` returns. It is repeated while memory is moved away for the container with this config, if that
        is expected to end within `wait_seconds` from now; in between the readers serve others. Raises MakingRoomError
        where it cannot wait, and FailedError where the caller has gone."""
        until = time.monotonic() + (wait_seconds if len(bytes(config)) <= _WAITING_BYTES else 0)
        with contextlib.ExitStack() as place:  # kept while it asks again, too: readers may be slow
            waits = False
            while True:
                try:
                    return await start()
                except MakingRoomError as later:
                    pause = max(later.estimate_seconds or 0, _PAUSE_SECONDS)
                    if time.monotonic() + pause > until or (not waits and self._waiting >= WAITING_MAX):
                        raise MakingRoomError(
                            f"{later}; the container is not started: start it again in about {pause:.1f} s, when there"
                            " is room",
                            later.estimate_seconds,
                        ) from None
                if not waits:
                    waits = place.enter_context(self._one_more_waits())
                await asyncio.sleep(min(pause, _PAUSE_MAX_SECONDS))
                if has_gone(connection):
                    raise FailedError(_CALLER_GONE)

    @contextlib.contextmanager
    def _one_more_waits(self) -> Iterator[bool]:
        self._waiting += 1
        try:
            yield True
        finally:
            self._waiting -= 1

    async def _edit(self, peer: Peer, asked: OciEditRequest, connection: socket) -> OciEditAnswer:
        async with self._readers.reading(bytes(asked.config), asked.bundle) as reading:
            found = await reading.asks("annotations")
            if found.share is None:
                self._attempts.note(asked, found)
                return OciEditAnswer(config=asked.config, grant=None)
            if asked.bundle is None and "grant" not in found.share:
                found.share["ttl_seconds"] = oci.PREPARE_SECONDS
            live, new = self._grant(peer, found.share)
            log.debug("container grant=%s new=%s bundle=%r starts=%s", live.id, new, asked.bundle, asked.starts)
            with self._ends_unless_done(live, new=new):
                if new and asked.starts:
                    self._expect_start(live, peer, connection)
                self._grants.bind(peer, live.id, BindRequest(kind="container"), connection)
                edited = await self._edited(live, reading, asked.bundle)
                if asked.starts and asked.bundle is not None and edited.seen:
                    live.prepared = Prepared.of(asked.bundle, edited.config, edited.root, _mounts(edited))
                if new and has_gone(connection):
                    raise FailedError(_CALLER_GONE)  # and with it the grant
        return OciEditAnswer(config=msgspec.Raw(edited.config), grant=live.id)

    async def place(self, peer: Peer, name: str, asked: OciPlaceRequest, connection: socket) -> OciPlaceAnswer:
        """Serves the createRuntime hook of a container. Returns what the container has to see of its share.

        `name`: a grant, or a CDI device that represents none: then the annotations, or else the environment, ask for a
        grant, which is made now. Raises UsageError where they do not, what Grants.create and `created` raise, and what
        Readers raises.
        """
        return await self._once_there_is_room(
            lambda: self._place(peer, name, asked), WAIT_SECONDS, asked.config, connection
        )

    async def _place(self, peer: Peer, name: str, asked: OciPlaceRequest) -> OciPlaceAnswer:
        state, config = asked.state, bytes(asked.config)
        if state.bundle is None or not state.bundle.startswith("/"):
            raise UsageError("the OCI state has no bundle: is this the createRuntime hook?")
        live = self._of_container(name, state.pid)
        if live is not None and (prepared := _taken(live, state.bundle, config)) is not None:
            return self._placed(live, name, state, prepared.root, prepared.mounts)
        async with self._readers.reading(config, state.bundle) as reading:
            new = False
            if live is None:
                live, new = self._of_device(peer, name, await reading.asks("environment"))
            with self._ends_unless_done(live, new=new):
                edited = await self._edited(live, reading, state.bundle, created=True)
                if not edited.seen:
                    log.warning(
                        "%s is not there for the daemon: copies of the driver in its image are not mounted over, they"
                        " go past the interposer",
                        edited.root,
                    )
                return self._placed(live, name, state, edited.root, _mounts(edited))

    @contextlib.contextmanager
    def _ends_unless_done(self, live: Live, *, new: bool) -> Iterator[None]:
        """Ends a grant that is new if its container cannot have it."""
        try:
            yield
        except BaseException as error:
            if new:
                self._transitions.fail(live, str(error) or "the daemon stopped before its container was started")
            raise

    def _placed(
        self, live: Live, name: str, state: ContainerState, root: str, mounts: list[PlacedMount]
    ) -> OciPlaceAnswer:
        hidden = self._hardware.hidden(live.record) if name != live.id else []
        self.created(live.id, state)
        if name == cdi.ANY and hidden:
            _check_guarded(live, state.pid)
        return OciPlaceAnswer(grant=live.id, root=root, mounts=mounts, hidden=hidden)

    def _of_container(self, name: str, pid: int) -> Live | None:
        """The grant of a container that is created: the one that is named, or has its process already. None: its CDI
        device represents no grant, and it has none yet."""
        if name != cdi.ANY and all(device.id != name for device in self._state.devices):
            return self._state.live(name)
        if not mounts.placeable():
            raise RefusedError(
                f"{cdi.device_name(name)} needs Linux 5.12: name a grant's device, or use gpushare's runtime or hook"
            )
        return next((live for live in self._state if workloads.of_process(live, pid) is not None), None)

    def _of_device(self, peer: Peer, name: str, asks: Asks) -> tuple[Live, bool]:
        """The grant that a container asks for by a CDI device that represents none, and whether it is new. Whoever
        named the device asks for a share; so the environment, which the image is part of, may give its size."""
        share = asks.share
        if share is None:
            raise UsageError(
                f"{cdi.device_name(name)} is a share of a size that the container says, and it says none: give "
                f"{oci.PREFIX}memory and {oci.PREFIX}time as annotations, or GPUSHARE_MEMORY and GPUSHARE_TIME as "
                "variables of its environment"
            )
        if name != cdi.ANY and "grant" not in share and share.setdefault("device", name) != name:
            raise UsageError(f"annotation {oci.PREFIX}device is {share['device']}, and the CDI device is {name}")
        return self._grant(peer, share)

    def _grant(self, peer: Peer, share: dict[str, str | float]) -> tuple[Live, bool]:
        if "grant" in share:
            return self._state.live(str(share["grant"])), False
        try:
            request = msgspec.convert(share, GrantRequest)
        except msgspec.ValidationError as error:
            raise UsageError(f"what the container asks for is no request: {error}") from None
        return self._grants.create(peer, request)

    async def _edited(self, live: Live, reading: Reading, bundle: str | None, *, created: bool = False) -> Edited:
        """Edits a config for the grant, and writes the grant's files that depend on the image. Raises NotFoundError
        where the grant has ended meanwhile."""
        layout, node = self._state.layout, self._node
        wanted = edits.container(layout, live.id, node, self._hardware.granted(live.record))
        edit = Edit(
            bundle=bundle,
            edits=wanted,
            lib_dir=str(node.lib_dir),
            preload_file=str(grantdir.preload_file(layout, live.id)),
            cache_file=str(grantdir.cache_file(layout, live.id)),
            created=created,
            movable=mounts.placeable(),
        )
        edited = await reading.edited(edit)
        self._state.live(live.id)
        shared, lines = live.record.life.keep, [os.fsdecode(line) for line in edited.preload]
        grantfiles.write_preload(layout, live.id, wanted.preload, lines, shared=shared)
        if edited.cache is not None:
            grantfiles.write_cache(layout, live.id, edited.cache, shared=shared)
        return edited

    def _expect_start(self, live: Live, peer: Peer, connection: socket) -> None:
        """Watches the calling process. It becomes the runtime, which ends only after the hook, or because the start
        failed. Raises FailedError where it has ended."""
        try:
            live.starter = open_pidfd(connection, peer.pid)
        except OSError:
            raise FailedError(_RUNTIME_ENDED) from None
        asyncio.get_running_loop().add_reader(live.starter, self._start_failed, live)

    def _start_failed(self, live: Live) -> None:
        workloads.forget_starter(live)
        if live.record.phase in (Phase.RESERVED, Phase.BOUND):
            self._transitions.fail(live, _RUNTIME_ENDED)

    def created(self, grant_id: str, container: ContainerState) -> Live:
        """Serves the createRuntime hook: takes the first process of a container that is about to start into its grant.
        A repeated call is fine.

        Raises UsageError where its OCI state has no pid, RefusedError where a plain process has the grant, FailedError
        where the process has ended.
        """
        live = self._state.live(grant_id)
        pid = container.pid
        if not 1 < pid <= _PID_MAX or pid == os.getpid():
            raise UsageError("the OCI state has no pid of a container: is this the createRuntime hook?")
        if workloads.of_process(live, pid) is not None:
            return live
        if live.record.life.kind is Kind.PROCESS:
            raise RefusedError(f"grant {grant_id} is in use by process {live.record.life.pid}: create another")
        with workloads.open_process(pid) as process:
            if live.record.phase.unused:
                self._grants.check_walls()
                self._transitions.send(live, lifecycle.Bound(now_ns(), Kind.CONTAINER))
            live.record.pod, live.record.container = pod_of(container.annotations), id_of(container.id)
            self._grants.start(live, process, lambda: workloads.container_cgroup(pid))
        workloads.forget_starter(live)
        return live
