"""What a link would cost a program, and what it costs one: of real nodes, whatever the numbers are."""

import json
import re

from run import running
from run.waiting import until

SHARE = ("--memory", "1GiB", "--time", "30%", "--link-min", "any")


def test_a_program_here_is_predicted_on_another_node_and_there_it_is_told_what_its_link_costs(elsewhere):
    node = elsewhere.node
    far = f"unix:{node.layout.socket}"
    here = node.spin("1GiB", "30%")
    [grant] = [one["id"] for one in node.client.grants()]
    for _ in range(50):
        here.tell("memory")
    here.close()
    until(lambda: not node.client.grants(), "the grant ends", 30)
    done = elsewhere.cli("plan", "--socket", node.layout.socket, "--remote", far, "--like", grant)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"[0-9.]+ synchronising calls/s, 0 B/s: \S.* on unix:\S+ \(\S+ [um]s, \S+ .bit/s\)\n", done.stdout
    )
    done = elsewhere.cli(
        *("plan", "--socket", node.layout.socket, "--like", grant, "--json"),
        *("--remote", far, "--remote", "unix:/none"),
    )
    known, unknown = json.loads(done.stdout)["nodes"]
    counted = node.client.grant(grant)
    assert counted["sync_calls"] == 53
    waits = 53 * (known["rtt_us"] + 30) / 1e6
    assert abs(known["slowdown"] - waits / (counted["running_ns"] / 1e9)) < 1e-9
    assert "no daemon at /none" in unknown["trouble"]

    there = running.Tenant([*running.GPUSHARE, "run", "--remote", far, *SHARE, "--", str(running.SPIN)], elsewhere.env)
    [grant] = [one["id"] for one in node.client.grants()]

    def told():
        for _ in range(100):
            there.tell("memory")
        return [text for text in node.client.call("GET", f"/v1/explain/{grant}")["why"] if "its link" in text]

    [reason] = until(told, "its link is a reason", 30)
    there.close()
    assert re.match(r"its link makes its programs about [0-9.]+ % slower \(round trip ", reason)
    assert "fewer synchronising calls" in reason
