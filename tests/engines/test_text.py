"""Administrators' files of any layout: our settings are all that changes, and are removed again to the byte."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpushare.engines import configuration, containerd, files, json_text, toml_text
from gpushare.engines.edit import Edit, Options
from gpushare.errors import FailedError

WRAPPER = Path("/usr/bin/gpushare-runtime")
OPTIONS = Options(runtime_path=WRAPPER)
NAME = "config.toml"

# Text that would mislead a program that looks for lines, brackets or quotes without parsing the language.
VALUES = (
    "1", "true", "false", '"x"', "'# [a]'", '"\\"]"', "1979-05-27T07:32:00Z", "[1, 2]", '[\n  "a", # ]\n\n  "b",\n]',
    '"""\n[plugins.x]\nenable_cdi = true # "" \\"""\n"""', "'''\n[y\n'''", '{ a = 1, "b.c" = "}" }', '["[", "]"]',
)  # fmt: skip
NAMES = ("root", '"a b"', "'q.r'", "state", "x-y")
CRI = 'plugins."io.containerd.grpc.v1.cri"'
TABLES = (
    "plugins", CRI, "plugins.'io.containerd.grpc.v1.cri'.containerd", f"{CRI}.containerd.runtimes.runc",
    f"{CRI}.containerd.runtimes.runc.options", f"{CRI} . containerd.runtimes.kata", "grpc", 'a."b.[c]"', "[list]",
)  # fmt: skip
MINE = (
    "enable_cdi = false", "enable_cdi = true", "enable_cdi=false # mine", 'default_runtime_name = "runc"',
    "SystemdCgroup = true", 'runtime_type = "io.containerd.runc.v2"', 'pod_annotations = [\n "a",\n]',
)  # fmt: skip


@st.composite
def toml_files(draw) -> str:
    indent = st.sampled_from(("", "  ", "\t", "     "))
    noise = st.lists(st.sampled_from(("", "   ", "# a [comment] = '", "\t# x")), max_size=2)
    lines = ["version = 2"]

    def keys() -> None:
        named = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
        some = [f"{name} = {draw(st.sampled_from(VALUES))}" for name in named]
        for line in draw(st.permutations([*some, *draw(st.lists(st.sampled_from(MINE), max_size=2))])):
            lines.extend(draw(noise))
            lines.append(draw(indent) + line + draw(st.sampled_from(("", " ", " # why"))))

    keys()
    for table in draw(st.lists(st.sampled_from(TABLES), unique=True, max_size=6)):
        lines.extend(draw(noise))
        lines.append(f"{draw(indent)}[{table}]{draw(st.sampled_from(('', ' # [t]')))}")
        keys()
    text = "\n".join(lines) + draw(st.sampled_from(("\n", "", "\n\n")))
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return text


def wanted(text: str) -> toml_text.Settings:
    return containerd.settings(Path("/nowhere", NAME), text, OPTIONS, (1, 7))


def leaves(value: object, path: tuple = ()) -> dict:
    if not isinstance(value, dict):
        return {path: value}
    return {key: leaf for name, inner in value.items() for key, leaf in leaves(inner, (*path, name)).items()}


