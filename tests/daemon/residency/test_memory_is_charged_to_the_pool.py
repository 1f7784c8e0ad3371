"""What segments are charged to: the pool's own cgroup, not the container of the process that fills them."""

import os

import pytest
from pages.hosted import GRANT, MIB, in_a_house, until

from gpushare.binding.wire import JoinError
from gpushare.enforce import memory_cgroup
from gpushare.errors import FailedError

BATCHES = 8 * MIB
"""What two readings of a cgroup's charge may be off by: the kernel charges each processor ahead for 64 pages."""
HELPERS = BATCHES + 16 * MIB
"""The same where a helper of the pool starts or grows between them."""


def made(name):
    try:
        return memory_cgroup.at_root(f"gpushare-test-{name}-{os.getpid()}")
    except FailedError as error:
        pytest.skip(f"this machine charges memory to no cgroup that a test may make: {error}")


@pytest.fixture
def pool_cgroup():
    group = made("pool")
    yield group
    assert group.remove(), "a helper outlived its pool"


@pytest.fixture
def tenant_cgroup():
    group = made("tenant")
    yield group
    assert group.remove()


def within(group):
    """A command that runs its arguments in a cgroup."""
    return ("sh", "-c", f'echo $$ > {group.path}/cgroup.procs && exec "$@"', "sh")


@pytest.mark.promise("host-pool-is-what-it-costs")
def test_a_tenant_that_fills_segments_is_charged_nothing(tmp_path, pool_cgroup, tenant_cgroup):
    size = 128 * MIB

    async def scene(house):
        house.pool.reserve(GRANT, size)
        process = await house.joined(*within(tenant_cgroup))
        tenant, pool = memory_cgroup.charged(tenant_cgroup), memory_cgroup.charged(pool_cgroup)
        for _ in range(2):
            assert (await process(f"segment({size // 2})"))[0] == JoinError.OK
        for number in range(2):
            assert await process(f"write({number})") == size // 2
        assert memory_cgroup.charged(pool_cgroup) - pool >= size - HELPERS
        assert memory_cgroup.charged(tenant_cgroup) - tenant <= BATCHES
        full = memory_cgroup.charged(pool_cgroup)
        assert await process("segment(0)") == [JoinError.OK, "", 0]
        await until(lambda: not house.pool.counts.used, "all is back")
        assert full - memory_cgroup.charged(pool_cgroup) >= size - HELPERS, "although the process has it mapped"

    in_a_house(tmp_path, scene, size, cgroup=pool_cgroup)


@pytest.mark.promise("host-pool-is-what-it-costs")
def test_a_tenant_that_writes_to_what_it_gave_back_is_charged_for_that(tmp_path, pool_cgroup, tenant_cgroup):
    size = 64 * MIB

    async def scene(house):
        house.pool.reserve(GRANT, size)
        process = await house.joined(*within(tenant_cgroup))
        assert (await process(f"segment({size})"))[0] == JoinError.OK
        assert await process("segment(0)") == [JoinError.OK, "", 0]
        await until(lambda: not house.pool.counts.used, "it is back")
        tenant, pool = memory_cgroup.charged(tenant_cgroup), memory_cgroup.charged(pool_cgroup)
        assert await process("write(0)") == size
        assert memory_cgroup.charged(tenant_cgroup) - tenant >= size - BATCHES
        assert memory_cgroup.charged(pool_cgroup) - pool <= HELPERS
        assert (await process(f"segment({size})"))[0] == JoinError.OK, "the pool is as large as before"
        assert await process(f"os.pread(sealed[1], {size}, 0).count(0)") == size, "and this is another file"

    in_a_house(tmp_path, scene, size, cgroup=pool_cgroup)


# Registers it with an io_uring, which pins it as a driver does. Its value is the errno.
PINS = """exec('''
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
mapped = mmap.mmap(sealed[0], 0)
address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
ring = libc.syscall(425, 1, ctypes.create_string_buffer(120))
pinned = libc.syscall(427, ring, 0, struct.pack("QQ", address, len(mapped)), 1) if ring >= 0 else -1
''', globals()) or (pinned and ctypes.get_errno())"""


@pytest.mark.promise("host-pool-is-what-it-costs")
def test_what_a_process_keeps_pinned_is_given_to_nobody(tmp_path, pool_cgroup):
    size = 512 * MIB

    async def scene(house):
        house.pool.reserve(GRANT, size)
        process = await house.joined()
        assert (await process(f"segment({size})"))[0] == JoinError.OK
        if (number := await process(PINS)) != 0:
            pytest.skip(f"no process can pin memory here without a driver: {os.strerror(number)}")
        assert await process("segment(0)") == [JoinError.OK, "", 0]
        await until(lambda: not house.pool.counts.used, "it is back")
        house.pool.release(GRANT)
        assert memory_cgroup.charged(pool_cgroup) >= size - HELPERS
        assert size - house.pool.kept_bytes == house.pool.free_bytes <= 256 * MIB
        process.kill()
        await until(lambda: house.pool.free_bytes == size, "its end frees it")

    in_a_house(tmp_path, scene, size, cgroup=pool_cgroup)
