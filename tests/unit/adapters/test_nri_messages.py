"""NRI's messages: invalid bytes are refused, valid messages arrive unchanged."""

import pytest
from engines.cri import message
from engines.nri import Adjustment
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.adapters import protobuf
from gpushare.adapters.nri import adjustment


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data):
    try:
        found = protobuf.parse(data)
    except ValueError:
        return
    assert all(isinstance(value, int | bytes) for values in found.values() for value in values)


@settings(max_examples=25)
@given(
    st.integers(0, (1 << 64) - 1), st.lists(st.text()), st.dictionaries(st.text(), st.text()), st.integers(1, 1 << 20)
)
def test_what_is_written_is_read(value, several, pairs, at):
    data = protobuf.field(at, value) + protobuf.field(at + 1, *several) + protobuf.entries(at + 2, pairs)
    assert data == message(**{f"_{at}": value, f"_{at + 1}": several, f"_{at + 2}": pairs})
    found = protobuf.parse(data)
    assert protobuf.number(found, at) == value
    assert protobuf.texts(found, at + 1) == several
    assert protobuf.mapping(found, at + 2) == pairs


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05abcd", b"\x08" + b"\xff" * 11, b"\x0b", b"\x09\x00"])
def test_a_message_that_is_cut_is_refused(data):
    with pytest.raises(ValueError):
        protobuf.parse(data)


def test_real_devices_have_nodes_and_rules():
    container = protobuf.parse(
        message(_1="c1", _3="main", _9=[message(_1="/data", _2="bind", _3="/srv", _4=["ro"])],
                _11=message(_2=[message(_1="/dev/null", _2="c", _3=1, _4=3)]))
    )  # fmt: skip
    before = adjustment.config(container, {"gpushare.dev/memory": "1GiB"})
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o666, "uid": 0, "gid": 0}
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    linux = {"devices": [*before["linux"]["devices"], node], "resources": {"devices": [rule]}}
    found = Adjustment(protobuf.field(1, adjustment.adjustment(before, {**before, "linux": linux})))
    assert found.devices == [("/dev/nvidia0", "c", 195, 0)]
    assert found.rules == [(1, "c", 195, 0, "rw")]
    assert (found.mounts, found.env, found.annotations) == ([], [], {})
