"""gRPC with gpushare's own field tables, against grpcio without protobuf, in both directions."""

import stat
import tempfile
import threading
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.adapters import rpc
from gpushare.adapters.messages import EMPTY, Table, data, flag, keyed, message, text, whole
from gpushare.errors import FailedError, RefusedError, UnreachableError

INNER = Table(name=text(1), size=whole(2))
OUTER = Table(
    word=text(1),
    words=text(2, many=True),
    raw=data(3),
    on=flag(4),
    one=message(5, INNER),
    several=message(6, INNER, many=True),
    labels=keyed(7),
    of=keyed(8, INNER),
    number=whole(9),
)
WORDS = st.text(max_size=8)
INNERS = st.fixed_dictionaries({"name": WORDS, "size": st.integers(-(1 << 63), (1 << 63) - 1)})
OUTERS = st.fixed_dictionaries(
    {
        "word": WORDS,
        "words": st.lists(WORDS, max_size=3),
        "raw": st.binary(max_size=8),
        "on": st.booleans(),
        "one": st.none() | INNERS,
        "several": st.lists(INNERS, max_size=3),
        "labels": st.dictionaries(WORDS, WORDS, max_size=3),
        "of": st.dictionaries(WORDS, INNERS, max_size=3),
        "number": st.integers(-(1 << 63), (1 << 63) - 1),
    }
)


@given(OUTERS)
def test_a_message_survives_both_ways(given):
    assert OUTER.decode(OUTER.encode(given)) == given


def test_what_is_left_out_is_its_types_zero_and_an_unknown_name_is_a_mistake():
    assert OUTER.encode({"word": "", "number": 0, "on": False, "one": None, "words": []}) == b""
    assert OUTER.encode({"one": {}}) == b"\x2a\x00"
    assert OUTER.decode(b"")["one"] is None
    with pytest.raises(KeyError):
        OUTER.encode({"wrod": "x"})
    with pytest.raises(ValueError):
        OUTER.decode(b"\x0a\x05ab")


def echo(request, _waits):
    if request["word"] == "no":
        raise RefusedError("not that")
    return {**request, "words": [*request["words"], "answered"]}


def count(request, waits):
    try:
        for number in range(1, request["number"] + 1):
            yield {"number": number}
        while request["on"] and waits():
            STOPPED.wait(0.01)
    finally:  # gRPC may drop the generator before its next item
        STOPPED.set()


STOPPED = threading.Event()
SERVICE = {"Echo": rpc.Method(OUTER, OUTER, echo), "Count": rpc.Method(OUTER, OUTER, count, stream=True)}


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(prefix="gst-") as short:
        yield Path(short)


@pytest.fixture
def server(directory):
    server = rpc.Server(directory / "s", {"a.b.Service": SERVICE})
    yield server
    server.stop()


def test_calls_streams_and_refusals(server):
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    with rpc.Caller(server.path) as caller:
        answer = caller.call("/a.b.Service/Echo", OUTER, OUTER, word="hello", labels={"a": "b"})
        assert (answer["word"], answer["words"], answer["labels"]) == ("hello", ["answered"], {"a": "b"})
        with pytest.raises(FailedError, match=r"RESOURCE_EXHAUSTED.*not that"):
            caller.call("/a.b.Service/Echo", OUTER, OUTER, word="no")
        with pytest.raises(FailedError, match="UNIMPLEMENTED"):
            caller.call("/a.b.Service/Other", EMPTY, EMPTY)
        assert [one["number"] for one in caller.stream("/a.b.Service/Count", OUTER, OUTER, number=3)] == [1, 2, 3]


def test_what_is_no_message_is_refused_and_the_next_is_served(server):
    with grpc.insecure_channel(f"unix:{server.path}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/a.b.Service/Echo")(b"\xff\xff\xff", timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert channel.unary_unary("/a.b.Service/Echo")(b"", timeout=10) == OUTER.encode({"words": ["answered"]})


def test_a_stream_ends_when_its_caller_goes(server):
    STOPPED.clear()
    with rpc.Caller(server.path) as caller:
        stream = caller.stream("/a.b.Service/Count", OUTER, OUTER, number=1, on=True)
        assert next(stream)["number"] == 1
        stream.close()
    assert STOPPED.wait(20)


def test_a_server_takes_the_place_of_a_killed_one_and_knows_when_it_is_taken(directory):
    path = directory / "s"
    first = rpc.Server(path, {"a.b.Service": SERVICE})
    second = rpc.Server(path, {"a.b.Service": SERVICE})
    assert not first.there
    assert second.there
    first.stop()
    with rpc.Caller(path) as caller:
        assert caller.call("/a.b.Service/Echo", OUTER, OUTER)["words"] == ["answered"]
    second.stop()
    assert not path.exists()


def test_where_nobody_serves_and_where_nobody_can(directory):
    with rpc.Caller(directory / "none") as caller, pytest.raises(UnreachableError, match="nobody answers"):
        caller.call("/a.b.Service/Echo", OUTER, OUTER)
    (directory / "file").write_text("")
    for path in (directory / "file", directory / "gone" / "s", directory / ("x" * 120)):
        with pytest.raises(FailedError):
            rpc.Server(path, {})
