"""Processes that race for one grant's memory and are killed. The reference is the simulator's exact peak."""

import subprocess
from pathlib import Path

import pytest
from run import built
from run.running import Daemon
from run.waiting import until

from gpushare.daemon.host import peer

HERE = Path(__file__).resolve().parent
LIMIT = 2 << 30
PROCESSES = 16  # with four threads each


@pytest.fixture(scope="module")
def racers() -> Path:
    return built.program("racers")


@pytest.mark.parametrize(
    ("kills", "attempts"),
    [(48, 40_000), *(pytest.param(kills, 100_000, marks=pytest.mark.slow) for kills in (0, 48))],
)
def test_no_byte_over_the_limit(node: Daemon, racers: Path, kills: int, attempts: int) -> None:
    """Also while processes die: their memory may be allocated again only after the device has freed it."""
    command = node.run("2GiB", "50%", racers, str(PROCESSES), str(attempts), str(kills))
    run = subprocess.run(command, check=True, timeout=100, capture_output=True, text=True)
    made, granted, refused, freed, killed = map(int, run.stdout.split())
    peak = node.books()["peak_bytes"]
    print(f"{made} attempts, {granted} granted, {killed} killed; peak: {peak - LIMIT} bytes from the limit")
    assert made >= attempts
    assert granted + refused >= made - 4 * kills, "a killed thread counted half of its attempt"
    assert min(granted, refused) > attempts // 10, "it was no race"
    assert killed == kills
    assert freed == granted or kills
    assert 0.85 * LIMIT <= peak <= LIMIT, "what died was not allocated again at once"
    until(lambda: node.books()["bytes"] == 0, "all bytes are back", 10)
    until(lambda: not node.client.grants(), "the grant is gone", 10)


def test_who_is_on_the_way_out() -> None:
    def ends(pid: int) -> bool:
        found = peer.status(pid)
        return found is None or found.ending

    child = subprocess.Popen(["sleep", "60"])
    try:
        assert not ends(child.pid)
        child.kill()
        until(lambda: ends(child.pid), "a zombie is", 10)
    finally:
        child.kill()
        child.wait()
    assert ends(child.pid)
