"""NRI's messages: invalid bytes are refused, valid messages arrive unchanged."""

import pytest
from engines.cri import message
from engines.nri import Adjustment
from engines.protobuf import mapping, number, parse, texts
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.adapters.nri import adjustment, messages
from gpushare.adapters.protobuf import field


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data):
    try:
        found = parse(data)
    except ValueError:
        return
    assert all(isinstance(value, int | bytes) for values in found.values() for value in values)


@settings(max_examples=25)
@given(
    st.integers(0, (1 << 64) - 1), st.lists(st.text()), st.dictionaries(st.text(), st.text()), st.integers(1, 1 << 20)
)
def test_what_is_written_is_read(value, several, pairs, at):
    data = field(at, value) + field(at + 1, *several)
    data += field(at + 2, *(field(1, key) + field(2, of) for key, of in pairs.items()))
    assert data == message(**{f"_{at}": value, f"_{at + 1}": several, f"_{at + 2}": pairs})
    found = parse(data)
    assert number(found, at) == value
    assert texts(found, at + 1) == several
    assert mapping(found, at + 2) == pairs


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05abcd", b"\x08" + b"\xff" * 11, b"\x0b", b"\x09\x00"])
def test_a_message_that_is_cut_is_refused(data):
    with pytest.raises(ValueError):
        parse(data)


def test_real_devices_have_nodes_and_rules():
    container = messages.CONTAINER.decode(
        message(_1="c1", _3="main", _9=[message(_1="/data", _2="bind", _3="/srv", _4=["ro"])],
                _11=message(_2=[message(_1="/dev/null", _2="c", _3=1, _4=3)]))
    )  # fmt: skip
    before = adjustment.config(container, {"gpushare.dev/memory": "1GiB"})
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "fileMode": 0o666, "uid": 0, "gid": 0}
    rule = {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    linux = {"devices": [*before["linux"]["devices"], node], "resources": {"devices": [rule]}}
    edits = adjustment.adjustment(before, {**before, "linux": linux})
    found = Adjustment(messages.CREATED.encode({"adjust": edits}))
    assert found.devices == [("/dev/nvidia0", "c", 195, 0)]
    assert found.rules == [(1, "c", 195, 0, "rw")]
    assert (found.mounts, found.env, found.annotations) == ([], [], {})
