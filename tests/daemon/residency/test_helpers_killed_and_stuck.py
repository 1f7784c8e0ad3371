"""The helpers of the host pool killed, stopped and starved at any moment: no segment is lost or counted twice."""

import asyncio
import os
import resource
import signal

import pytest
from pages.hosted import GRANT, MIB, in_a_house, until

from gpushare.binding.wire import JoinError
from gpushare.daemon.timing import Timing
from gpushare.hostpool import memory_file
from gpushare.policy.residency.pool import Counts

OK, FULL = JoinError.OK, JoinError.FULL
MAKER, EMPTIER = 0, 1


async def with_helpers(house):
    """A process that had a segment and gave it back, so that both helpers run."""
    house.pool.reserve(GRANT, 32 * MIB)
    process = await house.joined()
    assert (await process(f"segment({2 * MIB})"))[0] == OK
    assert (await process("segment(0)"))[0] == OK
    await until(lambda: not house.pool.counts.used, "it is empty")
    return process


async def asked_of_a_stopped_one(house, process, size):
    """The helper's pid, and the task that waits for the answer."""
    maker = house.pool.helpers[MAKER].pid
    os.kill(maker, signal.SIGSTOP)
    asked = asyncio.create_task(process(f"segment({size})"))
    await until(lambda: house.pool.counts.used == size, "it is asked for")
    return maker, asked


@pytest.mark.parametrize("stopped", [False, True], ids=["idle", "amid"])
def test_one_that_is_killed_is_started_again_and_the_job_done(tmp_path, stopped):
    async def scene(house):
        process = await with_helpers(house)
        maker, emptier = (helper.pid for helper in house.pool.helpers)
        if stopped:
            os.kill(maker, signal.SIGSTOP)
        asked = asyncio.create_task(process(f"segment({8 * MIB})"))
        if stopped:
            await until(lambda: house.pool.counts.used, "it is asked for")
        os.kill(maker, signal.SIGKILL)
        assert (await asked)[0] == OK
        assert house.pool.helpers[MAKER].pid != maker
        if stopped:
            os.kill(emptier, signal.SIGSTOP)
        assert (await process("segment(0)"))[0] == OK
        if stopped:
            assert house.pool.counts.used == 8 * MIB, "not empty yet"
        os.kill(emptier, signal.SIGKILL)
        await until(lambda: house.pool.counts == Counts(32 * MIB, 32 * MIB, 0), "it is empty")
        assert await process("os.fstat(sealed[-1]).st_blocks") == 0

    in_a_house(tmp_path, scene)


def test_one_that_hangs_is_replaced_and_says_so(tmp_path):
    async def scene(house):
        process = await with_helpers(house)
        maker, emptier = house.pool.helpers
        os.kill(maker.pid, signal.SIGSTOP)
        maker.timing = emptier.timing = Timing(pool_job=0.5)
        error, why, files = await process(f"segment({8 * MIB})")
        assert (error, files) == (FULL, 0)
        assert "took longer than 0.5 s" in why
        assert house.pool.counts == Counts(32 * MIB, 32 * MIB, 0), "nothing is lost"
        maker.timing = Timing()
        assert (await process(f"segment({8 * MIB})"))[0] == OK
        stuck = emptier.pid
        os.kill(stuck, signal.SIGSTOP)
        assert (await process("segment(0)"))[0] == OK
        await until(lambda: emptier.pid != stuck, "it was killed")
        emptier.timing = Timing()
        await until(lambda: not house.pool.counts.used, "another one has emptied it")

    in_a_house(tmp_path, scene)


@pytest.mark.promise("host-pool-delays-own-grant")
def test_a_file_that_is_not_empty_yet_delays_only_what_does_not_fit_beside_it(tmp_path):
    async def scene(house):
        process = await with_helpers(house)
        house.pool.reserve(GRANT, 48 * MIB)
        assert (await process(f"segment({32 * MIB})"))[0] == OK
        stuck = house.pool.helpers[EMPTIER].pid
        os.kill(stuck, signal.SIGSTOP)
        assert (await process("segment(0)"))[0] == OK
        assert house.pool.counts == Counts(0, 48 * MIB, 32 * MIB), "not free yet"
        assert (await process(f"segment({32 * MIB})"))[0] == OK, "beside it"
        waits = asyncio.create_task(process(f"segment({16 * MIB})"))
        await until(lambda: house.pool.counts.used == 80 * MIB, "it waits for the other to be empty")
        assert house.pool.waiting == 1
        os.kill(stuck, signal.SIGCONT)
        assert (await waits)[0] == OK
        await until(lambda: house.pool.counts == Counts(16 * MIB, 0, 48 * MIB), "all in order")

    in_a_house(tmp_path, scene)


