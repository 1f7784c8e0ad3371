"""Tenants: quotas, who may use them, and the file that stores them."""

import grp
import os
import pwd

import pytest
from run.waiting import until

from gpushare.api.tenants import TenantPatch, TenantPolicy
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.state.tenants import Tenants
from gpushare.errors import ForbiddenError, NotFoundError, RefusedError, UsageError
from gpushare.reader.lookups import is_member
from gpushare.tenants.quotas import parse

GIB = 1 << 30
USER = Peer(pid=1, uid=65534, gid=65534)
ROOT = Peer(pid=1, uid=0, gid=0)


def load(path, text=None):
    if text is not None:
        path.write_text(text)
    return Tenants(path, 2000, 32 * GIB)


def test_default_has_what_no_other_is_guaranteed(tmp_path):
    tenants = load(tmp_path / "t.toml", '[tenants.research]\ntime = "75%"\n')
    assert tenants["research"].time == 750
    assert tenants["default"].time == 1250


def test_who_may_name_a_tenant(tmp_path):
    text = '[tenants.open]\nusers = [65534]\n[tenants.groups]\ngroups = [65534]\n[tenants.closed]\nusers = ["root"]\n'
    tenants = load(tmp_path / "t.toml", text)
    assert tenants.named_by(USER, "open").name == "open"
    assert tenants.members(USER, "groups") == ((), (65534,))
    assert tenants.named_by(USER, "groups", member=True).name == "groups"
    with pytest.raises(ForbiddenError, match="groups"):
        tenants.named_by(USER, "groups")
    assert tenants.named_by(USER, "default").name == "default"
    with pytest.raises(ForbiddenError, match="closed"):
        tenants.named_by(USER, "closed")
    assert tenants.named_by(ROOT, "closed").name == "closed"
    with pytest.raises(NotFoundError, match="open"):
        tenants.named_by(ROOT, "nobody")


def test_members_as_the_user_database_has_them():
    own = pwd.getpwuid(os.getuid())
    primary = grp.getgrgid(own.pw_gid).gr_name
    assert is_member(own.pw_uid, 1, [own.pw_name], []) and is_member(own.pw_uid, 1, [own.pw_uid], [])
    assert is_member(own.pw_uid, own.pw_gid, [], [own.pw_gid])
    assert is_member(own.pw_uid, own.pw_gid, ["none"], ["none", primary])
    assert is_member(64123, 64124, [], [64124])
    assert not is_member(64123, 64124, ["none", own.pw_name, 1], ["none", primary, 1])
    assert not is_member(64123, 64124, [], [])


def test_comments_survive_changes(tmp_path):
    path = tmp_path / "t.toml"
    tenants = load(path, '# who we are\n[tenants.a]\ntime = "50%"  # half\n\n# the others\n[tenants.b]\nweight = 3\n')
    tenants.set("a", TenantPolicy(time="25%"))
    tenants.set("c", TenantPolicy(memory="1GiB"))
    tenants.remove("b")
    text = path.read_text()
    assert "# who we are" in text
    again = load(path)
    assert {tenant.name: tenant.time for tenant in again} == {"default": 1750, "a": 250, "c": 0}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("tenants = {a = {time = '5m', users = [7]}, b = {}}\n", "tenants = {"),
        ("[tenants]  # all\na.time = '5m'\nb = {weight = 2}\n", "[tenants]  # all"),
        ("tenants.a.time = '5m'  # all\ntenants.b.weight = 2\n", "tenants.b.weight"),
    ],
    ids=["inline", "dotted keys", "dotted from the top"],
)
def test_changes_of_a_file_written_in_another_way(tmp_path, text, kept):
    path = tmp_path / "t.toml"
    tenants = load(path, text)
    tenants.set("a", TenantPolicy(time=50, users=["x"]))
    assert {one.name: (one.time, one.users) for one in load(path)} == {
        "default": (1950, ()), "a": (50, ("x",)), "b": (0, ()),
    }  # fmt: skip
    before = path.read_bytes()
    try:
        tenants.set("c", TenantPolicy(time=10))
    except UsageError as refused:
        assert "cannot be changed as it is written: tenants are written as [tenants.NAME]" in str(refused)
        assert path.read_bytes() == before and len(list(tenants)) == 3
    else:
        tenants.remove("b")
        assert [one.name for one in load(path)] == ["default", "a", "c"]
    assert kept in path.read_text()


