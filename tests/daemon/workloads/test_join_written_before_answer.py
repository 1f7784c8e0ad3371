"""A join is confirmed only once it is written to the ledger, and refused if the write fails."""

import asyncio
import os
import socket

import pytest
from pages.joinmessages import answered, request
from pages.madepages import limits_page, usage_page

from gpushare._native import ffi
from gpushare.binding.page_words import DeviceLimits
from gpushare.binding.wire import NO_SLOT, JoinError
from gpushare.daemon.workloads.door import Door
from gpushare.daemon.workloads.tenant_socket import Rules, TenantSocket
from gpushare.errors import FailedError


@pytest.fixture
def pages(tmp_path):
    limits = limits_page(tmp_path / "limits", "g-1", [DeviceLimits(bytes(16), 1 << 30, 0, 100, 1000)])
    usage = usage_page(tmp_path / "usage", "g-1")
    with limits, usage:
        yield limits, usage


class Written:
    """Records the calls of the rules, in order."""

    def __init__(self):
        self.full = False
        self.written = []
        self.tenant = None

    def write(self):
        self.written.append([record.slot for record in self.tenant.records])
        if self.full:
            raise FailedError("the ledger cannot be written: disk full")

    def rules(self):
        return Rules(lambda _: (JoinError.OK, ""), lambda _: None, lambda: None, self.write)


def run(tmp_path, pages, scene):
    async def play():
        written, bell, door = Written(), os.eventfd(0), Door()
        written.tenant = tenant = TenantSocket(tmp_path, *pages, bell, written.rules(), door)
        tenant.listen()
        try:
            await scene(tenant, written)
        finally:
            tenant.close()
            door.close()
            os.close(bell)

    asyncio.run(play())


async def join(tmp_path):
    """(the connection, the reply)"""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    connection.connect(str(tmp_path / "grant.sock"))
    connection.send(request())
    reply = await asyncio.wait_for(
        asyncio.get_running_loop().sock_recv(connection, ffi.sizeof("struct gs_join_reply")), 20
    )
    return connection, answered(reply)


def test_a_crowd_is_written_in_few_pieces_each_before_its_answers(tmp_path, pages):
    async def scene(tenant, written):
        found = await asyncio.gather(*(join(tmp_path) for _ in range(100)))
        assert {answer.error for _, answer in found} == {JoinError.OK}
        assert sorted(answer.slot for _, answer in found) == list(range(100))
        assert sorted(written.written[-1]) == list(range(100))
        assert len(written.written) < 80
        for connection, _ in found:
            connection.close()

    run(tmp_path, pages, scene)


def test_what_cannot_be_written_is_refused_with_the_reason_and_keeps_no_slot(tmp_path, pages):
    async def scene(tenant, written):
        written.full = True
        connection, answer = await join(tmp_path)
        assert (answer.error, answer.slot) == (JoinError.REFUSED, NO_SLOT)
        assert b"disk full" in ffi.string(answer.message)
        assert tenant.records == []
        connection.close()
        written.full = False
        connection, answer = await join(tmp_path)
        assert answer.error == JoinError.OK
        connection.close()

    run(tmp_path, pages, scene)


def test_one_that_went_before_it_was_notified_leaves_nothing(tmp_path, pages):
    async def scene(tenant, written):
        first, _ = await join(tmp_path)
        # This request waits behind the first one; its connection is closed by the time it is processed.
        gone = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gone.connect(str(tmp_path / "grant.sock"))
        gone.send(request())
        gone.close()
        other, answer = await join(tmp_path)
        assert answer.error == JoinError.OK
        deadline = asyncio.get_running_loop().time() + 20
        while len(tenant.records) != 2:
            assert asyncio.get_running_loop().time() < deadline, tenant.records
            await asyncio.sleep(0.005)
        first.close()
        other.close()

    run(tmp_path, pages, scene)
