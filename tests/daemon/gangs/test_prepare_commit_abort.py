"""A gang's part on this node is prepared, then committed or aborted, as a whole."""

import importlib.util
import os
import re
import subprocess
import sys
from itertools import count

import pytest
from machine.members import NOBODY, as_nobody, open_to_members
from run.built import ROOT
from run.waiting import until

from gpushare.aio import AsyncClient
from gpushare.client import Client
from gpushare.errors import FailedError, ForbiddenError, GoneError, NotFoundError, RefusedError, UsageError

GIB = 1 << 30
HALF = {"memory": 8 * GIB - (64 << 20), "time": 500}
numbers = count()


@pytest.fixture
def gang():
    """An id that no other test uses."""
    return f"job-{next(numbers)}"


def held(client):
    """Time and memory guaranteed on all devices together, as admission counts them."""
    found = [device["guaranteed"] for device in client.devices()]
    return sum(one["time"] for one in found), sum(one["memory"] for one in found)


def ids(part):
    return [grant["id"] for grant in part["grants"]]


def test_what_is_prepared_is_held_and_cannot_be_used(client, gang, phase_of):
    part = client.prepare(gang, [HALF], ttl_seconds=600)
    [grant] = part["grants"]
    assert (part["phase"], grant["phase"], part["grant_ids"]) == ("prepared", "prepared", [grant["id"]])
    assert grant["part_of"] == {"gang": gang, "part": "0"}
    assert grant["expires_ns"] == part["expires_ns"] > 0
    assert held(client) == (500, HALF["memory"])
    assert not client.plan(memory=HALF["memory"], time=600, device=grant["devices"][0]["index"])["fits"]
    for kind in ("process", "container"):
        with pytest.raises(RefusedError, match="its gang is not committed: commit that first"):
            client.bind(grant["id"], kind)
    with pytest.raises(RefusedError, match="its gang is not committed"):
        client.call("POST", f"/v1/hooks/create-runtime?grant={grant['id']}", {"pid": os.getppid()})
    committed = client.commit(gang)
    assert (committed["phase"], committed["grant_ids"]) == ("committed", part["grant_ids"])
    assert phase_of(grant["id"]) == "reserved"
    client.bind(grant["id"], "container")
    assert phase_of(grant["id"]) == "bound"
    decided = [one["what"] for one in client.call("GET", f"/v1/explain/{grant['id']}")["decisions"]]
    assert decided == ["admitted", "prepared", "committed"]


def test_a_part_that_fits_only_in_part_is_refused_and_nothing_is_kept_for_it(client, gang):
    fit = 2 * len(client.devices())
    with pytest.raises(RefusedError) as refused:
        client.prepare(gang, [HALF] * (fit + 1))
    assert type(refused.value) is RefusedError, "no later request will fit"
    assert f"grants[{fit}]: " in str(refused.value)
    assert len(client.prepare(f"{gang}-other", [HALF] * fit)["grants"]) == fit


def test_messages_may_come_twice(client, gang):
    grants = [{**HALF, "keep": True}, {**HALF, "key": f"{gang}.1"}]
    first = client.prepare(gang, grants)
    assert ids(client.prepare(gang, grants)) == ids(first)
    for other in ([HALF], [*grants, HALF], grants[::-1]):
        with pytest.raises(RefusedError, match="was prepared with another request"):
            client.prepare(gang, other)
    with pytest.raises(RefusedError, match="was prepared with another request"):
        client.prepare(gang, grants, ttl_seconds=7)
    assert ids(client.commit(gang)) == ids(client.commit(gang)) == ids(first)
    again = client.prepare(gang, grants)
    assert (again["phase"], ids(again)) == ("committed", ids(first))
    with pytest.raises(RefusedError, match="is committed: release its grants"):
        client.abort(gang)
    for grant in ids(first):
        client.release(grant)
    assert client.commit(gang)["grants"] == []
    assert client.prepare(gang, grants)["grants"] == [], "it is over: nothing is made anew"


