"""config.json as Go and C read it: a config that they read differently is refused (gpushare/reader/config.py)."""

import json

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.api.engines import PlacedMount
from gpushare.errors import UsageError
from gpushare.inject import edits, oci
from gpushare.inject.node import DeviceNode
from gpushare.reader import config
from gpushare.reader.__main__ import Reader
from gpushare.reader.messages import Config, Edit, Refused

ASKS = b'"gpushare.dev/memory":"1GiB","gpushare.dev/time":"25%"'


def test_a_byte_order_mark_is_refused():
    with pytest.raises(UsageError, match="begins with a byte order mark"):
        config.load(b'\xef\xbb\xbf{"annotations":{%s}}' % ASKS)


def test_escapes_are_read():
    text = b'{"annot\\u0061tions":{"\\u0067pushare.dev\\/memory":"1GiB","gpushare.dev/\\u0074ime":"25%"}}'
    assert oci.request(config.load(text)) == {"memory": "1GiB", "time": "25%", "ttl_seconds": 20}


@pytest.mark.promise("request-read-one-way")
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


NAMES = st.sampled_from(
    [
        "root",
        "path",
        "process",
        "env",
        "mounts",
        "destination",
        "type",
        "source",
        "options",
        "hooks",
        "createRuntime",
        "annotations",
        "linux",
        "devices",
        "resources",
        "gpushare.dev/memory",
        "gpushare.dev/time",
        "gpushare.dev/grant",
    ]
)
TEXTS = st.sampled_from(["", "/", "..", "/usr/lib", "bind", "rbind", "a\0b", "\ud800", "x" * 5000, "LD_PRELOAD=/x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)
WANTED = edits.Edits(
    grant="g-0123456789ab",
    mounts=[
        edits.Mount("/own", "/run/gpushare/self"),
        edits.Mount("/p", edits.PRELOAD_FILE),
        edits.Mount("/t", "/usr/bin/t"),
    ],
    hooks=[edits.Hook("createRuntime", "/hook", ["hook"], 20)],
    env=["A=b"],
    devices=[DeviceNode("/dev/nvidia0", 195, 0)],
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_whatever_a_config_is_there_is_an_answer(tmp_path, value):
    """Any config is edited or gets a one-line error, also that of a container that exists already; an edited config can
    be read again, and asks for its grant."""
    text = json.dumps(value).encode()
    edit = Edit(
        bundle=str(tmp_path), edits=WANTED, lib_dir="/lib/gpushare", preload_file="/preload", cache_file="/cache"
    )
    placed, alone = msgspec.structs.replace(edit, created=True), msgspec.structs.replace(edit, text=text)
    reader = Reader()
    read = *(Config(text=text, by=by, bundle=str(tmp_path)) for by in ("environment", "nvidia", "annotations")), alone
    for job in (*read, edit, placed):
        answer = reader.answered(msgspec.msgpack.encode(job))
        if isinstance(answer, Refused):
            assert answer.code in ("usage", "refused") and "\n" not in answer.line
        elif isinstance(job, Edit):
            msgspec.convert(answer.mounts, list[PlacedMount])
            if not job.created:
                again = Reader().answered(msgspec.msgpack.encode(Config(text=answer.config, by="annotations")))
                assert again.share == {"grant": WANTED.grant}, again
