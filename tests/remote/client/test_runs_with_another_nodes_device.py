"""`gpushare run --remote NODE`, `gpushare remote ...` and `gpushare nodes`: programs here use a device there."""

import json
import re
import shlex
import signal
import subprocess

import pytest
from links.slowlink import SlowLink
from remote import carrier, sshd
from run import running
from run.waiting import until

SHARE = ("--memory", "1GiB", "--time", "10%")
ANY_LINK = ("--link-min", "any")
"""This machine may be too busy for a good one."""
GOT = re.compile(r"gpushare: 1GiB and 10%: .* in \d+\.\d s.*; link .* there and .* back\n")


@pytest.fixture
def node(elsewhere):
    yield elsewhere.node
    until(lambda: not elsewhere.node.client.grants(), "the grants end", 30)


def remote(elsewhere, name, *command, options=ANY_LINK, share=SHARE):
    return elsewhere.cli("run", "--remote", name, *share, *options, "--", *command)


def test_a_program_here_uses_a_device_there(elsewhere, node):
    script = f"env; {running.SPIN} --seconds 0.05; exit 9"
    done = remote(elsewhere, elsewhere.ssh, "sh", "-c", script)
    assert done.returncode == 9, done.stderr
    assert GOT.search(done.stderr), done.stderr
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert found["LD_LIBRARY_PATH"].split(":")[0] == str(carrier.client())
    assert re.fullmatch(r"127\.0\.0\.1:\d+", found["CARRIER_SERVER"])
    assert "LD_PRELOAD" not in found and "GPUSHARE_GRANT_DIR" not in found


def test_a_signal_goes_to_the_command(elsewhere, node):
    script = 'trap "echo term; exit 5" TERM; echo ready; while :; do sleep 1 & wait; done'
    words = ("run", "--remote", f"unix:{node.layout.socket}", *SHARE, *ANY_LINK, "--", "sh", "-c", script)
    run = running.start([*running.GPUSHARE, *words], elsewhere.env)
    assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=30)
    assert (said, run.wait(30)) == ("term\n", 5)


def test_killed_it_leaves_nothing(elsewhere, node):
    words = ("run", "--remote", f"unix:{node.layout.socket}", *SHARE, *ANY_LINK, "--", str(running.SPIN))
    run = running.start([*running.GPUSHARE, *words], elsewhere.env)
    assert run.stdout.readline()
    run.kill()
    run.communicate(timeout=30)
    until(lambda: not node.client.grants(), "the grant ends with it", 30)


@pytest.mark.parametrize(
    ("target", "options", "share", "status", "said"),
    [
        ("HERE", ANY_LINK, ("--memory", "900GiB", "--time", "1%"), 3, "900GiB"),
        ("HERE", ("--carrier", "none"), SHARE, 2, "no carrier 'none'"),
        ("HERE", (), (), 2, "give --memory and --time"),
        ("HERE", ("--on", "x"), SHARE, 2, "give one of them"),
        ("HERE", ("--simulate", "1x1GiB"), SHARE, 2, "leave out --remote"),
        ("HERE", ("--socket", "/x"), SHARE, 2, "--remote unix:/x"),
        ("unix:/no/such.sock", (), SHARE, 4, "/no/such.sock"),
        (f"ssh:{sshd.OFF}", (), SHARE, 4, "Connection refused"),
        ("ssh:far:/no/such.sock", (), SHARE, 4, "no daemon answers at /no/such.sock on far"),
        ("-x", (), SHARE, 2, "no host for ssh"),
    ],
)
def test_why_it_does_not_start(elsewhere, node, target, options, share, status, said):
    there = f"unix:{node.layout.socket}" if target == "HERE" else target
    done = elsewhere.cli("run", f"--remote={there}", *share, *options, "--", "true")
    assert done.returncode == status, done.stderr
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_a_slow_link_is_refused_with_its_numbers_unless_it_is_wanted(elsewhere, node):
    with SlowLink(elsewhere.relay, delay=0.005) as link:
        host, port = link.address
        elsewhere.write(f'[nodes.slow]\ntarget = "unix:{node.layout.socket}"\nrelay = "{host}:{port}"\n')
        done = remote(elsewhere, "slow", "true", options=())
        assert done.returncode == 3
        assert re.search(
            r"link to slow is too slow: round trip \d\d+ ms, .*; poor is at most 1 ms, 1 Gbit/s", done.stderr
        )


@pytest.mark.slow
def test_a_grant_that_is_kept_is_used_again_and_again(elsewhere, node):
    kept = node.client.create(memory="1GiB", time=100, keep=True)["id"]
    try:
        for _ in range(2):
            done = remote(elsewhere, elsewhere.ssh, running.SPIN, "--seconds", "0.02", share=("--grant", kept))
            assert done.returncode == 0, done.stderr
    finally:
        node.client.release(kept)


