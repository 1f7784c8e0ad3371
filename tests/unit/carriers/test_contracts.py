"""Contracts of carriers: what is taken, what is refused and with which words, and whose files count."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.carriers import contract, files
from gpushare.carriers.contract import Client, Server
from gpushare.errors import GpushareError, NotFoundError, RefusedError, UsageError
from gpushare.text import toml

GOOD = """name = "example"
[server]
argv = ["example-server", "--port", "{port}"]
env = { EXAMPLE_PORT = "{port}" }
version = ["example-server", "--version"]
[client]
dir = "/usr/lib/example/client"
libraries = ["libcuda.so.1", "libnvidia-ml.so.1"]
env = { EXAMPLE_SERVER = "{host}:{port}" }
version = "VERSION"
lost = "CUDA_ERROR_DEVICE_UNAVAILABLE"
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "carriers"
    made.mkdir(mode=0o755)
    return made


def put(directory: Path, text: str | bytes = GOOD, name: str = "example") -> Path:
    path = directory / f"{name}.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o644)
    return path


def test_a_contract_and_what_is_put_into_it(directory: Path) -> None:
    put(directory)
    found = files.load("example", [directory])
    assert found == files.find("example", [directory]) == files.find(None, [directory])
    assert found.server is not None
    assert found.client is not None
    assert contract.argv(found.server, 7434) == ["example-server", "--port", "7434"]
    assert contract.server_env(found.server, 7434) == {"EXAMPLE_PORT": "7434"}
    assert contract.client_env(found.client, "127.0.0.1", 81) == {"EXAMPLE_SERVER": "127.0.0.1:81"}


def test_only_placeholders_are_replaced() -> None:
    odd = "{port} {{port}} {host} {} {x} {port:5} ${port} {port"
    assert contract.argv(Server(argv=("a", odd)), 5) == ["a", "5 {5} {host} {} {x} {port:5} $5 {port"]
    client = Client(dir="/", libraries=("a",), env={"A": odd})
    filled = contract.client_env(client, "{port}", 5)
    assert filled == {"A": "5 {5} {port} {} {x} {port:5} $5 {port"}, "what is put in is not looked at again"


def test_a_machine_may_have_one_half(directory: Path) -> None:
    server, _, client = GOOD.partition("[client]\n")
    put(directory, server)
    assert files.load("example", [directory]).client is None
    put(directory, 'name = "example"\n[client]\n' + client)
    assert files.load("example", [directory]).server is None


def test_which_file_counts(directory: Path, tmp_path: Path) -> None:
    later, missing = tmp_path / "later", tmp_path / "missing"
    later.mkdir(mode=0o755)
    put(directory)
    put(later, GOOD.replace("/usr/lib/example", "/opt"))
    put(later, GOOD.replace('"example"', '"other"'), "other")
    for name in ("Example", "-a", "a.b", "a" * 33, ""):
        put(later, GOOD, name)
    searched = [missing, directory, later]
    assert files.names(searched) == ["example", "other"]
    found = files.load("example", searched).client
    assert found is not None
    assert found.dir == "/opt/client"
    with pytest.raises(UsageError, match=r"several carriers, example, other: name one"):
        files.find(None, searched)
    with pytest.raises(NotFoundError, match=r"no carrier: put its contract"):
        files.find(None, [missing])
    for name in ("absent", "../carriers/example", "example.toml", "", "a\0"):
        with pytest.raises(NotFoundError, match=r"it has example, other"):
            files.load(name, searched)


