"""The calls that an engine makes for a container, in order: `edit`, then `created`.

Engines that do not read CDI start with `edit`; with CDI they start with `place`.
"""

import asyncio
import contextlib
import logging
import os
from socket import socket
from typing import Any

import msgspec

from gpushare.api.engines import OciEditAnswer, OciEditRequest, OciPlaceAnswer, OciPlaceRequest
from gpushare.api.types import BindRequest, GrantRequest
from gpushare.daemon.engines.attempts import Attempts
from gpushare.daemon.grants.grants import Grants
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.host.peer import Peer, open_pidfd
from gpushare.daemon.host.readers import Readers
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.workloads import workloads
from gpushare.errors import FailedError, GpushareError, RefusedError, UsageError
from gpushare.halfopen import has_gone
from gpushare.inject import cdi, edits, grantdir, grantfiles, mounts, oci
from gpushare.inject.node import Node
from gpushare.inject.pod import pod_of
from gpushare.policy.grants import lifecycle
from gpushare.policy.grants.lifecycle import Kind, Phase
from gpushare.reader import Edit

log = logging.getLogger(__name__)

_RUNTIME_ENDED = "the runtime ended before it started the container"
_CALLER_GONE = "what asked for it did not wait for the answer"
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

    async def edit(self, peer: Peer, asked: OciEditRequest, connection: socket) -> OciEditAnswer:
        """Gives a container what its annotations ask for: a grant, bound, and the configuration with the grant in it.

        Without gpushare's annotations the configuration stays as it is. A grant that was made for a container whose
        configuration cannot be edited ends, and so does one whose caller or runtime ends meanwhile. Raises UsageError
        for such a configuration, what Grants.create raises, and what Readers raises.
        """
        text = bytes(asked.config)
        wanted = await self._readers.asks(text)
        if wanted is None:
            with contextlib.suppress(GpushareError):
                await self._attempts.look(asked)
            return OciEditAnswer(config=asked.config, grant=None)
        if asked.bundle is None and "grant" not in wanted:
            wanted["ttl_seconds"] = oci.PREPARE_SECONDS
        live, new = self._grant(peer, wanted)
        log.debug("container grant=%s new=%s bundle=%r starts=%s", live.id, new, asked.bundle, asked.starts)
        try:
            if new and asked.starts:
                self._expect_start(live, peer, connection)
            self._grants.bind(peer, live.id, BindRequest(kind="container"), connection)
            edited = await self._edited(live, text, asked.bundle)
            if new and has_gone(connection):
                raise FailedError(_CALLER_GONE)  # noqa: TRY301 - and with it the grant
        except BaseException as error:
            if new:
                self._transitions.fail(live, str(error) or "the daemon stopped before its container was started")
            raise
        return OciEditAnswer(config=msgspec.Raw(edited), grant=live.id)

    async def place(self, peer: Peer, name: str, asked: OciPlaceRequest) -> OciPlaceAnswer:
        """Serves the createRuntime hook of a container. Returns what the container has to see of its share.

        `name`: a grant, or a CDI device that represents none: then the annotations, or else the environment, ask for a
        grant, which is made now. Raises UsageError where they do not, what Grants.create and `created` raise, and what
        Readers raises.
        """
        state, config = asked.state, bytes(asked.config)
        if state.bundle is None or not state.bundle.startswith("/"):
            raise UsageError("the OCI state has no bundle: is this the createRuntime hook?")
        live, new = await self._placed(peer, name, state.pid, config)
        try:
            answer = await self._seen(live, name, config, state.bundle)
            self.created(live.id, {"pid": state.pid, "annotations": state.annotations})
            if name == cdi.ANY and answer.hidden:
                _check_guarded(live, state.pid)
        except BaseException as error:
            if new:
                self._transitions.fail(live, str(error) or "the daemon stopped before its container was started")
            raise
        return answer

    async def _placed(self, peer: Peer, name: str, pid: int, config: bytes) -> tuple[Live, bool]:
        """The grant of a container, and whether it was made now."""
        if name != cdi.ANY and all(device.id != name for device in self._state.devices):
            return self._state.live(name), False
        if not mounts.placeable():
            raise RefusedError(
                f"{cdi.device_name(name)} needs Linux 5.12: name a grant's device, or use gpushare's runtime or hook"
            )
        for live in self._state:
            if workloads.of_process(live, pid) is not None:
                return live, False
        # Whoever named this device asks for a share; so the environment, which the image is part of, may give its size.
        wanted = await self._readers.asks(config, environment=True)
        if wanted is None:
            raise UsageError(
                f"{cdi.device_name(name)} is a share of a size that the container says, and it says none: give "
                f"{oci.PREFIX}memory and {oci.PREFIX}time as annotations, or GPUSHARE_MEMORY and GPUSHARE_TIME as "
                "variables of its environment"
            )
        if name != cdi.ANY and "grant" not in wanted and wanted.setdefault("device", name) != name:
            raise UsageError(f"annotation {oci.PREFIX}device is {wanted['device']}, and the CDI device is {name}")
        return self._grant(peer, wanted)

    async def _seen(self, live: Live, name: str, config: bytes, bundle: str) -> OciPlaceAnswer:
        """What the container has to see of its grant, and which device nodes it must not."""
        hidden = self._hardware.hidden(live.record) if name != live.id else []
        edit = self._edit(live, bundle, created=True)
        root, found, lines, cached = await self._readers.placed(config, edit)
        self._write(live, edit, lines, cached)
        return OciPlaceAnswer(grant=live.id, root=root, mounts=found, hidden=hidden)

    def _grant(self, peer: Peer, wanted: dict[str, str | int]) -> tuple[Live, bool]:
        if "grant" in wanted:
            return self._state.live(str(wanted["grant"])), False
        try:
            request = msgspec.convert(wanted, GrantRequest)
        except msgspec.ValidationError as error:
            raise UsageError(f"what the container asks for is no request: {error}") from None
        return self._grants.create(peer, request)

    async def _edited(self, live: Live, config: bytes, bundle: str | None) -> bytes:
        edit = self._edit(live, bundle)
        edited, lines, cached = await self._readers.edited(config, edit)
        self._write(live, edit, lines, cached)
        return edited

    def _edit(self, live: Live, bundle: str | None, *, created: bool = False) -> Edit:
        layout, node = self._state.layout, self._node
        granted = self._hardware.granted(live.record)
        return Edit(
            bundle=bundle,
            edits=edits.container(layout, live.id, node, granted),
            lib_dir=str(node.lib_dir),
            preload_file=str(grantdir.preload_file(layout, live.id)),
            cache_file=str(grantdir.cache_file(layout, live.id)),
            created=created,
            movable=mounts.placeable(),
        )

    def _write(self, live: Live, edit: Edit, lines: list[str], cached: bytes | None) -> None:
        """Writes the grant's files that depend on the image. Raises NotFoundError where the grant has ended
        meanwhile."""
        self._state.live(live.id)
        layout, shared = self._state.layout, live.record.life.keep
        grantfiles.write_preload(layout, live.id, edit.edits.preload, lines, shared=shared)
        if cached is not None:
            grantfiles.write_cache(layout, live.id, cached, shared=shared)

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

    def created(self, grant_id: str, container: Any) -> Live:
        """Serves the createRuntime hook: takes the first process of a container that is about to start into its grant.
        A repeated call is fine.

        `container`: its OCI state. Raises UsageError where that has no pid, RefusedError where a plain process has the
        grant, FailedError where the process has ended.
        """
        live = self._state.live(grant_id)
        pid = container.get("pid") if isinstance(container, dict) else None
        if not isinstance(pid, int) or isinstance(pid, bool) or not 1 < pid <= _PID_MAX or pid == os.getpid():
            raise UsageError("the OCI state has no pid of a container: is this the createRuntime hook?")
        if workloads.of_process(live, pid) is not None:
            return live
        if live.record.life.kind is Kind.PROCESS:
            raise RefusedError(f"grant {grant_id} is in use by process {live.record.life.pid}: create another")
        with workloads.open_process(pid) as process:
            if live.record.phase.unused:
                self._grants.check_walls()
                self._transitions.send(live, lifecycle.Bound(now_ns(), Kind.CONTAINER))
            live.record.pod = pod_of(container.get("annotations"))
            self._grants.start(live, process, lambda: workloads.container_cgroup(pid))
        workloads.forget_starter(live)
        return live
