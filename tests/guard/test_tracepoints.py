"""The kernel charges what processes ask the driver for to their cgroup, and kills a process that exceeds the limit.

A terminal stands in for the driver (rmtenant.c): it accepts every struct, and the status in the struct is its answer.
"""

import contextlib
import os
import resource
import subprocess
import sys

import pytest
from run.waiting import until

from gpushare.enforce import rm
from gpushare.enforce.cgroup import Cgroup
from gpushare.enforce.guard import Guard, Kind
from gpushare.errors import FailedError

MIB = 1 << 20
NO_MEMORY = 0x51
VIRTUAL = 0x80000


def test_the_limit(held):
    tenant = held.tenant()
    assert [tenant.alloc(number, 32 * MIB) for number in (1, 2)] == [0, 0]
    assert held.books().used == 64 * MIB
    assert tenant.alloc(3, 2 * MIB) is None
    assert tenant.status() == -9
    event = held.report(Kind.OVER)
    assert (event.pid, event.command) == (tenant.process.pid, "rmtenant")
    assert (event.bytes, event.used, event.limit, event.signal) == (2 * MIB, 66 * MIB, 64 * MIB, 9)


def test_only_what_the_driver_gave(held):
    tenant = held.tenant()
    assert tenant.say("refused", 1, 1, 1 << 40) == 25  # ENOTTY
    assert tenant.alloc(2, 1 << 40, status=NO_MEMORY) == 0
    assert tenant.say("other", 3, 1 << 40) == 0  # memory of the host
    assert tenant.say("heap", 1, 4, 1 << 40, VIRTUAL) == 0
    books = held.books()
    assert (books.used, books.pending, books.allocations) == (0, 0, 0)
    assert (books.failed, books.failed_bytes) == (1, 1 << 40)


@pytest.mark.parametrize(
    ("asked", "charged"), [(1, 64 << 10), (65537, 128 << 10), (2 * MIB, 2 * MIB), (3 * MIB, 4 * MIB)]
)
def test_the_pages_of_the_driver(held, asked, charged):
    assert held.tenant().alloc(1, asked) == 0
    assert held.books().used == charged


def test_sizes_that_overflow(held):
    assert held.tenant().alloc(1, 2**64 - 1) is None
    event = held.report(Kind.OVER)
    assert event.bytes == 1 << 48


def test_all_ways_to_memory(held):
    tenant = held.tenant()
    assert tenant.say("xfer", 1, 10, 2 * MIB) == 0
    assert tenant.say("heap", 1, 11, 4 * MIB) == 0
    assert tenant.say("tiled", 1, 12, 2048, 4096) == 0
    assert held.books().used == (2 + 4 + 8) * MIB
    assert tenant.say("heapfree", 1, 11) == 0
    assert held.books().used == (2 + 8) * MIB


def test_what_is_freed_is_given_back(held):
    tenant = held.tenant()
    for number in (10, 11):
        assert tenant.alloc(number, 8 * MIB) == 0
    assert tenant.say("free", 1, 10, NO_MEMORY) == 0  # the driver refused
    assert held.books().used == 16 * MIB
    assert tenant.say("free", 1, 10) == 0
    assert tenant.say("free", 1, 10) == 0  # once more: there is no such object
    books = held.books()
    assert (books.used, books.objects, books.frees) == (8 * MIB, 1, 1)


@pytest.mark.parametrize("of", [2, 1], ids=["parent", "client"])
def test_all_below_goes_with_it(held, of):
    tenant = held.tenant()
    for number in range(10, 13):
        assert tenant.alloc(number, 8 * MIB) == 0
    assert tenant.alloc(10, 2 * MIB, client=5) == 0  # the same handle of another client
    assert tenant.say("free", 1, of) == 0
    assert held.books().used == 2 * MIB


def test_memory_lasts_as_long_as_a_handle(held):
    tenant = held.tenant()
    assert tenant.alloc(10, 8 * MIB) == 0
    assert tenant.say("dup", 1, 11, 1, 10) == 0
    assert tenant.say("free", 1, 10) == 0
    assert held.books().used == 8 * MIB
    assert tenant.say("free", 1, 11) == 0
    assert held.books().used == 0


def test_memory_that_another_client_has_too(held, guard):
    """Another client of the same process or of another one, on another file."""
    tenant, other = held.tenant(), held.tenant()
    assert tenant.alloc(10, 8 * MIB, client=70) == 0
    assert tenant.say("elsewhere", 71, 10, 70, 10) == 0
    assert tenant.say("free", 70, 10) == 0
    assert held.books().used == 8 * MIB
    assert other.say("dup", 72, 10, 71, 10) == 0
    tenant.end()
    held.report(Kind.LEFT)
    guard.settle()
    assert (held.books().used, held.books().doubt) == (8 * MIB, 0)
    assert other.say("free", 72, 10) == 0
    assert held.books().used == 0


def test_an_object_of_the_same_number_takes_the_place(held):
    """The end of the first object went unseen."""
    tenant = held.tenant()
    assert [tenant.alloc(1, 40 * MIB) for _ in range(2)] == [0, 0]
    assert held.books().used == 40 * MIB


