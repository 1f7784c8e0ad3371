"""Tenants that do with segments what they like: others' segments, the pool's accounts and its size stay as they are."""

import asyncio
import errno
import os
import signal

import pytest
from pages.hosted import GRANT, MIB, in_a_house, until

from gpushare.binding.wire import JoinError
from gpushare.policy.residency.pool import Counts

OK, FULL = JoinError.OK, JoinError.FULL

# Each opens the file anew by its name in /proc, or by what it is, and returns the errno of growing, shrinking, sealing.
TRICKS = """[
    fails(lambda: os.ftruncate(os.open(f"/proc/self/fd/{sealed[0]}", os.O_RDWR), 1 << 30)),
    fails(lambda: os.open(f"/proc/self/fd/{sealed[0]}", os.O_RDWR | os.O_TRUNC)),
    fails(lambda: os.pwrite(os.open(f"/proc/self/fd/{sealed[0]}", os.O_WRONLY), b"x", 16 << 20)),
    fails(lambda: os.posix_fallocate(sealed[0], 16 << 20, 4096)),
    fails(lambda: fcntl.fcntl(os.open(f"/proc/self/fd/{sealed[0]}", os.O_RDWR), fcntl.F_ADD_SEALS, 0x10)),
]"""


@pytest.mark.promise("host-pool-own-bytes")
@pytest.mark.parametrize("who", ["root", "nobody"])
def test_no_trick_resizes_a_segment_or_keeps_it_from_being_emptied(tmp_path, who):
    tmp_path.chmod(0o755)

    async def scene(house):
        house.pool.reserve(GRANT, 16 * MIB)
        process = await house.joined()
        if who == "nobody":
            await process("become_nobody()")
        assert (await process(f"segment({16 * MIB})"))[0] == OK
        assert await process(TRICKS) == [errno.EPERM] * 5
        assert await process("write(0)") == 16 * MIB
        # A lock, a lease on the file, no mode at all: what holds a file elsewhere. Some are the owner's alone.
        await process("fcntl.flock(sealed[0], fcntl.LOCK_EX)")
        await process("fails(fcntl.lockf, sealed[0], fcntl.LOCK_EX)")
        await process("fails(fcntl.fcntl, sealed[0], 1024, fcntl.F_WRLCK)")
        await process("fails(os.fchmod, sealed[0], 0)")
        assert (await process("segment(0)"))[0] == OK
        await until(lambda: house.pool.counts == Counts(48 * MIB, 16 * MIB, 0), "it is back")
        assert await process("os.fstat(sealed[0]).st_blocks") == 0

    in_a_house(tmp_path, scene)


FLOOD = """(lambda done: (
    [one.start() for one in done], [one.join() for one in done], sorted(answers))[2])(
    [__import__("threading").Thread(target=lambda: answers.append(segment(2 << 20)[0])) for _ in range(300)])"""


@pytest.mark.promise("host-pool-is-what-it-costs")
def test_a_flood_of_requests_gets_what_is_reserved_and_no_more(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 32 * MIB)
        flooding, other = await house.joined(), await house.joined()
        await flooding("globals().__setitem__('answers', [])")
        flood = asyncio.create_task(flooding(FLOOD))
        await until(lambda: house.pool.counts.used, "it floods")
        house.pool.reserve("g-other", 16 * MIB)
        made = []
        house.pool.draw("g-other", 0, 1, 16 * MIB, -1, lambda segment, *_: made.append(segment))
        answers = await flood
        assert answers == [OK] * 16 + [FULL] * 284
        assert made[0] is not None
        assert house.pool.counts == Counts(16 * MIB, 0, 48 * MIB)
        assert (await other(f"segment({2 * MIB})"))[0] == FULL
        flooding.kill()
        await until(lambda: house.pool.counts == Counts(16 * MIB, 32 * MIB, 16 * MIB), "its end frees them")
        assert (await other(f"segment({32 * MIB})"))[0] == OK

    in_a_house(tmp_path, scene)


@pytest.mark.promise("host-pool-delays-own-grant")
def test_what_one_gives_back_in_turn_is_not_missing_to_others(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 16 * MIB)
        process = await house.joined()
        assert [(await process(f"segment({size})"))[0] for size in (2 * MIB, 0)] == [OK, OK]
        emptier = house.pool.helpers[1].pid
        await until(lambda: not house.pool.counts.used, "it is empty")
        os.kill(emptier, signal.SIGSTOP)
        for size in (16 * MIB, 0, 16 * MIB, 0):
            assert (await process(f"segment({size})"))[0] == OK
        again = asyncio.create_task(process(f"segment({16 * MIB})"))
        await until(lambda: house.pool.waiting, "it waits until what it had is empty")
        house.pool.reserve("g-other", 16 * MIB)
        made = []
        house.pool.draw("g-other", 0, 1, 16 * MIB, -1, lambda segment, *_: made.append(segment))
        os.kill(emptier, signal.SIGCONT)
        assert (await again)[0] == OK
        await until(lambda: made, "the other has its own")
        await until(lambda: house.pool.counts == Counts(32 * MIB, 0, 32 * MIB), "what was given back is empty")

    in_a_house(tmp_path, scene)


@pytest.mark.promise("host-pool-is-what-it-costs")
def test_another_program_of_the_process_has_none(tmp_path):
    async def scene(house):
        house.pool.reserve(GRANT, 16 * MIB)
        process = await house.joined()
        assert (await process(f"segment({16 * MIB})"))[0] == OK
        gone = asyncio.create_task(process("os.execvp('sleep', ['sleep', '1000'])"))
        await until(lambda: house.pool.counts == Counts(48 * MIB, 16 * MIB, 0), "the exec gave it back")
        process.kill()
        await asyncio.gather(gone, return_exceptions=True)

    in_a_house(tmp_path, scene)
