"""Nested tenants: what tenants.toml may say, who may change whom, and admission. For their shares see
test_changes.py."""

import time

import pytest

from gpushare.api.tenants import TenantPolicy
from gpushare.daemon.state.tenants import Tenants
from gpushare.errors import GpushareError, RefusedError, UsageError

GIB = 1 << 30
LAB = """\
# the lab
[tenants.ml]
time = "75%"
memory = "8GiB"

[tenants."ml/a"]
time = "30%"
memory = "3GiB"

[tenants.vision]
parent = "ml"
time = "40%"
users = [7]

[tenants.sales]
time = "25%"
"""


def load(path, text=LAB):
    path.write_text(text)
    return Tenants(path, 1000, 16 * GIB)


def test_who_is_part_of_whom(tmp_path):
    tenants = load(tmp_path / "t.toml")
    assert {tenant.name: tenants.parent(tenant.name) for tenant in tenants} == {
        "default": None, "ml": None, "ml/a": "ml", "sales": None, "vision": "ml",
    }  # fmt: skip
    assert tenants["default"].time == 0  # ml's children take their part of its time
    own = tenants.admission()
    assert [(name, own[name].guarantee_milli, own[name].memory_bytes // GIB) for name in ("ml", "ml/a", "vision")] == [
        ("ml", 50, 5), ("ml/a", 300, 3), ("vision", 400, 0),
    ]  # fmt: skip
    assert set(own["ml"].family) == {"ml", "ml/a", "vision"}


MISTAKES = [
    ('[tenants.a]\n\nparent = "b"\n', 3, "parent 'b' is no tenant"),
    ('[tenants.a]\nparent = "a"\n', 2, "parent 'a' is below it"),
    ('[tenants.a]\nparent = "b"\n[tenants.b]\ntime = "5m"\nparent = "a"\n', 2, "parent 'b' is below it"),
    ('[tenants.a]\n[tenants.b]\n[tenants."a/b"]\nparent = "b"\n', 4, "another than its name says"),
    ('[tenants.a]\nparent = "default"\n', 2, "has what no other is guaranteed"),
    ('[tenants.a]\n[tenants.default]\nparent = "a"\n', 3, "leave its parent out"),
    ('[tenants.a]\n[tenants."a/b"]\n[tenants."a/b/c"]\n[tenants."a/b/c/d"]\n', 4, "on level 4, and there are 3"),
    ('[tenants.a]\ntime = "100m"\n[tenants."a/b"]\nweight = 2\ntime = "60m"\n[tenants."a/c"]\ntime = "60m"\n', 7,
     "with it those below a would be guaranteed 12% of time, it has 10%"),
    ('[tenants.a]\nmemory = "1GiB"\n[tenants."a/b"]\nmemory = "2GiB"\n', 4,
     "guaranteed 2GiB of memory, it has 1GiB"),
    ('[tenants.a]\ntime = "600m"\n[tenants.b]\ntime = "600m"\n', 4,
     "tenants would be guaranteed 120% of time, the node has 100%"),
    ('[tenants.a]\nweight = 1\n\n[tenants.b]\nweight = -1\n', 5, "weight -1 is out of range"),
    ('[tenants.a]\ntime = "1e9%"\n', 2, "time '1e9%' is not a share"),
    ('[tenants.a]\ntime = "99999999m"\n', 2, "is out of range"),
    ('[tenants.a]\nusers = ["a b"]\n', 2, "no name that an account can have"),
    ('[tenants.a]\nsource = "me"\n', 2, "source 'me' is none"),
    ('[tenants.a]\n[tenants.b]\ntiem = 5\n', 3, "tiem"),
    ('[tenants.a]\n[tenants.a]\n', 2, "Cannot declare"),
    ('[tenants.a]\nweight = "3"\n', 2, "weight"),
    ('# x\n[tenants."BAD NAME"]\ntime = "5m"\n', 2, "tenant 'BAD NAME' is not a name"),
    ("# x\n[tenants.'a\\b']\n", 2, "is not a name"),
    ('# x\n[tenants."a\\nb"]\n', 2, "tenant 'a\\nb' is not a name"),
    ('[tenants]\n"".time = "5m"\n', 2, "tenant '' is not a name"),
    ("[tenants.a]\n\n[tenant.b]\ntime = '5m'\n", 3, "unknown 'tenant': tenants are written as [tenants.NAME]"),
    ("# x\ntime = '5m'\n[tenants.a]\n", 2, "unknown 'time'"),
    ("# x\ntenants = 3\n", 2, "tenants is not a table: tenants are written as [tenants.NAME]"),
    ("# x\n[[tenants]]\n", 2, "tenants is not a table"),
    ("[tenants]\na = 3\n", 2, "tenant a is not a table"),
    ("[tenants]\n\n[[tenants.a]]\n", 3, "tenant a is not a table"),
    ("\n[tenants.a.b]\n", 2, "tenant a: Object contains unknown field `b`"),
    ("[tenants.a]\nweight = 1\nb.c = 5\n", 3, "unknown field `b`"),
    ("# x\ntenants = {a = {weight = -1}}\n", 2, "weight -1 is out of range"),
    ("[tenants]\na = {weight = 1}\nb = {weight = -1}\n", 3, "weight -1 is out of range"),
    ('tenants.a.time = "5m"\n\ntenants.a.memory = "8XB"\n', 3, "memory '8XB' is not a size"),
    ('[tenants]\na.time = "5m"\na.users = [\n  "b",\n  "c d",\n]\n', 3, "no name that an account can have"),
    ('[tenants.a]\nusers = [\n  "b", # x = 5\n]\n[tenants."b"]\ntime = "1e9%"\n', 6, "is not a share"),
    ("[ tenants . 'a' ] # x\n'weight' = -1\n", 2, "weight -1 is out of range"),
    ("[tenants.a]\ntime = '5m'\ntime_limit = 'x'\n", 3, "time_limit 'x' is not a share"),
    ("[tenants.a]\nweight = 2\ntime = '3m'\n", 3, "0.3% is too small to be served"),
    ("[tenants.a]\ntime = '10m'\ntime_limit = '9m'\n", 3, "time_limit 0.9% is below its guarantee 1%"),
    ('[tenants.a]\nusers = [7]\ntime = "900%"\n', 3,
     "time 900% is more than the node has, 100%: give 100% or less"),
    ('[tenants.a]\nmemory = "64GiB"\n', 2, "guaranteed 64GiB of memory, the node has 16GiB: lower a guarantee"),
    ("tenants.a.time = '5m'\n[tenants.a]\n", 2, "Cannot declare"),
    ('[tenants.a]\n[tenants."a"]\n', 2, "Cannot declare"),
    ("[tenants.a]\ntime = '5m'\ntime = '6m'\n", 3, "Cannot overwrite a value"),
    ("[tenants]\na = {time = '5m'}\na.weight = 2\n", 3, "Cannot"),
    ("[tenants.a]\nusers = [\n7,\n8\n\n", 4, "Unclosed array"),
    ("[tenants.a]\ntime = '5m'\n\nnot toml\n", 4, "Expected '='"),
    (b"[tenants.a]\n# caf\xe9\ntime = '5m'\n", 2, "byte 0xe9 is not UTF-8: save it as UTF-8"),
    (f"[tenants.a]\ntime = {'9' * 5000}\n\n[tenants.b]\n", 2, "5000 digits"),
    (f"[tenants.a]\nusers = {'[' * 9999}\n\n[tenants.b]\n", 2, "nested too deep"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "message"), MISTAKES, ids=[case[2] for case in MISTAKES])
def test_a_mistake_is_reported_with_its_line_and_what_was_goes_on(tmp_path, text, line, message):
    path = tmp_path / "t.toml"
    tenants = load(path)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GpushareError) as caught:
        tenants.reload(())
    assert str(caught.value).startswith(f"{path}:{line}: ") and message in str(caught.value)
    assert len(list(tenants)) == 5


