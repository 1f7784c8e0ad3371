"""hooks/json.c against Python's own parser."""

import ctypes
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run import built

SOURCE = Path(__file__).parents[3] / "hooks" / "json.c"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
objects = st.dictionaries(st.text(), values, max_size=5)


class Span(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class Library:
    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        for name in ("gs_json_mentions", "gs_json_is_object", "gs_json_member", "gs_json_line", "gs_json_next"):
            getattr(self._c, name).restype = ctypes.c_bool
        self._c.gs_json_string.restype = ctypes.c_void_p

    @staticmethod
    def span(text: bytes) -> tuple[Span, ctypes.Array]:
        buffer = ctypes.create_string_buffer(text, len(text))
        return Span(ctypes.addressof(buffer), len(text)), buffer

    def is_object(self, text: bytes) -> bool:
        span, _kept = self.span(text)
        return self._c.gs_json_is_object(span)

    def member(self, text: bytes, name: str) -> bytes | None:
        span, _kept = self.span(text)
        found = Span()
        if not self._c.gs_json_member(span, name.encode(), ctypes.byref(found)):
            return None
        return ctypes.string_at(found.at, found.len)

    def mentions(self, text: bytes, wanted: str) -> bool:
        span, _kept = self.span(text)
        return self._c.gs_json_mentions(span, wanted.encode())

    def elements(self, text: bytes) -> list[bytes]:
        rest, _kept = self.span(text)
        value, found = Span(), []
        while self._c.gs_json_next(ctypes.byref(rest), ctypes.byref(value)):
            found.append(ctypes.string_at(value.at, value.len))
        return found

    def line(self, text: bytes, size: int) -> bytes | None:
        span, _kept = self.span(text)
        out = ctypes.create_string_buffer(size)
        return out.value if self._c.gs_json_line(span, out, ctypes.c_size_t(size)) else None

    def string(self, text: bytes) -> bytes:
        pointer = self._c.gs_json_string(text)
        try:
            return ctypes.string_at(pointer)
        finally:
            ctypes.CDLL(None).free(ctypes.c_void_p(pointer))


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(built.program("json.so"))


def holds(*strategies, few=20, many=100):
    """A property test: a few examples, or many in the slow selection."""

    def decorate(check):
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])
        def test(library, examples):
            @settings(max_examples=examples, deadline=None)
            @given(st.tuples(*strategies))
            def play(values):
                check(library, *values)

            play()

        return test

    return decorate


@holds(objects, st.sampled_from([None, 2]), st.booleans())
def test_takes_every_object(library, value, indent, ascii_only):
    assert library.is_object(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))


@holds(values.filter(lambda value: not isinstance(value, dict)))
def test_takes_nothing_else(library, value):
    assert not library.is_object(json.dumps(value).encode())


@holds(objects)
def test_cut_objects_are_none(library, value):
    text = json.dumps(value).encode()
    for end in range(len(text)):
        assert not library.is_object(text[:end])


@holds(objects, values)
def test_finds_a_member(library, value, wanted):
    value = {**value, "config": wanted}
    found = library.member(json.dumps(value, indent=1).encode(), "config")
    assert json.loads(found) == wanted


@holds(objects.filter(lambda value: "config" not in value))
def test_finds_top_level_members_only(library, value):
    assert library.member(json.dumps({"a": {"config": 1}, **value}).encode(), "config") is None


@holds(st.lists(values), st.sampled_from([None, 2]))
def test_goes_through_an_array(library, value, indent):
    assert [json.loads(found) for found in library.elements(json.dumps(value, indent=indent).encode())] == value


@holds(
    st.binary(max_size=200) | st.text('{}[]":,\\u0123456789etrfalsn.-+ ', max_size=200).map(str.encode),
    few=50,
    many=500,
)
def test_survives_anything(library, text):
    library.is_object(text)
    library.member(text, "a")
    library.elements(text)
    library.line(text, 20)


@holds(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_line(library, text, ascii_only):
    found = library.line(json.dumps(text, ensure_ascii=ascii_only).encode(), 4096)
    assert found.decode() == "".join(" " if ord(c) < 0x20 or ord(c) == 0x7F else c for c in text)


@holds(st.text(st.characters(exclude_categories=["Cs"]), min_size=20), st.integers(1, 30), st.booleans())
def test_long_lines_are_cut_between_characters(library, text, size, ascii_only):
    found = library.line(json.dumps(text, ensure_ascii=ascii_only).encode(), size)
    assert len(found) < size
    found.decode()


@holds(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_string(library, text):
    assert json.loads(library.string(text.encode())) == text


MARK = "gpushare.dev/"


@pytest.mark.promise("request-read-one-way")
@holds(st.text(max_size=20), st.text(max_size=20), st.lists(st.integers(0, 5), min_size=len(MARK), max_size=len(MARK)))
def test_mentions_in_every_spelling(library, before, after, how):
    """Also in capital letters."""
    mark = "".join(c.upper() if way > 2 else c for c, way in zip(MARK, how, strict=True))
    spelt = "".join([c, f"\\u{ord(c):04x}", f"\\u{ord(c):04X}"][way % 3] for c, way in zip(mark, how, strict=True))
    text = json.dumps(before)[:-1] + spelt + json.dumps(after)[1:]
    assert json.loads(text) == before + mark + after
    assert library.mentions(text.encode(), MARK)
    assert library.mentions(text.replace("/", "\\/").encode(), MARK)


@holds(st.text('gpushare.dev/\\"u0067 ', max_size=60))
def test_mentions_whatever_a_reader_finds(library, value):
    assert library.mentions(json.dumps(value).encode(), MARK) or MARK not in value


@pytest.mark.parametrize("text", [b"", b"gpushare.dev", b"\\u0067pushare.dev\\", b"\\u006", b"gpushare.dew/", b"\\"])
def test_mentions_nothing_else(library, text):
    assert not library.mentions(text, MARK)


def test_deep_nesting(library):
    assert library.is_object(b'{"a":' * 500 + b"1" + b"}" * 500)
    assert not library.is_object(b'{"a":' * 100000)
