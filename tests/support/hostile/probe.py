"""A program that measures, until its input ends, how long the daemon takes to answer, corrected for a busy machine.

A second process sleeps a millisecond at a time; how much later it wakes is what any process has to wait here. What the
daemon's loop itself waited for a processor is known to the kernel. Arguments: the daemon's socket and pid. Prints JSON:
probes, failed ones, the slowest; less both around each, the slowest (most) and that than which one in a thousand is
slower (beyond), in seconds.
"""

import json
import multiprocessing
import select
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from gpushare.client import Client
from gpushare.errors import UnreachableError

NAP_S, AROUND_S = 0.001, 0.02


def late(out: Connection) -> None:
    """Sends the naps, as (began, ended), that took over twice NAP_S, once it is told to end."""
    found = []
    while not out.poll():
        began = time.monotonic()
        time.sleep(NAP_S)
        now = time.monotonic()
        if now - began > 2 * NAP_S:
            found.append((began, now))
    out.send(found)


def main() -> None:
    client, schedstat = Client(sys.argv[1]), Path(f"/proc/{sys.argv[2]}/schedstat")

    def waited() -> float:
        """Seconds for which the daemon's first thread could have run and had no processor."""
        return int(schedstat.read_text().split()[1]) / 1e9

    ours, theirs = multiprocessing.Pipe()
    control = multiprocessing.Process(target=late, args=(theirs,))
    control.start()
    probes, failed = [], 0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        for path in ("/v1/version", "/v1/grants"):
            began, before = time.monotonic(), waited()
            try:
                client.call("GET", path)
            except UnreachableError:
                failed += 1
            probes.append((began, time.monotonic(), waited() - before))
    ours.send(None)
    naps = ours.recv()
    control.join()

    def beyond(began: float, ended: float, waited: float) -> float:
        around = [until - since for since, until in naps if since < ended + AROUND_S and until > began - AROUND_S]
        return ended - began - waited - sum(around)

    slow = sorted(((one[1] - one[0], *one) for one in probes), reverse=True)[:50]
    answer = {"probes": len(probes), "failed": failed, "slowest": slow[0][0]}
    lags = sorted((beyond(*one) for _, *one in slow), reverse=True)
    print(json.dumps({**answer, "most": lags[0], "beyond": lags[min(len(probes) // 1000, len(lags) - 1)]}))


if __name__ == "__main__":
    main()
