"""Three made-up days of a node with two devices, for `gpushare usage` to show where there is no real usage yet.

The ledger is written by the product's own writer, and read by its daemon and its command.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpushare.demo.node import Node
from gpushare.ledger.entries import IDLE, SWITCHING, Batch, Period, values
from gpushare.ledger.file import LedgerFile
from gpushare.paths import Layout

HOUR = 3600 * 10**9
DAYS = 3
DEVICES = ("GPU-0", "GPU-1")
WANTS = {
    "research": lambda hour: 0.95 if hour % 24 >= 9 or hour % 24 < 3 else 0.4,
    "ml/alice": lambda hour: 0.6 if 9 <= hour % 24 < 18 else 0.0,
    "ml/bob": lambda hour: 0.35 if 10 <= hour % 24 < 20 else 0.05,
    "class": lambda hour: 0.8 if 13 <= hour % 24 < 17 else 0.0,
    "nightly": lambda hour: 1.2 if hour % 24 < 6 or hour % 24 >= 22 else 0.1,
}
"""What tenants want of one device, by the hour since the first midnight; served in this order."""


def _periods(hour: int, begins: int, chance: random.Random) -> Iterator[Period]:
    free = dict.fromkeys(DEVICES, HOUR)
    for tenant, wants in WANTS.items():
        left = int(HOUR * wants(hour) * chance.uniform(0.75, 1.1))
        for device in DEVICES:
            took = min(left, int(free[device] * 0.97))
            left -= took
            free[device] -= took
            waited = left if device == DEVICES[-1] else 0
            yield _period(f"g-{tenant.replace('/', '-')}", tenant, device, begins, took, waited)
    for device in DEVICES:
        switching = free[device] // 20
        yield _period(SWITCHING, SWITCHING, device, begins, switching, 0)
        yield _period(IDLE, IDLE, device, begins, free[device] - switching, 0)


def _period(grant: str, tenant: str, device: str, begins: int, used: int, waited: int) -> Period:
    return Period(
        grant_id=grant, tenant=tenant, device=device, from_ns=begins, to_ns=begins + HOUR, granted_ns=0, used_ns=used,
        busy_ns=used, borrowed_ns=0, lent_ns=0, waited_ns=waited, memory_bytes=0, memory_peak_bytes=0,
    )  # fmt: skip


def write(ledger: Path, first: int) -> None:
    """Writes the rows of DAYS, from `first` (ns) on."""
    chance, file = random.Random(7), LedgerFile(ledger)  # noqa: S311
    file.begin(1, "boot", 0)
    for hour in range(24 * DAYS):
        file.write(1, Batch(periods=list(map(values, _periods(hour, first + hour * HOUR, chance)))))
    file.end(1)
    file.close()


def picture() -> str:
    """The picture that the command prints for the days before today."""
    until = time.time_ns() // (24 * HOUR) * 24 * HOUR
    since = until - DAYS * 24 * HOUR
    with tempfile.TemporaryDirectory(prefix="gsu-") as name:
        directory = Path(name) / "node"
        directory.mkdir()
        layout = Layout.of(directory)
        layout.state.mkdir(parents=True, exist_ok=True)
        write(layout.ledger, since)
        node = Node(directory)
        try:
            node.start("2x16GiB")
            days = [time.strftime("%Y-%m-%d", time.gmtime(ns // 10**9)) for ns in (since, until)]
            command = ["usage", "--socket", str(node.socket), "--since", days[0], "--until", days[1], "--tz", "UTC"]
            command += ["--format", "svg"]
            done = subprocess.run([sys.executable, "-P", "-m", "gpushare", *command], capture_output=True, text=True)
        finally:
            node.end()
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


if __name__ == "__main__":
    print(picture(), end="")