WRONG = {
    "not TOML": ("name = ", r":1: Invalid value"),
    "not UTF-8": (b'name = "\xff"', r":1: byte 0xff is not UTF-8"),
    "nested": ("a = " + "[" * 20000, r":1: it is nested too deep"),
    "too long": ("#" * (64 << 10) + "\n" + GOOD, r"more than 64 KiB"),
    "empty": ("", r"missing required field `name`"),
    "neither half": ('name = "example"', r":1: name: there is neither \[server\] nor \[client\]"),
    "another's name": (GOOD.replace('"example"', '"other"', 1), r":1: name: it is 'other'"),
    "unknown key": (GOOD + 'color = "red"\n', r":12: .*unknown field `color`.*client"),
    "unknown table": (GOOD + "[relay]\n", r":12: .*unknown field `relay`"),
    "a word, not a list": (GOOD.replace('["example-server", "--port", "{port}"]', '"x"'), r":3: Expected `array`"),
    "a number in a list": (GOOD.replace('"--port"', "7"), r":3: Expected `str`, got `int`.*server\.argv"),
    "a number as a value": (GOOD.replace('EXAMPLE_PORT = "{port}"', "EXAMPLE_PORT = 7"), r":4: Expected `str`"),
    "a table as a name": (GOOD.replace('name = "example"', "name = {}"), r":1: Expected `str`"),
    "no argv": (GOOD.replace("argv", "env2"), r":[23]: .*(unknown field|missing)"),
    "no program": (
        GOOD.replace('["example-server", "--port", "{port}"]', "[]"),
        r":3: server\.argv: it begins with the program",
    ),
    "empty program": (GOOD.replace('["example-server", "--v', '["", "--v'), r":5: server\.version: it begins with"),
    "no port": (GOOD.replace("{port}", "7", 2), r":3: server\.argv: \{port\} is neither here nor in server\.env"),
    "NUL": (GOOD.replace("--port", "\\u0000"), r":3: server\.argv: '\\x00' cannot be an argument"),
    "many words": (GOOD.replace('"--port"', '"--port"' + ', "x"' * 64), r":3: server\.argv: 67 words, 64 at most"),
    "long word": (GOOD.replace("--port", "p" * 4097), r":3: server\.argv: .* cannot be an argument"),
    "no variable": (
        GOOD.replace("EXAMPLE_PORT", '"A B"'),
        r":4: server\.env\.A B: 'A B' is not the name of a variable",
    ),
    "our variable": (GOOD.replace("EXAMPLE_PORT", "GPUSHARE_X"), r":4: server\.env\.GPUSHARE_X: gpushare sets such"),
    "preloaded": (GOOD.replace("EXAMPLE_SERVER", "LD_PRELOAD"), r":9: client\.env\.LD_PRELOAD: gpushare sets such"),
    "no full path": (GOOD.replace('"/usr', '"usr'), r":7: client\.dir: .* is not the full path"),
    "no libraries": (GOOD.replace('["libcuda.so.1", "libnvidia-ml.so.1"]', "[]"), r":8: client\.libraries: give 1 to"),
    "library elsewhere": (
        GOOD.replace("libcuda", "../libcuda"),
        r":8: client\.libraries: .* is not the name of a file",
    ),
    "version elsewhere": (GOOD.replace('"VERSION"', '"/etc/shadow"'), r":10: client\.version: .* is not the name"),
    "odd error": (GOOD.replace("CUDA_ERROR", "\\u001b[31m"), r":11: client\.lost: give the name of an error"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_contract_says_where_and_what(directory: Path, text: str | bytes, words: str) -> None:
    path = put(directory, text)
    with pytest.raises(UsageError, match=words) as raised:
        files.load("example", [directory])
    assert str(raised.value).startswith(str(path))
    assert str(raised.value).isprintable()


@pytest.mark.promise("contract-of-others")
def test_what_others_may_write_or_lead_elsewhere_is_no_contract(directory: Path, tmp_path: Path) -> None:
    def refused(words: str) -> None:
        with pytest.raises(GpushareError, match=words) as raised:
            files.load("example", [directory])
        assert not isinstance(raised.value, NotFoundError)

    path = put(directory)
    for mode in (0o664, 0o646):
        path.chmod(mode)
        refused(r"example\.toml: others may write to it")
    path.chmod(0o644)
    for mode in (0o775, 0o757, 0o1777):
        directory.chmod(mode)
        refused(r"carriers: others may write to it")
    directory.chmod(0o755)
    files.load("example", [directory])
    if os.geteuid() == 0:
        for whose in (path, directory):
            os.chown(whose, 12345, -1)
            refused(r"it belongs to user 12345")
            os.chown(whose, 0, -1)

    path.rename(tmp_path / "real.toml")
    path.symlink_to(tmp_path / "real.toml")
    refused(r"symbolic link")
    path.unlink()
    os.mkfifo(path, 0o644)  # nobody will ever write to it
    refused(r"it is not a file")
    path.unlink()
    path.mkdir(0o755)
    refused(r"it is not a file")
    path.rmdir()
    put(directory)
    linked = tmp_path / "linked"
    linked.symlink_to(directory)
    with pytest.raises(UsageError, match=r"no directory that can be read"):
        files.load("example", [linked])


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_any_bytes_are_a_contract_or_refused(data: bytes) -> None:
    try:
        contract.of(toml.parse(Path("/x/example.toml"), data), "example")
    except UsageError as error:
        assert re.match(r"/x/example\.toml", str(error))


def test_the_client_s_half_is_here(directory: Path) -> None:
    libraries = directory / "client"
    put(directory, GOOD.replace("/usr/lib/example/client", str(libraries)))
    found = files.load("example", [directory])
    assert found.client is not None
    with pytest.raises(RefusedError, match=r"carrier example: there is no .*/libcuda\.so\.1: install"):
        files.libraries("example", found.client)
    with pytest.raises(RefusedError, match=r"version, .*/VERSION: No such file"):
        files.client_version(found)
    libraries.mkdir()
    for name in found.client.libraries:
        (libraries / name).touch()
    assert files.libraries("example", found.client) == [libraries / name for name in found.client.libraries]
    version = libraries / "VERSION"
    for text in (b"", b"\n1.0\n", b"\xff\n", b"\x1b[31m\n", b"x" * 101):
        version.write_bytes(text)
        with pytest.raises(RefusedError, match=r"its first line is no version"):
            files.client_version(found)
    version.write_bytes(b"example 1.0 \nmore\n")
    assert files.client_version(found) == "example 1.0"
    version.unlink()
    os.mkfifo(version)
    with pytest.raises(RefusedError, match=r"no version"):
        files.client_version(found)


def test_versions_that_differ_are_both_told() -> None:
    with pytest.raises(RefusedError, match=r"node has version '1\.0', this machine '1\.1': install the same"):
        contract.same_version("example", "1.0", "1.1")
    for pair in (("1.0", "1.0"), ("", "1.0"), ("1.0", ""), ("", "")):
        contract.same_version("example", *pair)