def test_first_tenant_of_a_new_file(tmp_path):
    path = tmp_path / "deep" / "t.toml"
    tenants = load(path)
    tenants.set("org/team", TenantPolicy(time=300, users=["root", 7]))
    again = load(path)["org/team"]
    assert (again.time, again.users) == (300, ("root", 7))


def test_numbers_of_the_node_api_are_written_so_that_the_file_can_be_read_again(tmp_path):
    path = tmp_path / "t.toml"
    load(path).set("a", TenantPolicy(time=5, memory=4096, host_memory=1 << 30))
    assert (load(path)["a"].time, load(path)["a"].memory, load(path)["a"].host_memory) == (5, 4096, 1 << 30)


def test_a_file_with_a_byte_order_mark_is_read_and_changed(tmp_path):
    path = tmp_path / "t.toml"
    path.write_bytes(b"\xef\xbb\xbf# of Zo\xc3\xab\n[tenants.a]\ntime = '100m'\n")
    load(path).set("b", TenantPolicy(time=200, placement="pack"))
    assert path.read_bytes().startswith(b"# of Zo\xc3\xab\n[tenants.a]")
    again = load(path)
    assert (again["a"].time, again["b"].time, again.placement("a"), again.placement("b")) == (100, 200, None, "pack")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("pipe", "not a file"),
        ("directory", "not a file"),
        (b"\xff", "t.toml:1: byte 0xff is not UTF-8"),
        (b"a = " + b"[" * 100_000, "nested too deep"),
        (b"x = 1\n[tenants", "t.toml:2: Expected"),
    ],
)
def test_what_is_no_file_of_tenants_is_named_and_not_waited_for(tmp_path, kind, message):
    path = tmp_path / "t.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(kind)
    with pytest.raises(UsageError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tenants = 3", "not a table"),
        ("[tenants.A]\n", "not a name"),
        ("[tenants.a]\ntime = -1\n", "-1"),
        ("[tenants.a]\ntiem = 1\n", "tiem"),
        ("[tenant.a]\n", "tenant"),
        ("not toml", "t.toml"),
    ],
)
def test_malformed_file_names_the_place(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path / "t.toml", text)
    assert str(tmp_path / "t.toml") in str(caught.value)


@pytest.mark.parametrize("text", ["broken = [", "tenants = 5\n", b"\xff\xfe"])
def test_a_file_broken_by_hand_is_not_written_over(tmp_path, text):
    path = tmp_path / "t.toml"
    tenants = load(path, "[tenants.a]\n")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = path.read_bytes()
    for change in (lambda: tenants.set("b", TenantPolicy()), lambda: tenants.remove("a")):
        with pytest.raises(UsageError, match="mend it first"):
            change()
    assert path.read_bytes() == before
    assert {tenant.name for tenant in tenants} == {"default", "a"}


def test_a_tenant_removed_by_hand_can_be_removed(tmp_path):
    path = tmp_path / "t.toml"
    tenants = load(path, "[tenants.a]\n[tenants.b]\n")
    path.write_text("# mine\n[tenants.b]\n")
    tenants.remove("a")
    assert path.read_text().startswith("# mine\n")
    assert {tenant.name for tenant in load(path)} == {"default", "b"}


def test_a_file_that_the_kernel_cannot_look_up_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        load(tmp_path / f"{'t' * 300}.toml")


def test_a_change_next_to_one_by_hand_leaves_a_file_that_can_be_read(tmp_path):
    path = tmp_path / "t.toml"
    tenants = load(path, "[tenants.a]\ntime = '500m'\n[tenants.p]\n")
    for by_hand, change, error in (
        ("[tenants.b]\ntime = '1400m'\n", lambda: tenants.set("a", TenantPolicy(time=1000)), RefusedError),
        ("[tenants.b]\ntime = 0\n", lambda: tenants.set("c", TenantPolicy(parent="p")), UsageError),
        ('[tenants.p]\n[tenants.b]\nparent = "p"\n', lambda: tenants.remove("p"), UsageError),
    ):
        path.write_text(text := "[tenants.a]\ntime = '500m'\n" + by_hand)
        with pytest.raises(error, match="nothing was changed"):
            change()
        assert path.read_text() == text
    assert {tenant.name: tenant.time for tenant in tenants} == {"default": 1500, "a": 500, "p": 0}


