"""A program that measures, until its input ends, how long the daemon takes to answer, corrected for a busy machine.

A second process sleeps a millisecond at a time; how much later it wakes is what any process has to wait here. Prints
JSON: probes, failed ones, the slowest; less the lateness around each, the slowest (most) and that than which one in a
thousand is slower (beyond), in seconds.
"""

import json
import multiprocessing
import select
import sys
import time
from multiprocessing.connection import Connection

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
    client = Client(sys.argv[1])
    ours, theirs = multiprocessing.Pipe()
    control = multiprocessing.Process(target=late, args=(theirs,))
    control.start()
    probes, failed = [], 0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        for path in ("/v1/version", "/v1/grants"):
            began = time.monotonic()
            try:
                client.call("GET", path)
            except UnreachableError:
                failed += 1
            probes.append((began, time.monotonic()))
    ours.send(None)
    naps = ours.recv()
    control.join()

    def beyond(began: float, ended: float) -> float:
        around = [until - since for since, until in naps if since < ended + AROUND_S and until > began - AROUND_S]
        return ended - began - sum(around)

    slow = sorted(((ended - began, began, ended) for began, ended in probes), reverse=True)[:50]
    answer = {"probes": len(probes), "failed": failed, "slowest": slow[0][0]}
    lags = sorted((beyond(began, ended) for _, began, ended in slow), reverse=True)
    print(json.dumps({**answer, "most": lags[0], "beyond": lags[min(len(probes) // 1000, len(lags) - 1)]}))


if __name__ == "__main__":
    main()
