"""How long a start takes with a long history in the ledger, and what an idle daemon costs."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from measures import percent_of_a_core, pss_mib
from run.running import Daemon
from run.waiting import until

from gpushare.ledger.entries import Period

GRANTS, PERIODS = 100_000, 1_000_000
STATE = '"' + "x" * 700 + '"'


def history(path: Path, device: str) -> None:
    """Writes GRANTS ended grants and PERIODS rows of their usage."""
    now = time.time_ns()
    names = list(Period.__struct_fields__)
    marks = ", ".join("?" * (len(names) + 1))
    with closing(sqlite3.connect(path)) as ledger:
        ledger.executemany(
            "INSERT INTO grants VALUES (?, NULL, 'default', 0, 'released', ?, ?, ?)",
            ((f"g-{number:012x}", STATE, now - number - 1, now - number) for number in range(GRANTS)),
        )
        ledger.executemany(
            f"INSERT INTO periods (run, {', '.join(names)}) VALUES ({marks})",
            (
                (
                    1,
                    f"g-{number // 10:012x}",
                    "default",
                    device,
                    now - number,
                    now - number + 1,
                    *[1] * (len(names) - 5),
                )
                for number in range(PERIODS)
            ),
        )
        ledger.commit()


def ready(node: Daemon) -> float:
    """Seconds from the command to the first answer; the best of three, as other programs only make it longer."""
    found = []
    for _ in range(3):
        began = time.monotonic()
        node.start()
        found.append(time.monotonic() - began)
        node.kill()
    return min(found)


def test_start_with_a_long_history(tmp_path: Path, report) -> None:
    node = Daemon(tmp_path / "state")
    try:
        node.start()
        device = node.client.devices()[0]["id"]
        node.kill()
        empty = ready(node)
        history(node.layout.ledger, device)
        full = ready(node)
    finally:
        node.stop()
    report(
        f"start with {GRANTS:,} ended grants and {PERIODS:,} periods",
        f"{full:.2f} s",
        f"an empty ledger: {empty:.2f} s",
        "<= 1 s",
        full <= 1,
    )


def test_daemon_idle(node: Daemon, report) -> None:
    assert node.process is not None
    until(lambda: not node.client.grants(), seconds=5)
    [used] = percent_of_a_core(10, node.process.pid)
    pss = pss_mib(node.process.pid)
    report("daemon idle, CPU", f"{used:.2f} % of a core over 10 s", "one core", "<= 1 %", used <= 1)
    report("daemon idle, memory", f"{pss:.0f} MiB PSS", "-", "<= 70 MiB", pss <= 70)