def test_a_mistake_in_a_large_file_is_found_at_once(tmp_path):
    """Its line is found by parsing some ten prefixes of the file."""
    path = tmp_path / "t.toml"
    tenants = load(path)
    text = "".join(f'[tenants.t{i}]\n# of {i}\nusers = [\n  "a",\n  "b",\n]\n' for i in range(500))
    path.write_text(text + "weight = -1\n")
    began = time.process_time()
    with pytest.raises(UsageError, match=f"^{path}:3001: tenant t499: weight -1"):
        tenants.reload(())
    assert time.process_time() - began < 5


def test_changes_keep_families_whole(tmp_path):
    tenants = load(tmp_path / "t.toml")
    with pytest.raises(RefusedError, match=r"ml has others below it \(ml/a, vision\): remove them first"):
        tenants.remove("ml")
    with pytest.raises(RefusedError, match="those below ml would be guaranteed 80% of time, it has 75%"):
        tenants.set("ml/b", TenantPolicy(time="10%"))
    with pytest.raises(RefusedError, match="those below ml would be guaranteed 70% of time, it has 60%"):
        tenants.set("ml", TenantPolicy(time="60%", memory="8GiB"))
    with pytest.raises(UsageError, match="is below it"):
        tenants.set("ml", TenantPolicy(time="75%", memory="8GiB", parent="vision"))
    assert "# the lab" in (tmp_path / "t.toml").read_text()
    tenants.set("ml/b", TenantPolicy(time="5%"))
    tenants.remove("vision")
    again = Tenants(tmp_path / "t.toml", 1000, 16 * GIB)
    assert again.below("ml") == ["ml/a", "ml/b"]
    tenants.set("org", TenantPolicy())
    tenants.set("org/x", TenantPolicy())
    tenants.set("org/x/y", TenantPolicy())
    assert tenants.parent("org/x/y") == "org/x"