@pytest.mark.parametrize("uid", [-1, -(10**30), 1 << 32])
def test_only_numbers_of_users_are_users(client, gang, uid):
    for verb in ("commit", "abort"):
        with pytest.raises(UsageError, match=r"Expected `int` [<>]= [0-9]+ - at `\$.uid`"):
            client.call("POST", f"/v1/gangs/{gang}/{verb}", {"part": "0", "uid": uid})
    with pytest.raises(UsageError, match=r"at `\$.uid`"):
        client.create(memory="1GiB", time="10%", uid=uid)


def test_what_was_aborted_does_not_come_back(client, gang):
    client.prepare(gang, [HALF])
    assert client.abort(gang)["phase"] == client.abort(gang)["phase"] == "aborted"
    assert held(client) == (0, 0)
    for call in (lambda: client.commit(gang), lambda: client.prepare(gang, [HALF])):
        with pytest.raises(GoneError, match=r"was aborted \(aborted by uid 0\): prepare anew under another id"):
            call()
    # The abort arrives before its prepare.
    assert client.abort(f"{gang}.2")["phase"] == "aborted"
    with pytest.raises(GoneError, match="aborted by uid"):
        client.prepare(f"{gang}.2", [HALF])
    with pytest.raises(NotFoundError, match="is not prepared on this node"):
        client.commit(f"{gang}.3")


def test_all_of_a_part_or_nothing(daemon, client, gang):
    events = client.watch(timeout=20)
    next(events)
    with pytest.raises(RefusedError, match=r"grants\[4\]: .*does not fit"):
        client.prepare(gang, [HALF] * 5)
    assert (client.grants(), held(client), daemon.grant_dirs()) == ([], (0, 0), set())
    part = client.prepare(gang, [HALF] * 4)  # the refused prepare did not use up the id
    assert sorted(grant["devices"][0]["index"] for grant in part["grants"]) == [0, 0, 1, 1]
    assert next(events)["object"]["id"] == ids(part)[0], "watchers saw nothing of what did not fit"


def test_a_grant_that_ends_takes_a_prepared_part_with_it(client, gang):
    first, second = ids(client.prepare(gang, [HALF, HALF]))
    client.release(second)
    assert (client.grants(), held(client)) == ([], (0, 0))
    assert f"grant {second} released" in client.grant(first)["reason"]
    with pytest.raises(GoneError, match=f"grant {second} released"):
        client.commit(gang)


def test_grants_that_cannot_be_made_leave_nothing(make_daemon, gang):
    daemon = make_daemon()
    once = (
        "import gpushare.daemon.grants.resources as resources",
        "make, made = resources.Resources.make, []",
        "def failing(self, live, **how):",
        "    made.append(live)",
        "    if len(made) == 2: raise OSError(28, 'No space left on device')",
        "    make(self, live, **how)",
        "resources.Resources.make = failing",
    )
    client = daemon.patch(*once).start().client
    with pytest.raises(FailedError):
        client.prepare(gang, [HALF] * 3)
    assert (client.grants(), held(client), client.gangs()) == ([], (0, 0), [])
    assert len(client.prepare(gang, [HALF] * 3)["grants"]) == 3


@pytest.mark.promise("gang-parts-are-the-owners")
def test_what_is_not_committed_in_time_is_given_back(client, gang, phase_of):
    part = client.prepare(gang, [HALF, {**HALF, "ttl_seconds": 300}], ttl_seconds=1)
    until(lambda: not client.grants(), "it expires")
    assert held(client) == (0, 0)
    assert {phase_of(grant) for grant in ids(part)} == {"expired"}
    for call in (
        lambda: client.commit(gang),
        lambda: client.prepare(gang, part["grant_ids"] and [HALF], ttl_seconds=1),
    ):
        with pytest.raises(GoneError, match=r"was expired \(not committed within 1 s\)"):
            call()
    assert client.abort(gang)["phase"] == "expired"


def test_committed_grants_have_their_own_time_to_live(client, gang, phase_of):
    client.prepare(gang, [{**HALF, "ttl_seconds": 1}, {**HALF, "keep": True}], ttl_seconds=600)
    short, kept = ids(client.commit(gang))
    until(lambda: phase_of(short) == "expired", "it is not bound")
    assert phase_of(kept) == "reserved"
    assert ids(client.commit(gang)) == [kept]


