"""The command line without a daemon: usage, exit codes, one line per error."""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys

import pytest

from gpushare import __version__
from gpushare.cli.main import VERBS, build_parser, main
from gpushare.cli.parser import FILES
from gpushare.client import Client
from gpushare.errors import UnreachableError


@pytest.fixture
def run(capsys):
    def call(*arguments):
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_every_verb_has_help(run):
    status, out, _ = run("--help")
    assert status == 0
    for name, verb in build_parser().verbs().items():
        assert f"{name} {verb.description.splitlines()[0]}" in " ".join(out.split())
        status, text, _ = run(name, "--help")
        assert status == 0
        assert text.startswith("usage: gpushare")


def parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def test_everything_has_a_help_text():
    found = list(parsers(build_parser()))
    assert len(found) > 20
    for parser in found:
        assert parser.description, parser.prog
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (parser.prog, action.dest)


def words(parser, line=()):
    """Every command line of a verb up to one of its options or arguments that takes text, and that action."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from words(inner, (*line, name))
        elif action.nargs not in (0, argparse.REMAINDER) and action.metavar not in FILES:
            yield (*line, *action.option_strings[:1]), action


def test_bytes_that_are_not_utf_8_are_refused_by_every_verb(run):
    found = list(words(build_parser()))
    assert len(found) > 80
    for line, action in found:
        if len(line) > len(action.option_strings[:1]):
            status, out, err = run(*line, "caf\udce9")
            assert (status, out) == (2, ""), line
            assert "'caf\\xe9' is not UTF-8: write it in UTF-8" in err and err.count("\n") == 1, line
    assert run("caf\udce9")[0] == 2
    status, _, err = run("devices", "--socket", "/nowhere/caf\udce9")
    assert (status, err.partition(":")[0]) == (4, "gpushare") and "no daemon at /nowhere/caf\\xe9" in err
    status, _, err = run("run", "--memory", "1GiB", "--time", "1%", "--", "/nowhere/caf\udce9")
    assert (status, "command not found" in err) == (127, True)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (">/dev/full", 1),
        ("--help >/dev/full", 1),
        ("run --help >/dev/full", 1),
        ("ps --json >/dev/full", 4),
        ('quota solve - >/dev/full <<<\'{"C": 1000, "tenants": []}\'', 1),
        ("--version >&-", 0),
        ("--help >&- 2>&-", 0),
        ("nonsense 2>/dev/full", 2),
        ("nonsense 2>&-", 2),
        ("quota solve - <&-", 2),
        ('quota solve - <<<$\'\\xef\\xbb\\xbf{"C": 1000, "tenants": []}\'', 0),
        ("gang prepare job - <<<$'\\xff\\xfe'", 2),
        ("gang prepare job - <<<$'\\xef\\xbb\\xbf{}'", 2),
    ],
)
def test_an_output_that_is_full_or_closed_gets_one_line_at_most(command, status):
    env = {**os.environ, "GPUSHARE_SOCKET": "/nowhere/node.sock"}
    line = f"{sys.executable} -m gpushare {command}"
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") <= 1 and "Traceback" not in done.stderr
    if status == 1:
        assert done.stderr == "gpushare: the output cannot be written: No space left on device\n"


def test_version(run):
    assert run("--version") == (0, f"gpushare {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json"],
        ["frobnicate"],
        ["grant"],
        ["grant", "create"],
        ["grant", "create", "--memory", "1GiB"],
        ["grant", "create", "--memory", "12 GiBs", "--time", "30%"],
        ["grant", "create", "--memory", "-3", "--time", "30%"],
        ["grant", "create", "--memory=-3", "--time", "30%"],
        ["grant", "create", "--memory", "140%", "--time", "30%"],
        ["grant", "create", "--memory", "NaN", "--time", "30%"],
        ["grant", "create", "--memory", "1GiB", "--time", "140%"],
        ["grant", "create", "--memory", "1GiB", "--time", "NaN"],
        ["grant", "create", "--memory", "1GiB", "--time=-3"],
        ["grant", "create", "--memory", "1GiB", "--time", "30%", "--devices", "0"],
        ["grant", "create", "--memory", "1GiB", "--time", "30%", "--devices", "many"],
        ["grant", "create", "--memory", "1GiB", "--time", "30%", "--ttl", "0"],
        ["grant", "create", "--memory", "1GiB", "--time", "30%", "--class", "urgent"],
        ["grant", "resize", "g-1"],
        ["grant", "resize", "g-1", "--memory", "big"],
        ["tenants", "set", "a", "--time", "lots"],
        ["tenants", "set", "a", "--weight", "1.5"],
        ["top", "--interval", "0"],
        ["top", "--interval", "nan"],
        ["top", "--count", "0"],
        ["ps", "--watch", "--interval", "0"],
        ["ps", "--count", "2"],
        ["daemon", "--simulate", "2x"],
        ["quota", "solve", "/nowhere/state.json"],
        ["watch", "--since", "now"],
    ],
)
def test_malformed_is_exit_2_and_one_line(run, arguments, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSHARE_SOCKET", str(tmp_path / "none.sock"))
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("gpushare: ")


NEEDS_A_DAEMON = [
    ["devices"],
    ["ps"],
    ["top", "--count", "1"],
    ["grant", "list"],
    ["grant", "show", "g-1"],
    ["grant", "create", "--memory", "1GiB", "--time", "30%"],
    ["grant", "release", "g-1"],
    ["tenants", "list"],
    ["sim", "stats"],
    ["events"],
    ["watch"],
]


@pytest.mark.parametrize("arguments", NEEDS_A_DAEMON)
def test_no_daemon_is_exit_4(run, arguments, tmp_path):
    status, out, err = run(*arguments, "--socket", str(tmp_path / "none.sock"))
    assert (status, out) == (4, "")
    assert "gpushare daemon" in err
    assert len(err.splitlines()) == 1


def test_dead_daemon_and_foreign_files_are_exit_4(run, tmp_path):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    status, _, err = run("ps", "--socket", str(path))
    assert (status, "Connection refused" in err) == (4, True)
    plain = tmp_path / "plain"
    plain.write_text("")
    status, _, err = run("ps", "--socket", str(plain))
    assert (status, "not a socket" in err) == (4, True)


def test_mute_daemon_is_given_up(tmp_path):
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(UnreachableError, match="timed out"):
            Client(path).call("GET", "/v1/version", timeout=0.2)


def test_quota_solve(run, tmp_path):
    state = tmp_path / "state.json"
    tenants = [{"name": "a", "g": 2000, "demand": 8000}, {"name": "b", "g": 6000, "demand": 1000}]
    state.write_text(json.dumps({"C": 8000, "tenants": tenants}))
    status, out, _ = run("quota", "solve", str(state), "--json")
    assert status == 0
    assert json.loads(out) == {"entitlement": {"a": 7000, "b": 1000}, "degraded": False}
    assert run("quota", "solve", str(state)) == (0, out, "")
    state.write_bytes(b"\xef\xbb\xbf" + state.read_bytes())
    assert run("quota", "solve", str(state)) == (0, out, "")
    twice = '{"C": 1, "tenants": [{"name": "a", "g": 1, "g": 2, "demand": 1}]}'
    for text in ("{", "[" * 100_000, '{"C": NaN}', '{"C": 1, "C": 2, "tenants": []}', twice, "\udcff"):
        state.write_text(text, errors="surrogateescape")
        status, out, err = run("quota", "solve", str(state))
        assert (status, out, err.count("\n")) == (2, "", 1), err


def test_doctor_finds_and_mends(run, tmp_path):
    status, out, _ = run("doctor", "--json", "--socket", str(tmp_path / "none.sock"))
    report = json.loads(out)
    assert status == (0 if report["healthy"] else 1)
    found = {finding["what"]: finding for finding in report["findings"]}
    assert found["kernel"]["level"] == "ok"
    assert found["daemon"]["level"] == "note"
    assert found["daemon"]["mend"].endswith("gpushare daemon`")
    assert all(finding["mend"] for finding in report["findings"] if finding["level"] != "ok")
    _, text, _ = run("doctor", "--socket", str(tmp_path / "none.sock"))
    assert "gpushare daemon`\n" in text


def loaded(directory, *arguments):
    program = (
        "import sys\nfrom gpushare.cli.main import main\n"
        f"try: main({arguments})\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=directory, check=True)
    return set(done.stderr.split())


def test_help_imports_little(tmp_path):
    """The cost of --help is its imports; `make bench` measures the time itself."""
    heavy = {"aiohttp", "asyncio", "msgspec", "sqlite3", "pynvml", "tomlkit", "http.client", "cffi", "subprocess"}
    heavy |= {"dataclasses", "inspect", "tomllib", "textual", "rich"}
    assert loaded(tmp_path, "--help") & heavy == set()


def test_a_verb_imports_no_other(tmp_path):
    verbs = {f"gpushare.cli.{place.rpartition('.')[0]}" for place in VERBS.values()} - {"gpushare.cli.completion"}
    assert loaded(tmp_path, "ps", "--help") & verbs == {"gpushare.cli.look.show"}
    assert loaded(tmp_path, "--help") >= verbs


def test_help_is_quick(tmp_path):
    """The documented bound is 150 ms of CPU time; the margin allows for a busy machine."""
    best = 9.9
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "gpushare", "--help"], capture_output=True, cwd=tmp_path, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best < 0.5


def test_output_to_a_closed_pipe_is_quiet(tmp_path):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "gpushare", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        check=False,
    )
    os.close(write)
    assert b"Traceback" not in done.stderr
