"""Names of tenants in any script: what one may be, and one on its way through the whole."""

import re
import unicodedata

import pytest

from gpushare.api.tenants import TENANT_NAME
from gpushare.client.verbs import query_of
from gpushare.errors import UsageError
from gpushare.text import names, width

GOOD = (
    "ml", "0", "a.b_c-d", "a/b/c", "研究室", "研究室/𠮷田", "ラボ-3", "연구실", "مختبر", "مختبر/فريق-٢", "лаборатория",
    "εργαστήριο", "équipe", "प्रयोगशाला", "ห้องปฏิบัติการ", "b2b-研究", "a/b/c/d/e/f/g/h",
)  # fmt: skip
BAD = {
    **dict.fromkeys(
        ("", "/a", "a//b", "a/", "-a", "ML", "a b", "a\nb", "a\\b", "..", "a" * 64, "a" + 8 * "/a"), "write"
    ),
    **{f"研{bad}": f"U\\+{ord(bad):04X}" for bad in "É \u3000\u200b\u202e\u2028\x00\ufe0f\u3164\ud800\u2215🚀"},
    "\u0301é": "U\\+0301",
    "é" + "\u0316" * 4: "U\\+0316",
    "é/.x": "U\\+002E",
    "研" * 22: "66 bytes between slashes",
    "e\u0301quipe": "NFC",
    **dict.fromkeys(("ｍｌ", "𝐦𝐥", "éﬁ"), "looks like another character"),
    "dеfault": "mixes Cyrillic and Latin letters",
}


@pytest.mark.parametrize("name", [*GOOD, "a" * 63, "研" * 21])
def test_a_good_one(name):
    name = unicodedata.normalize("NFC", name)
    assert names.tenant(name) == name == names.composed(unicodedata.normalize("NFD", name))
    assert re.fullmatch(TENANT_NAME, name)


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_bad_one(name):
    with pytest.raises(UsageError, match=f"^tenant .* is not a name: .*{BAD[name]}"):
        names.tenant(name)


def test_a_table_is_aligned_by_what_a_terminal_shows():
    assert [width.columns(text) for text in ("ml", "研究", "ｶﾅ", "é", "e\u0301", "مختبر")] == [2, 4, 2, 1, 1, 5]
    assert (width.padded("研究", 6), width.padded("研究", 6, right=True)) == ("研究  ", "  研究")


def test_one_through_the_whole(daemon, client):
    """Set, given to a program, shown, counted, filtered by, removed; in whichever form it is typed."""
    name, typed = "研究室/équipe", "研究室/e\u0301quipe"

    def said(*words):
        done = daemon.cli_here(*words)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    said("tenants", "set", "研究室", "--time", "50%")
    said("tenants", "set", typed, "--time", "25%")
    client.change_tenant("b2b", {"parent": typed})
    assert {one["name"]: one["parent"] for one in client.tenants()}["b2b"] == name
    made = client.create(memory="1GiB", time="10%", tenant=typed, keep=True, key=f"{typed}/1")
    assert [one["id"] for one in client.grants(key_prefix=typed)] == [made["id"]], "a key is kept as it was written"
    assert made["tenant"] == name and client.grant(made["id"])["tenant"] == name
    assert f"{name} " in said("ps") and f"{name}," in said("why", made["id"])
    listed = [line.rstrip() for line in said("tenants", "list").splitlines()]
    [title, own, *_] = [listed[0], *(line for line in listed if line.startswith("研究室"))]
    assert width.columns(own[: own.index("idle")]) == title.index("STATE")
    assert f'tenant="{name}"' in client.text("/metrics")
    whose = {row["tenant"] for row in client.call("GET", f"/v1/usage?{query_of({'tenant': typed})}")["rows"]}
    assert whose <= {name}
    refused = daemon.cli_here("tenants", "set", "研究室\u202e")
    assert refused.returncode == 2 and "is not a name" in refused.stderr and "\u202e" not in refused.stderr
    client.release(made["id"])
    client.remove_tenant("b2b")
    said("tenants", "remove", typed)
    assert name not in said("tenants", "list")
