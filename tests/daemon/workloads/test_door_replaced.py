"""One door after another in one process: what grants keep, and what is asked again."""

import asyncio
import contextlib
import os
import signal
import socket

from pages.joinmessages import answered, request
from pages.madepages import limits_page, usage_page

from gpushare.binding.page_words import DeviceLimits
from gpushare.binding.wire import JoinError
from gpushare.daemon.workloads import door
from gpushare.daemon.workloads.door import Door
from gpushare.daemon.workloads.tenant_socket import Rules, TenantSocket
from gpushare.door import grants


class House:
    """A door and its grants, in this process's event loop."""

    def __init__(self, tmp_path, count):
        self.door, self.bell = Door(), os.eventfd(0)
        self.open, self.tenants, self.paths = contextlib.ExitStack(), [], []
        self.admit = lambda _: (JoinError.OK, "")
        for number in range(count):
            home = tmp_path / str(number)
            home.mkdir()
            device = DeviceLimits(bytes(16), 1 << 30, 0, 100, 1000)
            limits = self.open.enter_context(limits_page(home / "limits", "g-1", [device]))
            usage = self.open.enter_context(usage_page(home / "usage", "g-1"))
            rules = Rules(lambda who: self.admit(who), lambda _: None, lambda: None, lambda: None)
            self.tenants.append(TenantSocket(home, limits, usage, self.bell, rules, self.door))
            self.tenants[-1].listen()
            self.paths.append(str(home / "grant.sock"))

    def close(self):
        for tenant in self.tenants:
            tenant.close()
        self.door.close()
        self.open.close()
        os.close(self.bell)

    async def new_door(self):
        before = self.door._process.pid
        os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(20):
            while self.door._process.pid == before or not self.door._socket.fileno() >= 0:
                await asyncio.sleep(0.005)


def live_in(tmp_path, count, scene):
    async def run():
        house = House(tmp_path, count)
        try:
            await scene(house)
        finally:
            house.close()

    asyncio.run(run())


async def asks(path, *slot):
    """Joins, retrying as the interposer does; returns the connection and the answer."""
    async with asyncio.timeout(20):
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(path)
                connection.send(request(*slot))
                connection.setblocking(False)
                if message := await asyncio.get_running_loop().sock_recv(connection, 256):
                    return connection, answered(message)
            except OSError:
                pass
            connection.close()
            await asyncio.sleep(0.01)


def test_a_socket_that_cannot_be_made_delays_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(door, "_START_AGAIN_S", 0.05)

    async def scene(house):
        failing, bind = house.tenants[0], house.tenants[0].bind
        failures = []

        def fail():
            failures.append(1)
            raise OSError(24, "too many open files")

        monkeypatch.setattr(failing, "bind", fail)
        await house.new_door()
        for path in house.paths[1:]:
            connection, answer = await asks(path)
            assert answer.error == JoinError.OK
            connection.close()
        house.tenants.pop().close()  # while the failing one still fails
        assert failures
        monkeypatch.setattr(failing, "bind", bind)
        connection, answer = await asks(house.paths[0])
        assert answer.error == JoinError.OK
        connection.close()

    live_in(tmp_path, 3, scene)


def test_a_grant_that_ends_while_there_is_no_door(tmp_path, monkeypatch):
    """The grant has connected processes, which only the killed door knew."""
    monkeypatch.setattr(door, "_START_AGAIN_S", 3600)

    async def scene(house):
        connections = [(await asks(path))[0] for path in house.paths]
        os.kill(house.door._process.pid, signal.SIGKILL)  # so soon after its start that the next door is delayed
        async with asyncio.timeout(20):
            while not house.door.restarts:
                await asyncio.sleep(0.005)
        house.tenants.pop(0).close()
        house.door._timer.cancel()
        house.door._again()
        connection, answer = await asks(house.paths[1])
        assert answer.error == JoinError.OK
        for one in (*connections, connection):
            one.close()

    live_in(tmp_path, 2, scene)


def test_one_that_hears_no_answer_of_a_second_door_keeps_its_slot(tmp_path):
    """Each door numbers connections from the start: the second door's first one is not mistaken for the first
    door's."""

    async def scene(house):
        [tenant] = house.tenants
        first, answer = await asks(house.paths[0])
        await house.new_door()
        os.kill(house.door._process.pid, signal.SIGSTOP)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
            gone.connect(house.paths[0])
            gone.send(request(answer.slot, answer.generation))
        os.kill(house.door._process.pid, signal.SIGCONT)
        other, _ = await asks(house.paths[0])
        assert [record.slot for record in tenant.records] == [0, 1]
        first.close()
        other.close()

    live_in(tmp_path, 1, scene)


def test_every_request_is_answered_though_the_daemon_fails_at_each(tmp_path):
    async def scene(house):
        house.admit = lambda _: {}["no such thing"]
        for _ in range(grants._ASKED_MAX + 1):
            connection, answer = await asks(house.paths[0])
            assert answer.error == JoinError.REFUSED
            connection.close()
        house.admit = lambda _: (JoinError.OK, "")
        connection, answer = await asks(house.paths[0])
        assert answer.error == JoinError.OK
        connection.close()

    live_in(tmp_path, 1, scene)
