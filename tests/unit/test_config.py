"""config.json as Go and C read it: what they read differently is refused (gpushare/reader/config.py)."""

import json

import pytest

from gpushare.errors import UsageError
from gpushare.inject import oci
from gpushare.reader import config

ASKS = b'"gpushare.dev/memory":"1GiB","gpushare.dev/time":"25%"'


def test_escapes_are_read():
    text = b'{"annot\\u0061tions":{"\\u0067pushare.dev\\/memory":"1GiB","gpushare.dev/\\u0074ime":"25%"}}'
    assert oci.request(config.load(text)) == {"memory": "1GiB", "time": "25%", "ttl_seconds": 20}


@pytest.mark.parametrize(
    "text",
    [
        b'{"Annotations":{%s}}',
        b'{"annotation\\u017f":{%s}}',
        b'{"annotations":{%s},"ANNOTATIONS":{}}',
        b'{"annotations":{%s},"annotations":{}}',
        b'{"annotations":{%s,"gpushare.dev/time":"1%%"}}',
        b'{"annotations":{%s},"Mounts":[]}',
        b'{"annotations":{%s},"mounts":[{"Destination":"/usr","source":"/x"}]}',
        b'{"annotations":{%s},"hooks":{"createruntime":[]}}',
        b'{"annotations":{%s},"process":{"ENV":[]}}',
        b'{"annotations":{%s},"loo\\u212aup":1,"linu\\u0058":{}}',
        b'{"annotations":{%s},"linux":{"Resources":{}}}',
        b'{"annotations":{%s},"linux":{"resources":{"Devices":[]}}}',
    ],
)
def test_what_runtimes_read_differently_is_refused(text):
    with pytest.raises(UsageError, match=r"twice|only some runtimes"):
        config.load(text % ASKS)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"a":NaN}',
        b'{"a":1}{}',
        b'{"a":"\xff"}',
        b"{" * 100000,
        b'{"a":' + b"9" * 5000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_not_json_is_refused(text):
    with pytest.raises(UsageError, match=r"config\.json"):
        config.load(text)


def test_free_names_may_differ_in_case():
    text = b'{"annotations":{"a":"1","A":"2"},"linux":{"sysctl":{"x":"1","X":"2"}},"Solaris":{}}'
    assert json.loads(config.dump(config.load(text))) == json.loads(text)


@pytest.mark.parametrize("value", ["\ud800", "é", 2**63, 1.5, None, [], {}])
def test_values_stay(value):
    text = json.dumps({"x": value}).encode()
    assert json.loads(config.dump(config.load(text))) == {"x": value}