def test_only_what_is_named_changes_and_what_was_written_by_hand_stays(tmp_path):
    path = tmp_path / "t.toml"
    text = '# we\n[tenants.a]  # first\ntime = "50%"  # half\nusers = ["ada"]\nsource = "adapter:k"\n[tenants.b]\n'
    tenants = load(path, text)
    with pytest.raises(RefusedError, match="set by adapter:k, and file may not"):
        tenants.change("a", TenantPatch(weight=3))
    path.write_text(text.replace('"50%"', '"60%"'))
    before, after = tenants.change("a", TenantPatch(weight=3, users=None, source="adapter:k"))
    assert (before.time, before.users, after.time, after.users) == (500, ["ada"], 600, []), "what was in force"
    assert path.read_text() == text.replace('"50%"', '"60%"').replace('users = ["ada"]\n', "").replace(
        '"adapter:k"\n', '"adapter:k"\nweight = 3\n\n'
    )
    now = tenants.changes
    assert tenants.change("a", TenantPatch(weight=3, source="adapter:k")) == (after, after)
    assert tenants.changes == now
    path.write_text("[tenants.b]\n")
    with pytest.raises(RefusedError, match="in force, but gone from"):
        tenants.change("a", TenantPatch(weight=4, source="adapter:k"))
    path.write_text("[tenants.b]\ntime = [\n")
    with pytest.raises(UsageError, match="mend it first"):
        tenants.change("b", TenantPatch(weight=4))
    assert {one.name: (one.time, one.weight) for one in tenants} == {"default": (1400, 1), "a": (600, 3), "b": (0, 1)}


def test_more_than_there_is_is_refused(tmp_path):
    with pytest.raises(RefusedError, match="200%"):
        load(tmp_path / "t.toml", '[tenants.a]\ntime = "150%"\n[tenants.b]\ntime = "60%"\n')
    with pytest.raises(RefusedError, match="32GiB"):
        load(tmp_path / "u.toml", '[tenants.a]\nmemory = "40GiB"\n')


def test_limit_below_guarantee():
    with pytest.raises(UsageError, match="below"):
        parse("a", TenantPolicy(time=500, time_limit=400), 2000)


def test_guarantees_hold_in_admission(client):
    client.set_tenant("research", {"time": "150%"})
    assert {tenant["name"]: tenant["guarantee"]["time"] for tenant in client.tenants()} == {
        "default": 500,
        "research": 1500,
    }
    grant = client.create(memory=GIB, time=600)
    assert (grant["devices"][0]["guaranteed_milli"], grant["borrow"]) == (500, True)
    with pytest.raises(RefusedError, match="grants"):
        client.set_tenant("a", {}), client.create(memory=GIB, time=100, tenant="a"), client.remove_tenant("a")


def test_an_answer_has_every_change_before_it(client):
    """The daemon keeps the answer until something has changed."""

    def seen(name):
        return next((tenant for tenant in client.tenants() if tenant["name"] == name), None)

    for weight in (3, 4):
        client.set_tenant("a", {"time": "50%", "weight": weight})
        assert seen("a")["weight"] == weight
    grants = []
    for number in range(3):
        grants.append(client.create(memory=GIB, time=100, tenant="a")["id"])
        assert (seen("a")["grants"], seen("a")["allocated"]["time"]) == (number + 1, 100 * (number + 1))
    client.resize(grants[0], time=150)
    assert seen("a")["allocated"]["time"] == 350
    client.set_sim_lost(0, lost=True)
    client.set_sim_lost(1, lost=True)
    until(lambda: seen("a")["degraded"], "all devices are lost")
    for index in (0, 1):
        client.set_sim_lost(index, lost=False)
    until(lambda: not seen("a")["degraded"], "they are back")
    for number, grant in enumerate(grants):
        client.release(grant)
        assert seen("a")["grants"] == 2 - number
    client.remove_tenant("a")
    assert seen("a") is None


@pytest.mark.promise("accounts-exist")
@pytest.mark.parametrize(
    "name",
    ["", " ", "a:b", "a/b", "a b", "a\n", "a\x00b", "\u202eroot", "-a", "1007", "x" * 300, "\u0661", "ada,eve", "*"],
)
def test_accounts_that_cannot_exist_are_refused(tmp_path, name):
    for key in ("users", "groups"):
        with pytest.raises(UsageError, match=f"tenant t: {key} ") as caught:
            parse("t", TenantPolicy(**{key: [name]}), 2000)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [-1, (1 << 32) - 1, 1 << 32, 1 << 62])