def test_watchers_are_notified(client, gang):
    events = client.watch(timeout=20)
    next(events)
    client.prepare(gang, [HALF], part="b")
    client.commit(gang, part="b")
    client.prepare(gang, [HALF], part="c")
    client.abort(gang, part="c")
    client.prepare(gang, [HALF], part="d", ttl_seconds=1)
    message = []
    while not message or message[-1][1] != "GangExpired":
        event = next(events)
        if event["kind"] in ("gang", "grant"):
            found = event["object"]
            message.append((event["type"], event["name"] or found["phase"], found.get("part", event["kind"])))
    assert message == [
        ("added", "prepared", "grant"),
        ("added", "GangPrepared", "b"),
        ("changed", "reserved", "grant"),
        ("changed", "GangCommitted", "b"),
        ("added", "prepared", "grant"),
        ("added", "GangPrepared", "c"),
        ("removed", "released", "grant"),
        ("removed", "GangAborted", "c"),
        ("added", "prepared", "grant"),
        ("added", "GangPrepared", "d"),
        ("removed", "expired", "grant"),
        ("removed", "GangExpired", "d"),
    ]
    assert {part["part"]: part["phase"] for part in client.gangs() if part["gang"] == gang} == {
        "b": "committed",
        "c": "aborted",
        "d": "expired",
    }


def test_a_tenants_limits_hold(client, gang):
    client.set_tenant("a", {"time": 300, "time_limit": 300})
    mine = {"memory": "3GiB", "time": 200, "tenant": "a"}
    with pytest.raises(RefusedError, match=r"grants\[1\]: tenant a is limited to 30%"):
        client.prepare(gang, [mine, mine])
    client.prepare(gang, [mine])
    with pytest.raises(RefusedError, match="tenant a is limited to 30%"):
        client.prepare(f"{gang}.2", [mine])
    with pytest.raises(RefusedError, match="has 1 grants"):
        client.remove_tenant("a")
    client.abort(gang)
    client.prepare(f"{gang}.2", [mine])


def test_keys_are_those_of_all_grants(client, gang):
    own = client.create(**HALF, key=gang)
    with pytest.raises(RefusedError, match=f"is taken by grant {own['id']}"):
        client.prepare(gang, [{**HALF, "key": gang}])
    with pytest.raises(UsageError, match="is taken twice"):
        client.prepare(gang, [{**HALF, "key": "x"}, {**HALF, "key": "x"}])
    [prepared] = ids(client.prepare(gang, [{**HALF, "key": "x"}]))
    assert client.create(**HALF, key="x")["id"] == prepared


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ttl_seconds": 0}, "ttl_seconds 0 is out of range"),
        ({"part": "é\N{ZERO WIDTH SPACE}"}, "a part's name has 1 to 128 printable characters"),
        ({"gang": "x" * 129}, "a gang's id has 1 to 128 printable characters, not 129"),
        ({"grants": []}, "body is not what"),
        ({"grants": [HALF] * 17}, "body is not what"),
        ({"grants": [{**HALF, "uid": 0}]}, r"grants\[0\] has a uid of its own"),
    ],
)
def test_what_makes_no_sense(client, gang, change, message):
    with pytest.raises(UsageError, match=message):
        client.prepare(**{"gang": gang, "grants": [HALF], **change})


@pytest.mark.promise("gang-parts-are-the-owners")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_only_its_owner_and_root(public, gang):
    path, root = public.layout.socket, public.client
    open_to_members(public.layout.socket)
    root.prepare(gang, [HALF])
    for call in ("commit", "abort"):
        message = as_nobody(lambda call=call: getattr(Client(path), call)(gang, uid=0))
        assert message.startswith(ForbiddenError.__name__)
    assert as_nobody(lambda: Client(path).commit(gang)).startswith(NotFoundError.__name__)
    assert as_nobody(lambda: Client(path).abort(gang)) == "ok", "of a gang of its own that is called the same"
    assert root.commit(gang)["phase"] == "committed"
    assert as_nobody(lambda: Client(path).prepare(f"{gang}.2", [HALF])) == "ok"
    with pytest.raises(NotFoundError):
        root.commit(f"{gang}.2")
    [theirs] = root.commit(f"{gang}.2", uid=NOBODY)["grants"]
    assert theirs["uid"] == NOBODY
    [theirs] = root.prepare(f"{gang}.3", [HALF], uid=NOBODY)["grants"]
    assert theirs["uid"] == NOBODY
    assert as_nobody(lambda: Client(path).abort(f"{gang}.3")) == "ok"