def test_a_tenant_has_one_owner(daemon):
    client = daemon.client
    client.set_tenant("queue", {"time": 300, "source": "adapter:kueue"})
    client.set_tenant("queue", {"time": 400, "source": "adapter:kueue"})
    client.set_tenant("lab", {"time": 100})
    daemon.kill()
    daemon.start()
    for name, source, owner in (("queue", "file", "adapter:kueue"), ("lab", "adapter:kueue", "file")):
        with pytest.raises(RefusedError, match=f"tenant {name} was set by {owner}, and {source} may not change it"):
            client.set_tenant(name, {"time": 200, "source": source})
        with pytest.raises(RefusedError, match="may not change it"):
            client.remove_tenant(name, source)
    assert {tenant["name"]: tenant["source"] for tenant in client.tenants()} == {
        "default": "built-in", "lab": "file", "queue": "adapter:kueue",
    }  # fmt: skip
    client.remove_tenant("queue", "adapter:kueue")
    client.remove_tenant("lab")


def test_limits_and_guarantees_of_a_family_in_admission(daemon):
    client = daemon.client
    client.set_tenant("ml", {"time": 500, "time_limit": 600, "memory": "6GiB"})
    client.set_tenant("ml/a", {"time": 300, "memory": "2GiB"})
    first = client.create(memory=GIB, time=300, tenant="ml/a")
    assert first["devices"][0]["guaranteed_milli"] == 300
    # Of ml's 50 %, its child has 30 %.
    assert client.create(memory=GIB, time=250, tenant="ml")["devices"][0]["guaranteed_milli"] == 200
    with pytest.raises(RefusedError, match="tenant ml is limited to 60% of device time and its grants have 55%"):
        client.create(memory=GIB, time=100, tenant="ml/a")
    shown = {tenant["name"]: tenant for tenant in client.tenants()}
    assert (shown["ml/a"]["parent"], shown["ml"]["guarantee"]["time"], shown["ml"]["have"]["time"]) == ("ml", 500, 500)
