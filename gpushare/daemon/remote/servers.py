"""Starts a carrier's server in a grant: a supervisor is made, the grant is bound to it, and only then it makes its
namespaces and starts the server (gpushare/sandbox/messages.py says why). What fails on the way leaves nothing: the
supervisor ends, and the grant is as it was."""

import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator

from gpushare.carriers import contract
from gpushare.daemon.grants.grants import Grants
from gpushare.daemon.grants.serving import Serving as Shares
from gpushare.daemon.grants.transitions import Transitions
from gpushare.daemon.remote.carriers import PATH, Serving
from gpushare.daemon.remote.sandbox import Sandbox
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import ServerRecord
from gpushare.daemon.state.state import State
from gpushare.errors import FailedError, GpushareError, RefusedError
from gpushare.inject import grantdir, process
from gpushare.inject.node import Node
from gpushare.policy.grants.lifecycle import Phase
from gpushare.processes import helper
from gpushare.sandbox import messages

log = logging.getLogger(__name__)

UIDS = range(1_900_000_000, 1_900_065_536)
"""Of servers: one of its own for each living grant. Above those that Linux distributions, systemd and container engines
give out."""
_PORT = 7434
"""Where servers listen: each has a network of its own."""
_PIDS = 512


class Servers:
    """Belongs to the event loop."""

    def __init__(
        self,
        state: State,
        hardware: Hardware,
        inject: Node,
        grants: Grants,
        transitions: Transitions,
        shares: Shares,
        sandbox: Sandbox,
    ) -> None:
        self._state, self._hardware, self._inject = state, hardware, inject
        self._grants, self._transitions, self._shares, self._sandbox = grants, transitions, shares, sandbox

    @contextlib.asynccontextmanager
    async def started(self, live: Live, carrier: Serving, host_memory: int) -> AsyncIterator[socket.socket]:
        """Starts a server in a grant in which nothing runs; yields the relay's end of its connector, which is closed
        after the block: when no copy is left, the server ends.

        Raises GpushareError where it does not start. Then, and after an error in the block, the grant is as before,
        unless it has ended meanwhile.
        """
        before = live.record.phase
        ours, theirs = socket.socketpair()
        number, bound = 0, False
        live.starting = True
        try:
            with ours:
                with theirs:
                    number, pid = await self._sandbox.begin(theirs)
                self._check_unused(live, before)
                record = ServerRecord(carrier=carrier.name, uid=self._uid(), host_memory=host_memory)
                bound = True
                self._grants.serve(live, pid, record.uid)
                live.record.server, live.record.program = record, carrier.program
                self._state.save(live.record)
                await self._shares.settled()
                await self._sandbox.go(self._go(live, carrier, record, number))
                self._check_active(live)
                yield ours
        except BaseException as error:
            if number:
                self._sandbox.cancel(number)
            live.starting = False
            if bound and isinstance(error, (GpushareError, OSError)):  # otherwise the daemon stops
                self._undo(live, before, error)
            raise
        live.starting = False
        self._transitions.emptied_if_dead(live)
        self._check_active(live)

    def _undo(self, live: Live, before: Phase, error: BaseException) -> None:
        log.warning("grant %s: no server of a carrier is started in it: %s", live.id, error)
        with contextlib.suppress(GpushareError, OSError):  # then it has ended, for that reason
            if before is Phase.RESERVED and len(live.workloads) <= 1:  # a kept one may be in use by others meanwhile
                self._transitions.undo(live)
            else:
                self._transitions.emptied_if_dead(live)

    def _check_active(self, live: Live) -> None:
        """Raises RefusedError where it has ended meanwhile."""
        if live.record.phase is not Phase.ACTIVE:
            raise _over(live)

    def _check_unused(self, live: Live, before: Phase) -> None:
        """Making the supervisor took a moment, in which others may have used the grant."""
        if live.record.phase.ended:
            raise _over(live)
        if live.record.phase is not before:
            raise RefusedError(f"grant {live.id} is in use by something else meanwhile: create another")

    def driver(self) -> dict[str, str]:
        """Variables with which a carrier's program starts that is only asked for its version: servers are linked with
        the driver."""
        return process.driver(self._inject)

    def _uid(self) -> int:
        taken = {live.record.server.uid for live in self._state if live.record.server is not None}
        if len(taken) >= len(UIDS) // 2:
            raise FailedError(f"{len(taken)} grants have a server's uid: release some")
        while (uid := UIDS.start + secrets.randbelow(len(UIDS))) in taken:
            pass
        return uid

    def _go(self, live: Live, carrier: Serving, record: ServerRecord, number: int) -> messages.Go:
        base = contract.server_env(carrier.server, _PORT)
        own = process.environment(self._state.layout, live.id, self._inject)
        granted = self._hardware.granted(live.record)
        nodes = [*self._inject.common_devices, *(node for device in granted for node in device.nodes)]
        return messages.Go(
            number=number,
            grant_dir=str(grantdir.self_dir(self._state.layout, live.id)),
            argv=[carrier.program, *contract.argv(carrier.server, _PORT)[1:]],
            env=process.merge({"PATH": PATH, **helper.ENVIRONMENT, **base}, own, process.UNSET),
            port=_PORT,
            seconds=self._state.timing.served,
            uid=record.uid,
            host_memory=record.host_memory,
            pids=_PIDS,
            devices=[node.path for node in nodes],
            node_socket=str(self._state.layout.socket),
        )


def _over(live: Live) -> RefusedError:
    why = live.record.life.reason or "its server has"
    return RefusedError(f"grant {live.id} ended while its server was started ({why}): create another")
