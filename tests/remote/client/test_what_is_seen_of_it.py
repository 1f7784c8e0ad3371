"""What people, the ledger and metrics see of a program on another machine: as it runs, when its daemon is killed, and
afterwards."""

import json
import re
import socket

import pytest
from run import running
from run.waiting import until
from views.scrapes import samples

from gpushare.ledger.verify import verify

HERE = socket.gethostname()
SHARE = ("--memory", "1GiB", "--time", "30%", "--link-min", "any")


@pytest.fixture
def spins(elsewhere):
    """A grant, and a program on another machine that works on its device until it is closed."""
    node = elsewhere.node
    words = ("run", "--remote", f"unix:{node.layout.socket}", *SHARE, "--", str(running.SPIN))
    spin = running.Tenant([*running.GPUSHARE, *words], elsewhere.env)
    try:
        spin.tell("run 200000 50")
        [grant] = node.client.grants()
        yield grant["id"], spin
    finally:
        spin.close()
    until(lambda: not node.client.grants(), "the grant ends", 30)


def measured(node, grant):
    """Its only attachment, once its link is measured."""

    def find():
        [one] = node.client.grant(grant)["attachments"]
        return one if one["link"]["rtt_us"] and one["bytes_in"] else None

    return until(find, "the relay has told", 20)


def by_origin(node):
    return {row["origin"]: row for row in node.client.usage(by="origin")["rows"]}


def used(row):
    return row and row["guaranteed_ns"] + row["borrowed_ns"] + row["extra_ns"]


def test_who_uses_it_from_where_over_what(elsewhere, spins):
    node, (grant, _) = elsewhere.node, spins
    one = measured(node, grant)
    assert one["origin"] == HERE and one["link"]["checked"]
    [_, row] = elsewhere.node.cli("ps", "-o", "grant,from,link").stdout.splitlines()
    assert row.split()[:2] == [grant, HERE] and re.search(r"  [0-9.]+[um]s", row)
    shown = node.cli("grant", "show", grant).stdout
    assert f"  attached    from {HERE} (127.0.0.1), over tests, TLS: round trip" in shown
    story = node.cli("why", grant).stdout
    assert f"attached from {HERE}" in story
    assert f"{grant}  attached from {HERE} (127.0.0.1), over tests, TLS" in node.cli("events", "--attachments").stdout
    found = {(name, *own.values()): value for name, own, value in samples(node.client.text("/metrics"))}
    assert found["gpushare_remote_attachments", "default"] == 1
    assert found["gpushare_remote_link_rtt_seconds", grant, "default"] > 0
    assert found["gpushare_remote_bytes_total", "default", "in"] > 0


def test_a_killed_daemon_loses_a_second_of_it(elsewhere, spins):
    """The next one is told by the relay what went on meanwhile."""
    node, (grant, spin) = elsewhere.node, spins
    before = measured(node, grant)
    until(lambda: used(by_origin(node).get(HERE)), "its time counts", 20)
    node.kill()
    node.start()
    until(lambda: node.client.grant(grant)["attachments"], "the relay has told", 20)
    after = until(lambda: (now := measured(node, grant))["bytes_in"] > before["bytes_in"] and now, "it goes on", 20)
    assert (after["id"], after["created_ns"], after["origin"]) == (before["id"], before["created_ns"], HERE)
    had = used(by_origin(node)[HERE])
    until(lambda: used(by_origin(node)[HERE]) > had, "its time counts for that machine again", 20)
    spin.tell("idle")
    spin.close()
    over = until(
        lambda: [one for one in node.client.remote(grant=grant)["attachments"] if one["ending"]], "it ends", 30
    )
    [end] = over
    assert (end["id"], end["ending"]) == (before["id"], "detached")
    assert end["bytes_in"] >= after["bytes_in"] and end["link"]["rtt_us"] and end["link"]["checked"]
    until(lambda: not node.client.grants(), "the grant ends", 30)
    rows = by_origin(node)
    # A second may have ended between the grant's binding and its attachment.
    assert used(rows[HERE]) > 0 and not used(rows.get("")), "no part of its time counts as this node's own"
    table = node.cli("usage", "--by", "origin").stdout
    assert re.search(rf"^{re.escape(HERE)} +default ", table, re.M)
    assert f",{HERE},default," in node.cli("usage", "--by", "origin", "--format", "csv").stdout
    assert json.loads(node.cli("usage", "--by", "origin", "--json").stdout)["rows"][-1]["origin"] == HERE
    said = node.cli("events", "--attachments", "--grant", grant).stdout.splitlines()
    assert len(said) == 2 and "the client ended it" in said[1]
    assert "detached from" in node.cli("why", grant).stdout
    path = node.layout.state / "ledger.db"

    def audited():
        found = verify(path)
        return found if found["tables"]["attachments"]["rows"] else None

    found = until(audited, "the disk has it", 20)
    assert found["ok"] and found["tables"]["attachments"]["rows"] >= 1
