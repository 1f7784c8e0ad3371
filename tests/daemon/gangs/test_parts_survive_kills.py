"""Parts of gangs survive daemons killed at each step, clocks that are set, and machines that are restarted."""

import contextlib
import sqlite3

import pytest
from run.waiting import until

from gpushare.errors import GoneError, GpushareError, UnreachableError

GIB = 1 << 30
HALF = {"memory": 7 * GIB, "time": 400}
GRANTS = [{**HALF, "keep": True}, HALF]


def held(client):
    found = [device["guaranteed"] for device in client.devices()]
    return sum(one["time"] for one in found), sum(one["memory"] for one in found)


BOTH = (800, 14 * GIB)


def phases(client):
    return [grant["phase"] for grant in client.grants()]


@pytest.mark.parametrize("stop", ["kill", "terminate"])
def test_parts_survive_the_daemon(daemon, stop):
    client = daemon.client
    client.prepare(f"{stop}-open", GRANTS)
    client.prepare(f"{stop}-done", [{**HALF, "keep": True}])
    done = client.commit(f"{stop}-done")
    client.abort(f"{stop}-over")
    client.prepare(f"{stop}-late", [HALF], ttl_seconds=1)
    getattr(daemon, stop)()
    daemon.start()
    assert client.commit(f"{stop}-done")["grant_ids"] == done["grant_ids"]
    assert len(client.commit(f"{stop}-done")["grants"]) == 1
    assert client.prepare(f"{stop}-open", GRANTS)["phase"] == "prepared"
    committed = client.commit(f"{stop}-open")
    assert [grant["phase"] for grant in committed["grants"]] == ["reserved", "reserved"]
    with pytest.raises(GoneError):
        client.prepare(f"{stop}-over", GRANTS)
    until(lambda: len(client.grants()) == 3, "the one that nobody commits expires")
    with pytest.raises(GoneError, match="not committed within 1 s"):
        client.commit(f"{stop}-late")
    for grant in committed["grants"]:
        client.bind(grant["id"], "container")


def another_boot(daemon):
    """Makes the ledger look as if the machine had been restarted while no daemon ran."""
    with contextlib.closing(sqlite3.connect(daemon.layout.ledger)) as ledger:
        [(boot,)] = ledger.execute("SELECT DISTINCT boot_id FROM runs").fetchall()
        ledger.execute("UPDATE runs SET boot_id = 'another'")
        ledger.execute("UPDATE parts SET state = replace(state, ?, 'another')", (boot,))
        ledger.commit()
    for path in daemon.layout.grants.glob("ledger.recent*"):  # on tmpfs
        path.unlink()


def test_they_survive_a_reboot_with_what_is_left_of_their_time(make_daemon):
    daemon = make_daemon().start()
    client = daemon.client
    client.prepare("long", GRANTS, ttl_seconds=600)
    client.prepare("short", [HALF], ttl_seconds=2)
    expires = [part["expires_ns"] for part in client.gangs()]
    daemon.written()
    daemon.kill()
    another_boot(daemon)
    daemon.start()
    until(lambda: len(client.grants()) == 2, "the short one expires", 20)
    assert client.gangs()[0]["expires_ns"] - expires[0] < 1_000_000_000
    daemon.kill()
    daemon.start()  # the times are now by this boot's clock
    assert phases(client) == ["prepared", "prepared"]
    for grant in client.commit("long")["grants"]:
        client.bind(grant["id"], "container")


# Where the daemon is killed: (module, function, before or after the call, which call).
POINTS = [
    ("grants.grants", "Grants.prepare", "before", 2),
    ("grants.grants", "Grants.prepare", "after", 2),
    ("grants.gang_parts", "GangParts.put", "before", 1),
    ("grants.gang_parts", "GangParts.put", "after", 1),
    ("grants.transitions", "Transitions.send", "before", 2),
    ("grants.transitions", "Transitions.send", "after", 2),
    ("http.api", "Api._part", "before", 1),
    ("http.requests", "json_answer", "before", 1),
]
KILLER = """
import importlib, os, pathlib, signal
def arm(module, name, when, number, flag):
    owner = importlib.import_module(f"gpushare.daemon.{{module}}")
    *parts, last = name.split(".")
    for part in parts:
        owner = getattr(owner, part)
    usual, calls = getattr(owner, last), []
    def killed(*arguments, **options):
        due = flag.exists() and (calls.append(0) or len(calls) == number)
        if not due or when == "after":
            answer = usual(*arguments, **options)
        if due:
            flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    setattr(owner, last, killed)
arm({module!r}, {name!r}, {when!r}, {number!r}, pathlib.Path({flag!r}))
"""


