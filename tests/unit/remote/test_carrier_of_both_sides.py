"""Which carrier is used, and what a program gets of it."""

import re

import pytest

from gpushare.carriers.contract import Client, Contract, Server
from gpushare.errors import RefusedError, UsageError
from gpushare.paths import INTERPOSER, INTERPOSER_ML
from gpushare.remote.carrying import choose
from gpushare.remote.environment import environment

CLIENT = Client("/opt/one", ("libcuda.so.1",), {"ONE_SERVER": "{host}:{port}"})
ONE, TWO = Contract("one", client=CLIENT), Contract("two", client=CLIENT)
SERVER_ONLY = Contract("one", server=Server(("s",)))


def served(*names, **trouble):
    return [{"name": name, "version": "", "trouble": trouble.get(name, "")} for name in names]


@pytest.mark.parametrize(
    ("there", "here", "wanted", "name"),
    [
        (served("one"), {"one": ONE}, None, "one"),
        (served("one", "two"), {"two": TWO}, None, "two"),
        (served("one", "two", two="broken"), {"one": ONE, "two": TWO}, None, "one"),
        (served("one", "two"), {"one": ONE, "two": TWO}, "two", "two"),
    ],
)
def test_the_carrier_is_the_one_that_both_have(there, here, wanted, name):
    assert choose("gpu1", there, here, wanted).name == name


@pytest.mark.parametrize(
    ("there", "here", "wanted", "error", "said"),
    [
        (served("one"), {}, None, RefusedError, "this machine has no carrier's libraries"),
        (served("one"), {"one": SERVER_ONLY}, None, RefusedError, "this machine has no carrier's libraries"),
        (served(), {"one": ONE}, None, RefusedError, "gpu1 has none, this machine has one"),
        (served("two"), {"one": ONE}, None, RefusedError, "gpu1 has two, this machine has one"),
        (served("one", one="it is old"), {"one": ONE}, None, RefusedError, "cannot serve one now: it is old"),
        (served("one", "two"), {"one": ONE, "two": TWO}, None, UsageError, "one, two: give one with --carrier"),
        (served("one"), {"one": ONE}, "two", UsageError, "no carrier 'two' for programs: it has one"),
        (served("two"), {"one": ONE}, "one", RefusedError, "gpu1 has no carrier 'one': it has two"),
        (served("one", one="it is old"), {"one": ONE}, "one", RefusedError, "it is old"),
    ],
)
def test_a_carrier_that_is_missing_is_named_with_the_side_that_lacks_it(there, here, wanted, error, said):
    with pytest.raises(error, match=re.escape(said)):
        choose("gpu1", there, here, wanted)


@pytest.mark.parametrize(
    ("base", "searched", "preloaded"),
    [
        ({}, "/opt/one", None),
        ({"LD_LIBRARY_PATH": "/a:/opt/one::/b"}, "/opt/one:/a:/b", None),
        ({"LD_PRELOAD": "/x.so /y.so"}, "/opt/one", "/x.so:/y.so"),
        ({"LD_PRELOAD": f"{INTERPOSER}:{INTERPOSER_ML}:/x.so"}, "/opt/one", "/x.so"),
        ({"LD_PRELOAD": f"{INTERPOSER}"}, "/opt/one", None),
        ({"CUDA_VISIBLE_DEVICES": "1", "GPUSHARE_GRANT_DIR": "/g", "GPUSHARE_SIM_DIR": "/s"}, "/opt/one", None),
    ],
)
def test_a_program_gets_the_carriers_libraries_and_none_of_a_share_here(base, searched, preloaded):
    found = environment({"PATH": "/bin", **base}, CLIENT, "127.0.0.1", 4711)
    want = {"PATH": "/bin", "LD_LIBRARY_PATH": searched, "ONE_SERVER": "127.0.0.1:4711"}
    assert found == want | ({"LD_PRELOAD": preloaded} if preloaded else {})
