"""The verbs that talk to a daemon: text and JSON agree, and exit codes report the outcome. Each family runs once as a
process; the other calls run in the test's process, which is equivalent."""

import json
import os
import subprocess
import sys


def grant_of(daemon, *options, run=None):
    run = run or daemon.cli_here
    done = run("grant", "create", "--memory", "1GiB", "--time", "30%", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_grant_verbs(daemon):
    grant_id = grant_of(daemon, "--key", "k", "--class", "inference", "--gpu", "1", run=daemon.cli)
    assert grant_of(daemon, "--key", "k", "--class", "inference", "--gpu", "1") == grant_id
    shown = json.loads(daemon.cli_here("grant", "show", grant_id, "--json").stdout)
    assert (shown["class"], shown["devices"][0]["index"], shown["devices"][0]["time_milli"]) == ("inference", 1, 300)
    text = daemon.cli_here("grant", "show", grant_id).stdout
    assert f"gpushare.dev/gpu={grant_id}" in text
    assert "time 30%" in text
    resized = json.loads(daemon.cli_here("grant", "resize", grant_id, "--time", "0.4", "--json").stdout)
    assert resized["devices"][0]["time_milli"] == 400
    assert grant_id in daemon.cli_here("grant", "list").stdout
    assert grant_id in daemon.cli("ps").stdout
    assert daemon.cli_here("ps", "-q", "--sort", "-memory").stdout == f"{grant_id}\n"
    lines = daemon.cli_here("ps", "-o", "grant,asked,got,program", "--tenant", "default").stdout.splitlines()
    assert [line.split() for line in lines] == [["GRANT", "ASKED", "GOT", "PROGRAM"], [grant_id, "40%", "0%", "-"]]
    assert daemon.cli_here("ps", "--tenant", "defaul").stdout == "no grants\n"
    for wrong in (["-o", "gpu"], ["--sort", "-gpu"], ["--sort", "--all"], ["-q", "--json"], ["-q", "-o", "grant"]):
        refused = daemon.cli_here("ps", *wrong)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused.stderr
    assert daemon.cli_here("grant", "release", grant_id).returncode == 0
    assert daemon.cli_here("ps").stdout == "no grants\n"
    assert json.loads(daemon.cli_here("ps", "--json").stdout) == {"grants": []}
    rows = [
        line.split(maxsplit=2) for line in daemon.cli_here("ps", "--all", "-o", "grant,got,reason").stdout.splitlines()
    ]
    assert [row[1:] for row in rows if row[0] == grant_id] == [["-", f"released by uid {os.geteuid()}"]]


def test_managed_memory_can_be_refused(daemon):
    assert json.loads(daemon.cli_here("grant", "show", grant_of(daemon), "--json").stdout)["managed"] == "charge"
    refusing = grant_of(daemon, "--managed", "refuse")
    assert json.loads(daemon.cli_here("grant", "show", refusing, "--json").stdout)["managed"] == "refuse"


def test_devices_and_sim_and_top(daemon):
    text = daemon.cli("devices").stdout
    assert "simulated" in text.splitlines()[0]
    assert json.loads(daemon.cli_here("devices", "--json").stdout)["devices"][1]["index"] == 1
    books = json.loads(daemon.cli("sim", "stats", "--json").stdout)
    assert len(books["devices"]) == 2
    libdir = daemon.cli_here("sim", "libdir").stdout.strip()
    assert libdir.endswith("/_lib/sim")
    grant_id = grant_of(daemon)
    assert grant_id in daemon.cli("top", "--count", "1").stdout


def test_tenant_verbs(daemon):
    done = daemon.cli("tenants", "set", "research", "--time", "75%", "--memory", "8GiB", "--users", "root,7", "--json")
    made = json.loads(done.stdout)
    assert (made["tenant"]["guarantee"], made["before"]) == ({"time": 750, "memory": 8 << 30}, None)
    for given, said, warned in (
        (["--groups", "root"], "research: groups none -> root\n", 0),
        (["--time", "750m", "--users", "root,7"], "research: nothing changes\n", 0),
        (
            ["--users", "eve7", "--time-limit", "100%"],
            "research: time_limit none -> 100%\nresearch: users root,7 -> eve7\n",
            1,
        ),
        (["--users", "none", "--groups", "none"], "research: users eve7 -> none\nresearch: groups root -> none\n", 0),
        (["--time-limit", "none", "--placement", "none"], "research: time_limit 100% -> none\n", 0),
    ):
        done = daemon.cli_here("tenants", "set", "research", *given)
        assert (done.returncode, done.stdout, done.stderr.count("no user eve7")) == (0, said, warned), given
    assert "guaranteed\nroot alone may use other" in daemon.cli_here("tenants", "set", "other").stdout
    assert daemon.cli_here("tenants", "remove", "other").returncode == 0
    listed = json.loads(daemon.cli_here("tenants", "list", "--json").stdout)["tenants"]
    assert [tenant["name"] for tenant in listed] == ["default", "research"]
    assert "research" in daemon.cli_here("tenants", "list").stdout
    grant_id = grant_of(daemon, "--tenant", "research")
    refused = daemon.cli("tenants", "remove", "research")
    assert (refused.returncode, grant_id in refused.stderr) == (3, True)
    daemon.cli_here("grant", "release", grant_id)
    assert daemon.cli_here("tenants", "remove", "research").returncode == 0


def test_exit_codes_of_answers(daemon):
    cases = [
        (["grant", "show", "g-nothing"], 2, "no grant"),
        (["grant", "create", "--memory", "17GiB", "--time", "30%"], 3, "does not fit"),
        (["grant", "create", "--memory", "1GiB", "--time", "30%", "--tenant", "nobody"], 2, "nobody"),
        (["grant", "create", "--memory", "1GiB", "--time", "30%", "--gpu", "9"], 2, "9"),
        (["grant", "create", "--memory", "1GiB", "--time", "30%", "--devices", "3"], 3, "3 devices"),
    ]
    for arguments, status, answer in cases:
        done = daemon.cli_here(*arguments)
        assert (done.returncode, done.stdout) == (status, ""), arguments
        assert answer in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_watch_and_events(daemon, client):
    epoch = client.node()["epoch"]
    command = [sys.executable, "-m", "gpushare", "watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=daemon.env, cwd=daemon.state_dir) as watching:
        assert json.loads(watching.stdout.readline())["type"] == "bookmark"
        grant = client.create(memory="1GiB", time="10%")
        assert json.loads(watching.stdout.readline())["object"]["id"] == grant["id"]
        daemon.kill()
        assert watching.wait(20) == 4, "a stream that ends is not a success"
    daemon.start()
    found = json.loads(daemon.cli("events", "--json").stdout)
    assert found == {"epoch": epoch + 1, "after": 0, "newest": 0, "lost": 0, "events": []}


def test_doctor_sees_the_daemon(daemon):
    findings = json.loads(daemon.cli("doctor", "--json").stdout)["findings"]
    [found] = [finding for finding in findings if finding["what"] == "daemon"]
    assert found["level"] == "ok"
    assert "2 simulated devices" in found["found"]