def some(points):
    """All points; those that differ least from others are marked slow."""
    quick = {("grants.grants", "after"), ("grants.gang_parts", "after"), ("http.requests", "before")}
    return [
        pytest.param(
            point, marks=() if (point[0], point[2]) in quick else pytest.mark.slow, id=" ".join(map(str, point))
        )
        for point in points
    ]


@pytest.fixture
def armed(make_daemon, tmp_path):
    """Makes a daemon that is killed at a point of the next call once a flag file exists; returns both."""

    def make(point):
        module, name, when, number = point
        flag = tmp_path / "flag"
        program = KILLER.format(module=module, name=name, when=when, number=number, flag=str(flag))
        return make_daemon().patch(*program.strip().splitlines()).start(), flag

    return make


def killed_in(daemon, flag, call):
    flag.touch()
    with pytest.raises(UnreachableError):
        call()
    assert daemon.process.wait() != 0
    daemon.start()
    assert not flag.exists()


# A new grant sees no transitions.
@pytest.mark.parametrize("point", some(point for point in POINTS if point[0] != "grants.transitions"))
def test_a_prepare_that_is_killed_is_there_or_not_and_may_be_asked_again(armed, point):
    daemon, flag = armed(point)
    client = daemon.client
    killed_in(daemon, flag, lambda: client.prepare("job", GRANTS))
    parts = client.gangs()
    assert phases(client) == ["prepared"] * (2 * len(parts))
    assert held(client) == (BOTH if parts else (0, 0))
    part = client.prepare("job", GRANTS)
    assert (phases(client), held(client)) == (["prepared"] * 2, BOTH)
    assert not parts or part["grant_ids"] == parts[0]["grant_ids"]
    client.commit("job")
    assert phases(client) == ["reserved"] * 2


@pytest.mark.parametrize("decision", ["commit", "abort"])
@pytest.mark.parametrize("point", some(point for point in POINTS if point[0] != "grants.grants"))
def test_a_decision_that_is_killed_is_made_or_not_and_may_be_asked_again(armed, point, decision):
    daemon, flag = armed(point)
    client = daemon.client
    part = client.prepare("job", GRANTS)
    decide = getattr(client, decision)
    killed_in(daemon, flag, lambda: decide("job"))
    [found] = client.gangs()
    after = {"commit": ("committed", ["reserved"] * 2), "abort": ("aborted", [])}[decision]
    assert (found["phase"], phases(client)) in [("prepared", ["prepared"] * 2), after]
    assert decide("job")["phase"] == after[0]
    assert phases(client) == after[1]
    assert held(client) == (BOTH if decision == "commit" else (0, 0))
    if decision == "commit":
        assert [grant["id"] for grant in client.grants()] == part["grant_ids"]
        with pytest.raises(GpushareError):
            client.abort("job")


def test_a_grant_whose_part_is_lost_ends(make_daemon):
    daemon = make_daemon().start()
    client = daemon.client
    client.prepare("lost", GRANTS)
    client.prepare("odd", [HALF])
    daemon.written()
    daemon.kill()
    with contextlib.closing(sqlite3.connect(daemon.layout.ledger)) as ledger:
        ledger.execute("DELETE FROM parts WHERE id LIKE '%lost%'")
        ledger.execute("UPDATE parts SET state = '{}' WHERE id LIKE '%odd%'")
        ledger.commit()
    daemon.start()
    assert (client.grants(), client.gangs(), held(client)) == ([], [], (0, 0))
    assert client.node()["ledger"]["set_aside"] == 1
    client.prepare("odd", [HALF])


def test_a_part_whose_grant_is_lost_ends(make_daemon):
    daemon = make_daemon().start()
    client = daemon.client
    part = client.prepare("job", GRANTS)
    daemon.written()
    daemon.kill()
    with contextlib.closing(sqlite3.connect(daemon.layout.ledger)) as ledger:
        ledger.execute("DELETE FROM grants WHERE id = ?", (part["grant_ids"][0],))
        ledger.commit()
    daemon.start()
    assert (client.grants(), held(client)) == ([], (0, 0))
    with pytest.raises(GoneError, match="1 of its grants were lost"):
        client.commit("job")
