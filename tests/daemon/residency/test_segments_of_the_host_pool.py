"""Segments of the host pool: who gets one over grant.sock, what it is, and how it comes back."""

import errno
import fcntl
import os
import signal

import pytest
from pages.hosted import GRANT, MIB, in_a_house, until

from gpushare.binding.wire import SEGMENT_MOST, JoinError
from gpushare.daemon.residency.pool import HostPool
from gpushare.daemon.timing import Timing
from gpushare.errors import FailedError, RefusedError
from gpushare.policy.residency.pool import Counts

OK, FULL, REFUSED = JoinError.OK, JoinError.FULL, JoinError.REFUSED


@pytest.mark.promise("host-pool-own-bytes")
def test_a_member_gets_a_sealed_file_of_zeros_and_gives_it_back(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 32 * MIB)
        process = await house.joined()
        assert await process(f"segment({16 * MIB})") == [OK, "", 1]
        assert house.pool.counts == Counts(32 * MIB, 16 * MIB, 16 * MIB)
        assert house.written[-1] == [16 * MIB]
        assert await process("os.fstat(sealed[0]).st_size") == 16 * MIB
        assert await process("os.fstat(sealed[0]).st_blocks * 512") == 16 * MIB, "taken from the node at once"
        seals = await process("fcntl.fcntl(sealed[0], fcntl.F_GET_SEALS)")
        wanted = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        assert seals & (wanted | fcntl.F_SEAL_WRITE) == wanted
        assert await process("os.pread(sealed[0], 1 << 24, 0).count(0)") == 16 * MIB
        for grows in (f"os.ftruncate, sealed[0], {32 * MIB}", "os.ftruncate, sealed[0], 0"):
            assert await process(f"fails({grows})") == errno.EPERM
        assert await process("fails(fcntl.fcntl, sealed[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)") == errno.EPERM
        assert await process("write(0)") == 16 * MIB
        assert await process("segment(0)") == [OK, "", 0]
        await until(lambda: house.pool.counts == Counts(32 * MIB, 32 * MIB, 0), "all is back")
        assert await process("os.fstat(sealed[0]).st_blocks") == 0, "what it wrote is gone, although it kept the file"
        assert house.written[-1] == [0]

    in_a_house(tmp_path, scene)


@pytest.mark.promise("host-pool-own-bytes")
@pytest.mark.promise("host-pool-is-what-it-costs")
def test_more_than_is_reserved_is_refused_and_other_requests_in_words(tmp_path):
    async def scene(house):
        process = await house.joined()
        assert await process(f"segment({2 * MIB})") == [FULL, "the grant has 0B of the host pool left, not 2MiB", 0]
        house.pool.reserve(GRANT, 6 * MIB)
        assert await process(f"segment({4 * MIB})") == [OK, "", 1]
        assert await process(f"segment({4 * MIB})") == [FULL, "the grant has 2MiB of the host pool left, not 4MiB", 0]
        for size in (1, 4096, 3 * MIB, SEGMENT_MOST + 2 * MIB, (1 << 64) - 2 * MIB):
            error, why, files = await process(f"segment({size})")
            assert (error, files) == (REFUSED, 0)
            assert "whole pages of 2 MiB, at most 1024 MiB" in why
        assert await process(f"segment({2 * MIB}, device=1)") == [REFUSED, "the grant has no device 1", 0]
        slot, generation = await process("own[:2]")
        other = await house.joined()
        for asks in (
            f"segment({2 * MIB}, {slot}, {generation})",
            f"segment({2 * MIB}, generation={generation + 100})",
            f"segment({2 * MIB}, slot=0xffff)",
            f"segment(0, {slot}, {generation})",
        ):
            assert await other(asks) == [REFUSED, "only a process that has joined gets memory of the host pool", 0]
        assert house.pool.counts.used == 4 * MIB

    in_a_house(tmp_path, scene)


def test_what_a_process_has_comes_back_when_it_ends_and_when_the_grant_does(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 32 * MIB)
        one, other = await house.joined(), await house.joined()
        for process in (one, other):
            assert (await process(f"segment({8 * MIB})"))[0] == OK
            assert (await process(f"segment({8 * MIB})"))[0] == OK
        assert house.pool.counts == Counts(32 * MIB, 0, 32 * MIB)
        one.kill()
        await until(lambda: house.pool.counts == Counts(32 * MIB, 16 * MIB, 16 * MIB), "one's is back")
        house.pool.release(GRANT)
        assert house.pool.counts == Counts(48 * MIB, 0, 16 * MIB), "what the other has stays its own"
        house.pool.end(GRANT)
        await until(lambda: house.pool.counts == Counts(64 * MIB, 0, 0), "all is back")
        assert await other("[os.fstat(one).st_blocks for one in sealed]") == [0, 0]

    in_a_house(tmp_path, scene)