@given(toml_files(), st.randoms(use_true_random=False))
def test_toml_is_as_before_when_ours_is_taken_out(text, random):
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
    try:
        after = toml_text.apply(text, wanted(text), NAME)
    except FailedError as error:
        assert "inline" in str(error) and not isinstance(before.get("plugins", {}), dict)
        return
    assert toml_text.strip(after, NAME) == text
    assert toml_text.apply(toml_text.strip(after, NAME), wanted(text), NAME) == after
    now = leaves(tomllib.loads(after))
    for path, value in leaves(before).items():
        assert path[-1] == "enable_cdi" or now[path] == value
    cri = tomllib.loads(after)["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["enable_cdi"] is True
    ours, usual = cri["containerd"]["runtimes"]["gpushare"], cri["containerd"]["runtimes"].get("runc", {})
    assert ours["options"] == {**usual.get("options", {}), "BinaryName": str(WRAPPER)}
    assert ours["pod_annotations"][-2:] == ["gpushare.dev/*", "nvidia.com/container.*"]

    # The administrator adds lines outside our sections; at the end, those are the only change.
    lines, outside, kept = re.findall(r"[^\n]*\n|[^\n]+", after), [], 0
    inside = False
    for number, line in enumerate(lines):
        if not inside:
            outside.append((number, kept))
        inside = (inside or line.strip() == toml_text.BEGIN) and line.strip() != toml_text.END
        kept += (not inside and line.strip() != toml_text.END) or line.startswith(toml_text.REPLACED)
    number, kept = random.choice(outside)
    original = re.findall(r"[^\n]*\n|[^\n]+", text)
    lines.insert(number, "# theirs\n")
    original.insert(kept, "# theirs\n")
    expected = "".join(original)
    if kept == len(original) - 1 and not text.endswith("\n"):  # after a last line without a newline
        expected = text + ("\r\n" if "\r\n" in text else "\n") + "# theirs"
    assert toml_text.strip("".join(lines), NAME) == expected


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_setting_that_gives_way_stays_readable_and_comes_back(end):
    text = end.join(["version = 2", f"[{CRI}]", "\tenable_cdi = false   # no", ""])
    after = toml_text.apply(text, wanted(text), NAME)
    assert f"{toml_text.REPLACED}\tenable_cdi = false   # no{end}\tenable_cdi = true{end}" in after
    assert "\n" not in after.replace(end, "")
    assert toml_text.strip(after, NAME) == text


def test_inline_tables_and_lost_ends_are_left_alone():
    text = 'version = 2\n[plugins]\n"io.containerd.grpc.v1.cri" = { enable_cdi = false }\n'
    with pytest.raises(FailedError, match="inline"):
        toml_text.apply(text, wanted(text), NAME)
    with pytest.raises(FailedError, match="line 2 has no counterpart"):
        toml_text.strip(f"a = 1\n{toml_text.BEGIN}\nb = 2\n", NAME)
    with pytest.raises(FailedError, match="line 1 has no counterpart"):
        toml_text.strip(f"{toml_text.END}\n", NAME)


def docker(**options: object) -> Edit:
    given = Options(runtime_path=WRAPPER, config=Path("daemon.json"), **options)
    return configuration.ENGINES["docker"].edits(given, None)[0]


@st.composite
def json_files(draw) -> str:
    scalar = st.sampled_from([None, True, 1.5, "x", 'a"}{', "ü", [], {}, [1, {"runtimes": 2}], {"n": {"m": []}}])
    root = draw(st.dictionaries(st.sampled_from(["debug", "hosts", "a,b", "log-opts"]), scalar, max_size=3))
    if draw(st.booleans()):
        root["runtimes"] = draw(st.dictionaries(st.sampled_from(["nvidia", "kata"]), st.just({"path": "/x"})))
    if draw(st.booleans()):
        root["features"] = draw(st.dictionaries(st.sampled_from(["buildkit", "cdi"]), st.booleans()))
    if draw(st.booleans()):
        root["default-runtime"] = "nvidia"
    root = dict(draw(st.permutations(list(root.items()))))
    layout = draw(st.sampled_from([{"indent": 2}, {"indent": 4}, {"indent": "\t"}, {}, {"separators": (",", ":")}]))
    text = json.dumps(root, ensure_ascii=draw(st.booleans()), **layout)
    if draw(st.booleans()):
        text = text.replace("{", "{ ").replace(",", " ,\t") if '"a' not in text else text
    text = draw(st.sampled_from(["", "\n", " \n"])) + text + draw(st.sampled_from(["", "\n", "\n\n"]))
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


@given(json_files() | st.sampled_from(["", " \n", "{}", "{\n}\n"]), st.booleans(), st.booleans())
def test_json_is_as_before_when_ours_is_taken_out(text, default, cdi):
    edit = docker(set_as_default=default, cdi=cdi)
    before = json.loads(text.strip() or "{}")
    after = edit.put(text)
    assert edit.has(after) and not edit.has(text)
    assert edit.take(after, text) == text
    assert edit.put(edit.take(after, text)) == after
    now = json.loads(after)
    assert now["runtimes"]["gpushare"] == {"path": str(WRAPPER)}
    assert not cdi or now["features"]["cdi"] is True
    assert not default or now["default-runtime"] == "gpushare"
    changed = {("runtimes", "gpushare", "path"), ("features", "cdi"), ("default-runtime",)}
    old, new = leaves(before), leaves(now)
    assert {key: value for key, value in old.items() if key not in changed} == {
        key: value for key, value in new.items() if key not in changed
    }

    # The administrator adds one setting and drops another: both changes stay.
    theirs = dict(now, theirs=[1])
    theirs.pop("debug", None)
    left = json.loads(edit.take(json.dumps(theirs), text))
    expected = {**{key: value for key, value in before.items() if key != "debug"}, "theirs": [1]}
    assert left == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a": 1,\n  "b" 2\n}\n', "line 3"),
        ('{\n "a": 1,\n}\n', "line [23]"),
        ("[]", "line 1"),
        ('{"runtimes": 1}', "not an object"),
        ('{"a": 1, "a": 2}', "'a' comes twice"),
    ],
)
def test_json_that_cannot_be_edited_is_refused(text, message):
    with pytest.raises(FailedError, match=message):
        docker().put(text)


def test_a_backup_stays_out_of_directories_that_engines_read_whole():
    assert files.backup_of(Path("/etc/docker/daemon.json")).parent == Path("/etc/docker")
    assert files.backup_of(Path("/etc/crio/crio.conf.d/1.conf")).parent == Path("/etc/crio")
    assert json_text.get('{"a": {"b": [1, 2]}}', ("a", "b")) == "[1, 2]"


def test_a_file_with_a_byte_order_mark_is_left_alone(tmp_path):
    path = tmp_path / "daemon.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    with pytest.raises(FailedError, match="begins with a byte order mark; save it without"):
        files.read(path)