@pytest.mark.parametrize("number", [9, 0], ids=["kill", "exit"])
def test_what_ends_gives_back(held, guard, number):
    tenant = held.tenant()
    assert tenant.alloc(1, 40 * MIB) == 0
    if number:
        tenant.process.send_signal(number)
    else:
        tenant.process.stdin.close()
    tenant.status()
    held.report(Kind.LEFT)
    books = held.books()
    assert (books.used, books.doubt) == (40 * MIB, 40 * MIB)
    after = held.tenant()
    assert after.alloc(1, 60 * MIB) == 0, "what is in doubt does not count against another"
    guard.settle()
    books = held.books()
    assert (books.used, books.doubt, books.objects) == (60 * MIB, 0, 1)


def test_a_child_that_has_the_descriptor_keeps_the_memory(held, guard):
    tenant = held.tenant()
    assert tenant.alloc(1, 40 * MIB) == 0
    child = tenant.say("child")
    tenant.end()
    held.report(Kind.LEFT)
    guard.settle()
    books = held.books()
    assert (books.used, books.doubt) == (40 * MIB, 0)
    after = held.tenant()
    assert after.alloc(1, 40 * MIB) is None
    assert after.status() == -9
    os.kill(child, 9)
    until(lambda: not held.group.pids(), "the child has ended")
    guard.settle()
    assert held.books().used == 0


def test_a_descriptor_that_is_moved_hides_nothing(held):
    tenant = held.tenant()
    assert tenant.alloc(1, 60 * MIB) == 0
    assert tenant.say("again") == 0
    assert tenant.alloc(2, 60 * MIB) is None


def test_a_descriptor_that_is_closed_gives_back(held):
    """Before a process is signalled, not only at the next look: no tracepoint reports a close."""
    tenant, other = held.tenant(), held.tenant()
    assert tenant.alloc(1, 60 * MIB) == 0
    assert tenant.say("reopen") == 0
    assert tenant.alloc(1, 60 * MIB) == 0
    assert held.books().used == 60 * MIB
    assert tenant.say("close") == 0
    assert other.alloc(1, 60 * MIB) == 0
    assert held.books().used == 60 * MIB


def test_a_descriptor_in_a_socket_gives_nothing_back(held, guard):
    """No process has it in its table, but its file is open."""
    sender, beyond = held.tenant(), held.tenant()
    assert sender.alloc(1, 40 * MIB) == 0
    assert sender.say("send") == 0
    for _ in range(2):
        guard.settle()
        assert held.books().used == 40 * MIB
    assert beyond.alloc(1, 40 * MIB) is None
    guard.settle()
    assert held.books().used == 40 * MIB
    assert sender.say("receive") == 0
    assert sender.say("free", 1, 1) == 0
    assert held.books().used == 0
    assert sender.alloc(2, 40 * MIB) == 0
    assert sender.say("send") == 0
    sender.end()
    guard.settle()
    assert held.books().used == 0


def test_threads_at_once(held, guard):
    """However they race: a process that stays alive is within the limit, and one that exceeded it was killed."""
    within, beyond = held.tenant(), held.tenant()
    assert within.say("threads", 8, 16, 64 << 10) == 0
    books = held.books()
    assert (books.used, books.allocations, books.pending) == (8 * 16 * (64 << 10), 128, 0)
    assert beyond.say("threads", 8, 64, 2 * MIB) is None
    assert beyond.status() == -9
    assert held.report(Kind.OVER).pid == beyond.process.pid
    assert within.alloc(1, 64 << 10) == 0
    guard.settle()
    assert held.books().used == 129 * (64 << 10)


def test_processes_share_a_limit(held):
    one, other = held.tenant(), held.tenant("inner")
    assert one.alloc(1, 40 * MIB) == 0
    assert other.alloc(1, 40 * MIB) is None
    assert (other.status(), one.alloc(2, 2 * MIB)) == (-9, 0)


def test_cgroups_do_not_touch_each_other(hold, terminal):
    one, other = hold(), hold()
    first, second = one.tenant(), other.tenant()
    assert first.alloc(1, 60 * MIB) == second.alloc(1, 60 * MIB) == 0
    assert second.say("free", 1, 2) == 0
    assert (one.books().used, other.books().used) == (60 * MIB, 0)
    assert first.alloc(2, 60 * MIB) is None
    assert second.alloc(2, 60 * MIB) == 0


def test_who_is_in_no_grant_is_not_counted(held, terminal):
    tenant = held.tenant()
    Cgroup(held.group.path.parent, v2=True).add(tenant.process.pid)
    assert tenant.alloc(1, 1 << 40) == 0
    assert held.books().allocations == 0


def test_other_devices_do_not_count(held, guard, terminal):
    other = rm.Nodes(terminal.nodes.major, terminal.nodes.first + 1, terminal.nodes.first + 1)
    with Guard(rm.Layout((other,))) as stranger:
        number = stranger.limit(held.group.path, MIB)
        assert held.tenant().alloc(1, 8 * MIB) == 0
        assert stranger.books(number).allocations == 0
    assert held.books().allocations == 1