@pytest.mark.promise("host-pool-delays-own-grant")
def test_a_grant_that_asks_for_many_keeps_no_other_waiting(tmp_path):
    async def scene(house):
        process = await with_helpers(house)
        maker = house.pool.helpers[MAKER].pid
        os.kill(maker, signal.SIGSTOP)
        for _ in range(12):
            await process(f"hang_up({2 * MIB})")
        await until(lambda: house.pool.counts.used == 24 * MIB, "all are asked for")
        house.pool.reserve("g-other", 2 * MIB)
        done = []
        house.pool.draw("g-other", 0, 1, 2 * MIB, -1, lambda segment, *_: done.append((segment, house.pool.waiting)))
        os.kill(maker, signal.SIGCONT)
        await until(lambda: done, "the other's is made")
        assert done[0][0] is not None
        assert done[0][1] >= 9, "before most of the crowd's"

    in_a_house(tmp_path, scene)


def test_a_process_that_dies_between_request_and_answer_leaves_nothing(tmp_path):
    async def scene(house):
        process = await with_helpers(house)
        maker, asked = await asked_of_a_stopped_one(house, process, 8 * MIB)
        process.running.kill()
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: not house.socket.records, "the daemon knows of its end")
        os.kill(maker, signal.SIGCONT)
        await until(lambda: house.pool.counts == Counts(32 * MIB, 32 * MIB, 0), "nothing is left")
        assert house.pool.files == 0

    in_a_house(tmp_path, scene)


def test_a_door_that_ends_loses_no_segment(tmp_path):
    async def scene(house):
        process = await with_helpers(house)
        maker, asked = await asked_of_a_stopped_one(house, process, 8 * MIB)
        os.kill(house.door._process.pid, signal.SIGKILL)
        assert await asked is None, "its connection has ended without an answer"
        await until(lambda: house.door.restarts, "the daemon knows")
        os.kill(maker, signal.SIGCONT)
        await until(lambda: house.pool.counts == Counts(32 * MIB, 32 * MIB, 0), "what nobody waits for is taken back")
        assert (await again(process, f"segment({8 * MIB})"))[0] == OK

    in_a_house(tmp_path, scene)


def test_a_segment_that_was_lost_on_its_way_is_had_again_once_all_is_given_back(tmp_path):
    """The daemon cannot know whether it arrived, and counts it until then: as the interposer does it (host.c)."""

    async def scene(house):
        process = await with_helpers(house)
        maker, asked = await asked_of_a_stopped_one(house, process, 32 * MIB)
        door = house.door._process.pid
        os.kill(door, signal.SIGSTOP)
        os.kill(maker, signal.SIGCONT)
        await until(lambda: house.written[-1] == [32 * MIB], "it is on its way")
        os.kill(door, signal.SIGKILL)
        assert await asked is None
        assert (await again(process, f"segment({32 * MIB})"))[0] == FULL
        assert await process("segment(0)") == [OK, "", 0]
        assert (await process(f"segment({32 * MIB})"))[0] == OK

    in_a_house(tmp_path, scene)


async def again(process, request):
    """Repeats a request until a door answers."""
    async with asyncio.timeout(30):
        while (answer := await process(f"none_if_refused(lambda: {request})")) is None:
            await asyncio.sleep(0.01)
    return answer


def test_a_node_without_memory_refuses_in_words(tmp_path):
    """By the function itself: the helper is another process, whose view of the node no test can change."""
    with pytest.raises(OSError, match=r"the node has \d+ MiB of memory free, of which 256 stay so"):
        memory_file.make(memory_file.available() + (1 << 30))


def test_a_daemon_without_descriptors_refuses_and_goes_on(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 32 * MIB)
        process = await house.joined()
        await until(lambda: house.pool.helpers[MAKER].pid, "it is started ahead")
        os.kill(house.pool.helpers[MAKER].pid, signal.SIGKILL)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest)]  # no number below the limit is free
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 2, hard))  # one to read who asks
            error, why, files = await process(f"segment({2 * MIB})")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
        assert (error, files) == (FULL, 0)
        assert "Too many open files" in why
        assert house.pool.counts == Counts(32 * MIB, 32 * MIB, 0)
        assert (await process(f"segment({2 * MIB})"))[0] == OK

    in_a_house(tmp_path, scene)