def test_a_segment_is_in_the_ledger_before_its_process_has_it(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 8 * MIB)
        process = await house.joined()
        house.broken = FailedError("the ledger cannot be written: disk full")
        assert await process(f"segment({8 * MIB})") == [REFUSED, str(house.broken), 0]
        house.broken = None
        await until(lambda: house.pool.counts == Counts(56 * MIB, 8 * MIB, 0), "it was taken back")
        assert (await process(f"segment({8 * MIB})"))[0] == OK

    in_a_house(tmp_path, scene)


def test_what_is_given_back_is_written_before_the_process_is_told(tmp_path):
    """Else a daemon killed in between would count it for as long as the process lives."""

    async def scene(house):
        house.pool.reserve(GRANT, 8 * MIB)
        process = await house.joined()
        assert (await process(f"segment({8 * MIB})"))[0] == OK
        house.broken = FailedError("the ledger cannot be written: disk full")
        assert await process("segment(0)") == [REFUSED, str(house.broken), 0]
        house.broken = None
        assert await process("segment(0)") == [OK, "", 0]
        assert house.written[-1] == [0]

    in_a_house(tmp_path, scene)


def test_after_a_restart_it_counts_until_the_process_gives_it_back_or_ends(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 24 * MIB)
        one, other = await house.joined(), await house.joined()
        assert (await one(f"segment({8 * MIB})"))[0] == OK
        assert (await other(f"segment({4 * MIB})"))[0] == OK
        assert await one("write(0)") == 8 * MIB
        house.pool.close()
        house.restart(HostPool(64 * MIB, Timing()))
        assert await one("os.pread(sealed[0], 1, 0).decode()") == "x", "a stopped daemon takes nothing"
        assert house.pool.counts == Counts(52 * MIB, 0, 12 * MIB)
        house.pool.reserve(GRANT, 16 * MIB)
        assert house.pool.counts == Counts(48 * MIB, 4 * MIB, 12 * MIB)
        other.kill()
        await until(lambda: house.pool.counts == Counts(48 * MIB, 8 * MIB, 8 * MIB), "the other has ended")
        assert await one("segment(0)") == [OK, "", 0]
        assert house.pool.counts == Counts(48 * MIB, 16 * MIB, 0)
        assert (await one(f"segment({16 * MIB})"))[0] == OK

    in_a_house(tmp_path, scene)


def test_a_process_that_hangs_up_before_the_answer_has_nothing(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 16 * MIB)
        process = await house.joined()
        helper = house.pool.helpers[0]
        assert (await process(f"segment({2 * MIB})"))[0] == OK
        os.kill(helper.pid, signal.SIGSTOP)
        for _ in range(4):
            await process(f"hang_up({2 * MIB})")
        await until(lambda: house.pool.counts.used == 10 * MIB, "all are asked for")
        os.kill(helper.pid, signal.SIGCONT)
        await until(lambda: house.pool.counts == Counts(48 * MIB, 14 * MIB, 2 * MIB), "they are back")

    in_a_house(tmp_path, scene)


def test_reservations_are_exact_and_a_refusal_says_what_is_free(tmp_path):
    async def scene(house):
        pool = house.pool
        pool.reserve("g-a", 40 * MIB)
        with pytest.raises(RefusedError, match="24MiB free of 64MiB, and 30MiB more are needed: wait until"):
            pool.reserve("g-b", 30 * MIB)
        assert (pool.size_bytes, pool.free_bytes, pool.reserved("g-b")) == (64 * MIB, 24 * MIB, 0)
        pool.reserve("g-a", 10 * MIB)
        pool.reserve("g-b", 30 * MIB)
        pool.reserve("g-b", 54 * MIB)
        assert pool.free_bytes == 0
        pool.release("g-a")
        pool.release("g-b")
        assert pool.free_bytes == 64 * MIB

    in_a_house(tmp_path, scene)


def test_no_pool_at_all(tmp_path):
    async def scene(house):
        with pytest.raises(RefusedError, match=r"0B free of 0B.*: give it memory with host_pool"):
            house.pool.reserve(GRANT, 2 * MIB)
        house.pool.reserve(GRANT, 0)
        process = await house.joined()
        assert (await process(f"segment({2 * MIB})"))[0] == FULL
        assert await process("segment(0)") == [OK, "", 0]
        assert house.pool.helpers[0].pid is None, "no helper is started for nothing"

    in_a_house(tmp_path, scene, size=0)