def test_reported_only(hold):
    """As when the driver's version is not known."""
    one = hold(number=0)
    tenant = one.tenant()
    assert tenant.alloc(1, 128 * MIB) == 0
    assert one.report(Kind.OVER).signal == 0
    assert (tenant.alloc(2, 2 * MIB), one.books().over) == (0, 2)


def test_a_limit_that_changes(held):
    tenant = held.tenant()
    assert tenant.alloc(1, 64 * MIB) == 0
    held.limit(128 * MIB)
    assert held.books().used == 64 * MIB
    assert tenant.alloc(2, 64 * MIB) == 0
    held.limit(64 * MIB)
    assert tenant.alloc(3, 64 << 10) is None


class TestWordsThatChange:
    """Another thread overwrites the parameters after the kernel has read them and before the driver does."""

    def test_more(self, held):
        assert held.tenant().say("changed", 1, 2 * MIB, 128 * MIB, 0x40) is None
        assert held.report(Kind.OVER).bytes == 128 * MIB

    def test_less(self, held):
        assert held.tenant().say("changed", 1, 32 * MIB, 2 * MIB, 0x40) == 0
        assert held.books().used == 32 * MIB

    def test_another_class(self, held):
        tenant = held.tenant()
        assert tenant.say("changed", 1, 32 * MIB, 32 * MIB, 0x3E) == 0
        assert held.report(Kind.CHANGED).pid == tenant.process.pid
        assert held.books().used == 32 * MIB

    def test_that_are_not_there_yet(self, held):
        assert held.tenant().say("late", 1, 32 * MIB) == 0
        assert held.books().used == 32 * MIB

    def test_that_are_never_there(self, held):
        tenant = held.tenant()
        assert tenant.say("hidden", 1) is None
        assert tenant.status() == -9
        assert held.report(Kind.HIDDEN).pid == tenant.process.pid


def test_too_many_objects_harm_their_cgroup_alone(hold):
    many, other = hold(1 << 40), hold()
    tenant = many.tenant()
    assert tenant.say("threads", 1, 8300, 64 << 10) == 0
    books = many.books()
    assert (books.used, books.objects, books.lost) == (8300 * (64 << 10), 8192, (8300 - 8192) * (64 << 10))
    assert many.report(Kind.UNRECORDED).bytes == 64 << 10
    assert tenant.say("free", 1, 2) == 0
    assert many.books().used == books.lost
    neighbour = other.tenant()
    assert neighbour.alloc(10, 8 * MIB) == neighbour.say("free", 1, 10) == 0
    assert other.books().used == 0


def test_nothing_is_attached_without_a_limit(hold, guard):
    one = hold()
    tenant = one.tenant()
    guard.forget(one.number)
    assert tenant.alloc(1, 1 << 40) == 0
    with pytest.raises(FailedError, match="is not limited"):
        one.books()
    one.limit(64 * MIB)
    assert tenant.alloc(1, 8 * MIB) == 0
    assert one.books().used == 8 * MIB


def test_it_tries_itself(guard, held):
    inner = Cgroup(held.group.path / "trial", v2=True)
    inner.make()
    assert guard.self_test(inner.path) == ""
    assert inner.remove()
    assert held.tenant().alloc(1, 8 * MIB) == 0, "what it held before is held"
    assert held.books().used == 8 * MIB


def test_a_guard_that_kills_nobody_does_not_pass(terminal, held):
    """One whose layout knows only the ioctl that frees."""
    inner = Cgroup(held.group.path / "trial", v2=True)
    inner.make()
    with Guard(rm.Layout((terminal.nodes,), {rm.FREE: rm.Escape(2, 12)})) as broken:
        assert "were charged as 0" in broken.self_test(inner.path)
    assert inner.remove()


REFUSED = """
import ctypes, os
from gpushare.enforce import rm
from gpushare.enforce.guard import Guard
from gpushare.errors import FailedError
os.setuid(64123)
try:
    Guard(rm.Layout(()))
except FailedError as error:
    print(error)
"""


def test_without_the_right_to(guard):
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True)
    assert "it needs CAP_BPF, or root" in done.stdout


def test_descriptors_do_not_leak(terminal):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Guard(rm.Layout((terminal.nodes,))):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_descriptors_left(terminal):
    """Whichever step of loading runs out of descriptors, it fails with that error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as opened:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        while (last := opened.enter_context(open(os.devnull)).fileno()) < highest:
            pass
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for more in range(1, 18, 4):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(last, highest) + more, hard))
            with pytest.raises(FailedError, match="Too many open files"):
                Guard(rm.Layout((terminal.nodes,)))


@pytest.mark.parametrize(
    ("version", "is_known"),
    [
        ("535.54.03", True),
        ("580.65.06", True),
        ("620.1", True),
        ("525.60", False),
        ("621.10", False),
        ("", False),
        ("x.1", False),
    ],
)
def test_driver_versions(version, is_known):
    assert rm.is_known(version) is is_known