@pytest.mark.promise("gang-parts-are-the-owners")
def test_the_oldest_that_are_over_are_forgotten(make_daemon):
    few = ("from gpushare.daemon.grants import gang_parts", "gang_parts.REMEMBERED_MAX = 3")
    client = make_daemon().patch(*few).start().client
    client.prepare("job", [HALF])
    for number in range(5):
        client.abort(f"old-{number}")
    assert [part["gang"] for part in client.gangs()] == ["job", "old-2", "old-3", "old-4"]


def test_the_commands_of_the_page(daemon):
    page = (ROOT / "docs/guides/gangs.md").read_text()
    [block] = re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    message = []
    for line in block.splitlines():
        done = daemon.cli_here(*line.partition("#")[0].split()[1:])
        assert done.returncode == 0, done.stderr
        message.append(done.stdout)
    assert [line.split()[0] for line in message] == ["prepared", "committed", "GANG", "prepared", "aborted"]
    assert re.search(r"^job-7\.1 +0 +committed +0 +g-", message[2], re.MULTILINE)


def test_a_file_of_grants_on_the_command_line(daemon, gang, tmp_path):
    (tmp_path / "grants").write_text('[{"memory": "1GiB", "time": "10%"}, {"memory": "2GiB", "time": 0}]')
    done = daemon.cli_here("gang", "prepare", gang, "--grants", tmp_path / "grants", "--part", "x", "--json")
    assert '"part": "x"' in done.stdout
    assert len(daemon.client.grants()) == 2
    assert f"part        x of gang {gang}" in daemon.cli_here("grant", "show", daemon.client.grants()[0]["id"]).stdout
    for words in (["--memory", "1GiB"], ["--grants", tmp_path / "grants", "--time", "1"], ["--grants", "/dev/null"]):
        assert daemon.cli_here("gang", "prepare", gang, *words).returncode == 2


EXAMPLE = ROOT / "examples/gang.py"


def example(nodes, job, memory):
    words = [word for node in nodes for word in ("--node", str(node.layout.socket))]
    command = [sys.executable, str(EXAMPLE), *words, "--memory", memory, "--time", "50%", job]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_example_places_a_job_on_all_nodes_or_none(daemon, lone):
    nodes = [daemon, lone]
    done = example(nodes, "job", "10GiB")
    assert done.returncode == 0, done.stderr
    placed = dict(line.split() for line in done.stdout.splitlines())
    for node in nodes:
        [grant] = node.client.grants()
        assert placed[str(node.layout.socket)] == grant["id"]
        assert (grant["phase"], grant["keep"], grant["gang"]["size"]) == ("reserved", True, 2)
    done = example(nodes, "second", "10GiB")  # the second node has one device, which is full
    assert (done.returncode, done.stdout) == (3, "")
    assert f"second is not placed: {lone.layout.socket}: " in done.stderr
    assert [len(node.client.grants()) for node in nodes] == [1, 1]


def test_the_example_takes_back_what_is_committed_where_one_was_too_late(daemon, lone):
    spec = importlib.util.spec_from_file_location("gang_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Late(AsyncClient):
        async def commit(self, gang, **which):
            await super().abort(gang)
            return await super().commit(gang, **which)

    async def place():
        async with AsyncClient(daemon.layout.socket) as one, Late(lone.layout.socket) as other:
            await module.place([one, other], "job", {"memory": "1GiB", "time": 100, "keep": True})

    with pytest.raises(RefusedError, match="was aborted"):
        module.asyncio.run(place())
    assert daemon.client.grants() == lone.client.grants() == []
