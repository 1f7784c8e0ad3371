"""The cost of the dashboard: bytes of its page, time to its first paint, memory of its processes, the daemon's time
with five pages open at a hundred grants, and the time of a change from the daemon to the page.

Grants are bound to containers that never start, as in test_daemon.py: the arbiter serves them.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from keptopen import Requests, create
from measures import p99, percent_of_a_core, pss_mib, spread
from run.running import Daemon
from run.waiting import until
from views.browser import chromium, opened
from views.dashboards import Dashboard, dashboard

GRANTS, TENANTS, PAGES = 100, 10, 5
LOADS, CHANGES = 7, 60
SETTLE_SECONDS, SECONDS = 8.0, 30.0

_SEE = """() => {
  globalThis.seen = {};
  new MutationObserver(records => {
    const at = performance.timeOrigin + performance.now();
    for (const { addedNodes } of records)
      for (const node of addedNodes)
        for (const button of node.querySelectorAll?.("td:first-child button") ?? []) seen[button.textContent] ??= at;
  }).observe(document.querySelector("#grant-table tbody"), { childList: true });
}"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path_factory.mktemp("dashboard") / "state", simulate="8x64GiB")
    try:
        daemon.start()
        with Requests(daemon.layout.socket) as requests:
            for number in range(TENANTS):
                daemon.client.set_tenant(f"team-{number}", {"time": "10%"})
                more = {"tenant": f"team-{number}", "memory": "300MiB", "time": "1%", "ttl_seconds": 3600}
                for grant in create(requests, GRANTS // TENANTS, **more):
                    daemon.client.bind(grant, "container")
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(scope="module")
def board(node: Daemon) -> Iterator[Dashboard]:
    with dashboard("--socket", str(node.layout.socket)) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def shown(page: Any) -> None:
    page.locator("#grant-table tbody tr").nth(GRANTS - 1).wait_for()


def test_page(board: Dashboard, browser: Any, report) -> None:
    paints, rows = [], []
    for number in range(LOADS):
        with opened(browser, "about:blank") as page:
            sizes: list[int] = []
            session = page.context.new_cdp_session(page)
            session.send("Network.enable")
            session.on("Network.dataReceived", lambda event, sizes=sizes: sizes.append(event["dataLength"]))
            page.goto(board.url)
            shown(page)
            rows.append(page.evaluate("performance.getEntriesByName('drawn').at(-1).startTime"))
            until(
                lambda page=page: page.evaluate("performance.getEntriesByName('first-contentful-paint').length"),
                "paint",
            )
            paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            if number == 0:
                page.locator("#health-list .card").nth(4).wait_for()
                size = sum(sizes) / 1000
    report("page, with the first data of 100 grants", f"{size:.0f} KB", "-", "<= 150 KB", size <= 150)
    paint, drawn = statistics.median(paints), statistics.median(rows)
    measured = f"{paint:.0f} ms (first {paints[0]:.0f} ms; 100 grants drawn after {drawn:.0f} ms)"
    report("first paint", measured, "-", "<= 1000 ms", max(paints) <= 1000)


def test_five_pages(node: Daemon, board: Dashboard, browser: Any, report) -> None:
    assert node.process is not None
    (relay,) = board.children()
    (alone,) = percent_of_a_core(SECONDS, node.process.pid)
    with ExitStack() as stack:
        pages = [stack.enter_context(opened(browser, board.url)) for _ in range(PAGES)]
        for page in pages:
            shown(page)
        time.sleep(SETTLE_SECONDS)
        daemon, own, relayed = percent_of_a_core(SECONDS, node.process.pid, board.process.pid, relay)
        memory = pss_mib(board.process.pid), pss_mib(relay)
        more = daemon - alone
        report(
            "daemon's CPU for five pages, 100 grants",
            f"{more:.2f} % of a core more than without, {daemon:.2f} % in all",
            f"{alone:.2f} % without",
            "<= 1 %",
            more <= 1,
        )
        parts = f"{memory[0]:.0f} and the relay's {memory[1]:.0f}; {own + relayed:.1f} % of a core"
        measured = f"{sum(memory):.0f} MiB PSS ({parts})"
        report("dashboard's memory, five pages", measured, "-", "<= 60 MiB", sum(memory) <= 60)


def test_change_to_page(node: Daemon, board: Dashboard, browser: Any, report) -> None:
    with opened(browser, board.url) as page:
        shown(page)
        page.evaluate(_SEE)
        took = []
        for _ in range(CHANGES):
            asked = time.time() * 1000
            grant = node.client.create(memory="300MiB", time="0")["id"]
            at = until(lambda grant=grant: page.evaluate("id => seen[id]", grant), "it is on the page")
            took.append(at - asked)
            node.client.release(grant)
        report("change asked of the daemon to page", spread(took, 0), "-", "p99 <= 1000 ms", p99(took) <= 1000)
