"""Processes that race for one grant's memory and die in it. The judge is the simulator's exact peak."""

import subprocess
from pathlib import Path

from running import Daemon, until

from gpushare import paths
from gpushare.daemon import peer

HERE = Path(__file__).resolve().parent
LIMIT = 2 << 30


def test_no_byte_over_the_limit_while_processes_die(node: Daemon, tmp_path: Path) -> None:
    """A dead process's bytes may be given out again only when the device has them back."""
    include, racers = HERE.parents[1] / "native" / "include", tmp_path / "racers"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{include}"]
    driver = paths.SIM_LIB_DIR / "libcuda.so.1"
    subprocess.run(["gcc", *flags, HERE / "racers.c", "-o", racers, driver], check=True)
    for _ in range(2):
        subprocess.run(node.run("2GiB", "50%", racers, "16", "3"), check=True, timeout=60)
        until(lambda: node.books()["bytes"] == 0, 10, "all bytes are back")
        peak = node.books()["peak_bytes"]
        print(f"peak: {peak - LIMIT} bytes from the limit")
        assert 0.9 * LIMIT <= peak <= LIMIT
    until(lambda: not node.client.grants(), 10, "the grants are gone")


def test_who_is_on_the_way_out() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert not peer.is_ending(child.pid)
    finally:
        child.kill()
    until(lambda: peer.is_ending(child.pid), 10, "a zombie is")
    child.wait()
    assert peer.is_ending(child.pid)