def test_numbers_of_accounts_have_a_range(number):
    with pytest.raises(UsageError, match="out of range: give 0 to 4294967294"):
        parse("t", TenantPolicy(users=[number]), 2000)


def test_accounts_that_can_exist_are_taken():
    names = ["root", "ada.l", "_x", "svc$", "EXAMPLE\\ada", "ada@example.org", "a-b", 0, (1 << 32) - 2]
    assert parse("t", TenantPolicy(users=names), 2000).users == tuple(names)


@pytest.mark.parametrize(
    "name", ["a" * 200, "a\tb", "\u202ea", "A", "a//b", "/a", "a/", ".", "..", "a b", "\u00c4", "a\x7f"]
)
def test_names_that_no_tenant_can_have(client, name):
    for call in (lambda: client.set_tenant(name, {}), lambda: client.remove_tenant(name)):
        with pytest.raises(UsageError) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(UsageError):
        client.create(memory=GIB, time=100, tenant=name)
    assert [tenant["name"] for tenant in client.tenants()] == ["default"]


def test_tenants_survive_a_restart(daemon):
    daemon.client.set_tenant("research", {"time": "75%", "weight": 3})
    daemon.kill()
    daemon.start()
    assert [tenant["name"] for tenant in daemon.client.tenants()] == ["default", "research"]


def test_what_cannot_be_served_is_refused_with_the_number(tmp_path):
    for policy in ({"time": 4}, {"time": "0.1%"}, {"time_limit": 4}):
        with pytest.raises(RefusedError, match=r"tenant a: .* served: give 0\.5% or more"):
            parse("a", TenantPolicy(**policy), 2000)
    assert parse("a", TenantPolicy(time=5, time_limit=5), 2000).time == 5
    assert parse("a", TenantPolicy(time=0), 2000).time == 0
    for weight in (-1, 1_000_001):
        with pytest.raises(UsageError, match=r"weight .* give 0 to 1000000"):
            parse("a", TenantPolicy(weight=weight), 2000)
    path = tmp_path / "t.toml"
    with pytest.raises(RefusedError, match=f"{path}:2: tenant a: a guaranteed time of 0.3% is too small"):
        load(path, "[tenants.a]\ntime = '3m'\n")


def test_the_smallest_share_follows_the_arbiters_configuration(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('simulate = "1x4GiB"\n[arbiter]\ncredit_floor_ms = 5\nbucket_ms = 150\n')
    client = make_daemon("--config", str(config)).start().client
    with pytest.raises(RefusedError, match=r"3\.3% is too small to be served: ask for 3\.4% or more"):
        client.create(memory=GIB, time=33)
    assert client.create(memory=GIB, time=34)
    with pytest.raises(RefusedError, match=r"3\.3% is too small to be served: give 3\.4% or more"):
        client.set_tenant("a", {"time": 33})


def test_a_bucket_that_cannot_hold_the_floor_is_reported_at_the_start(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('simulate = "1x4GiB"\n[arbiter]\ncredit_floor_ms = 500\n')
    done = make_daemon("--config", str(config)).cli("daemon", "--config", str(config), "--state-dir", tmp_path / "s")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    # the log may mention a busy disk before it
    assert "credit_floor_ms is 500 and arbiter.bucket_ms 200" in done.stderr.splitlines()[-1]


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "t.toml"
    tenants = load(path, "[tenants.a]\ntime = '500m'\n[tenants.b]\n")
    path.write_text("[tenants.a]\ntime = '700m'\n[tenants.c]\ntime = '100m'\n")
    with pytest.raises(RefusedError, match="tenant b is gone but has grants"):
        tenants.reload({"b", "default"})
    for broken in ("[tenants.a]\ntime = '2001m'\n", "[tenants.a]\ntime = '2m'\n", "not toml"):
        before = path.read_text()
        path.write_text(broken)
        with pytest.raises((RefusedError, UsageError)):
            tenants.reload(())
        path.write_text(before)
    assert {tenant.name: tenant.time for tenant in tenants} == {"default": 1500, "a": 500, "b": 0}
    tenants.reload({"a", "default"})
    assert {tenant.name: tenant.time for tenant in tenants} == {"default": 1200, "a": 700, "c": 100}