def test_what_the_nodes_have(elsewhere, node):
    here, there = f"unix:{node.layout.socket}", elsewhere.ssh
    elsewhere.write(
        f'[nodes.a]\ntarget = "{here}"\n[nodes.b]\ntarget = "{there}"\nlabels = {{ rack = "r1" }}\n'
        f'[nodes.off]\ntarget = "ssh:{sshd.OFF}"\n[nodes.none]\ntarget = "unix:/no/such.sock"\n'
    )
    done = elsewhere.cli("nodes", "--json", "--wait", "30")
    found = {one["name"]: one for one in json.loads(done.stdout)["nodes"]}
    for name in "ab":
        one = found[name]
        assert (one["devices"], one["trouble"], one["reason"]) == (2, "", ""), one
        assert one["memory_free_bytes"] <= one["memory_bytes"] and one["time_milli"] == 2000
        assert one["carriers"] == [carrier.NAME] and one["relay"]["port"] > 0
    assert found["b"]["labels"] == {"rack": "r1"}
    assert "Connection refused" in found["off"]["trouble"] and "/no/such.sock" in found["none"]["trouble"]
    table = elsewhere.cli("nodes", "--wait", "30").stdout
    assert re.search(r"^a +2 +\S+ of \S+ +200% of 200% +tests ", table, re.MULTILINE), table


def test_any_takes_a_node_where_it_fits(elsewhere, node):
    elsewhere.write(f'[nodes.off]\ntarget = "ssh:{sshd.OFF}"\n[nodes.gpu1]\ntarget = "{elsewhere.ssh}"\n')
    done = remote(elsewhere, "any", running.SPIN, "--seconds", "0.02", options=ANY_LINK)
    assert done.returncode == 0, done.stderr
    done = remote(elsewhere, "any", "true", share=("--memory", "900GiB", "--time", "1%"))
    assert done.returncode == 3
    assert "gpu1: " in done.stderr and "off: " in done.stderr and done.stderr.count("\n") == 1


def attach(elsewhere, *options):
    words = [*running.GPUSHARE, "remote", "attach", *SHARE, *ANY_LINK, *options, f"unix:{elsewhere.node.layout.socket}"]
    return running.start(words, elsewhere.env)


def test_an_attachment_is_held_for_programs_of_this_machine(elsewhere, node):
    held = attach(elsewhere, "--json")
    told = json.loads(held.stdout.readline())
    for _ in range(2):
        env = {**elsewhere.env, **told["env"]}
        subprocess.run([running.SPIN, "--seconds", "0.02"], env=env, check=True, capture_output=True)
    listed = json.loads(elsewhere.cli("remote", "list", "--json", elsewhere.ssh).stdout)["attachments"]
    (mine,) = [one for one in listed if one["id"] == told["attachment"]]
    assert (mine["grant"], mine["ending"]) == (told["grant"], "")
    assert mine["link"]["checked"] == told["link"]["checked"]
    assert mine["grant"] in elsewhere.node.cli("remote", "list").stdout
    held.send_signal(signal.SIGINT)
    held.communicate(timeout=30)
    assert held.wait(30) == 0

    def row():
        table = elsewhere.node.cli("remote", "list", "--since", "1h").stdout
        return re.search(rf"^ *{told['attachment'][:8]} .* detached$", table, re.MULTILINE)

    until(row, "its end is listed", 30)
    assert not elsewhere.node.cli("remote", "list", "--since", "2999-01-01", "--json").stdout.count(mine["id"])


def test_the_lines_for_a_shell_are_what_it_takes_until_the_grant_is_released(elsewhere, node):
    held = attach(elsewhere)
    lines = [held.stdout.readline()]
    while "LD_LIBRARY_PATH" not in lines[-1]:
        lines.append(held.stdout.readline())
        assert lines[-1]
    script = "".join(lines) + f"exec {shlex.quote(str(running.SPIN))} --seconds 0.02"
    subprocess.run(["sh", "-c", script], env=elsewhere.env, check=True, capture_output=True)
    (grant,) = node.client.grants()
    node.client.release(grant["id"])
    _, said = held.communicate(timeout=30)
    assert held.wait(30) == 1
    assert "the link to unix:" in said and " is gone: " in said


def test_the_check_alone_needs_no_carrier_here(elsewhere, node, tmp_path):
    done = elsewhere.cli("remote", "check", "--json", elsewhere.ssh, env={**elsewhere.env, "HOME": str(tmp_path)})
    found = json.loads(done.stdout)
    assert found["checked"] in ("good", "fair", "poor", "refused")
    assert found["rtt_us"] > 0 and found["up_bps"] > 0 and found["down_bps"] > 0


@pytest.mark.slow
def test_a_link_that_is_lost_while_the_program_runs(elsewhere, node):
    """The command goes on, with the error that its calls return, and ends as it wants."""
    with SlowLink(elsewhere.relay) as link:
        host, port = link.address
        elsewhere.write(f'[nodes.far]\ntarget = "unix:{node.layout.socket}"\nrelay = "{host}:{port}"\n')
        words = ("run", "--remote", "far", *SHARE, *ANY_LINK, "--", "sh", "-c", f"{running.SPIN} --seconds 60; exit 6")
        run = running.start([*running.GPUSHARE, *words], elsewhere.env)
        assert run.stdout.readline()
        link.cut()
        _, errors = run.communicate(timeout=60)
        assert run.wait(30) == 6
        assert "the link to far is gone: nothing was heard over it for too long" in errors
        assert carrier.LOST in errors
        until(lambda: not any(book["bytes"] for book in node.client.sim_stats()["devices"]), "the bytes return", 30)
