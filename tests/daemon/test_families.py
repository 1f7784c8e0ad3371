"""Tenants that nest: what tenants.toml may say, who may change whom, and admission. Their shares: test_changes.py."""

import pytest

from gpushare.api.tenants import TenantPolicy
from gpushare.daemon.tenants import Tenants
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
    assert tenants["default"].time == 0  # those below ml have their part of its time
    own = tenants.admission()
    assert [(name, own[name].guarantee_milli, own[name].memory_bytes // GIB) for name in ("ml", "ml/a", "vision")] == [
        ("ml", 50, 5), ("ml/a", 300, 3), ("vision", 400, 0),
    ]  # fmt: skip
    assert set(own["ml"].family) == {"ml", "ml/a", "vision"}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('[tenants.a]\n\nparent = "b"\n', 3, "parent 'b' is no tenant"),
        ('[tenants.a]\nparent = "a"\n', 2, "parent 'a' is below it"),
        ('[tenants.a]\nparent = "b"\n[tenants.b]\ntime = 5\nparent = "a"\n', 2, "parent 'b' is below it"),
        ('[tenants.a]\n[tenants.b]\n[tenants."a/b"]\nparent = "b"\n', 4, "another than its name says"),
        ('[tenants.a]\nparent = "default"\n', 2, "has what no other is guaranteed"),
        ('[tenants.a]\n[tenants.default]\nparent = "a"\n', 3, "leave its parent out"),
        ('[tenants.a]\n[tenants."a/b"]\n[tenants."a/b/c"]\n[tenants."a/b/c/d"]\n', 4, "on level 4, and there are 3"),
        ('[tenants.a]\ntime = 100\n[tenants."a/b"]\nweight = 2\ntime = 60\n[tenants."a/c"]\ntime = 60\n', 7,
         "with it those below a would be guaranteed 12% of time, it has 10%"),
        ('[tenants.a]\nmemory = "1GiB"\n[tenants."a/b"]\nmemory = "2GiB"\n', 4,
         "guaranteed 2GiB of memory, it has 1GiB"),
        ('[tenants.a]\ntime = 600\n[tenants.b]\ntime = 600\n', 4,
         "tenants would be guaranteed 120% of time, the node has 100%"),
        ('[tenants.a]\nweight = 1\n\n[tenants.b]\nweight = -1\n', 5, "weight -1 is out of range"),
        ('[tenants.a]\ntime = "1e9%"\n', 2, "time '1e9%' is not a share"),
        ('[tenants.a]\ntime = 99999999\n', 2, "is out of range"),
        ('[tenants.a]\nusers = ["a b"]\n', 2, "no name that an account can have"),
        ('[tenants.a]\nsource = "me"\n', 2, "source 'me' is none"),
        ('[tenants.a]\n[tenants.b]\ntiem = 5\n', 3, "tiem"),
        ('[tenants.a]\n[tenants.a]\n', 2, "Cannot declare"),
        ('[tenants.a]\nweight = "3"\n', 2, "weight"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_what_was_goes_on(tmp_path, text, line, said):
    path = tmp_path / "t.toml"
    tenants = load(path)
    path.write_text(text)
    with pytest.raises(GpushareError) as caught:
        tenants.reload(())
    assert str(caught.value).startswith(f"{path}:{line}: ") and said in str(caught.value)
    assert len(list(tenants)) == 5


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
    # Of ml's 50 % its child has 30 %.
    assert client.create(memory=GIB, time=250, tenant="ml")["devices"][0]["guaranteed_milli"] == 200
    with pytest.raises(RefusedError, match="tenant ml is limited to 60% of device time and its grants have 55%"):
        client.create(memory=GIB, time=100, tenant="ml/a")
    shown = {tenant["name"]: tenant for tenant in client.tenants()}
    assert (shown["ml/a"]["parent"], shown["ml"]["guarantee"]["time"], shown["ml"]["have"]["time"]) == ("ml", 500, 500)
