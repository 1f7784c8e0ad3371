"""The help of every verb: examples parse, nothing is wider than a terminal, and errors suggest what was meant."""

import argparse
import io
import os
import pty
import re
import subprocess
import sys
from typing import get_args

import pytest
from run.built import ROOT
from views.commandlines import parsers, words

from gpushare.api.events import EventKind
from gpushare.api.share import Signal
from gpushare.cli.main import GROUPS, build_parser, main
from gpushare.cli.usage.progress import Progress
from gpushare.errors import UsageError
from gpushare.text import rules

MOST = 80


def test_each_verb_has_examples_which_parse():
    found, parser = list(parsers()), build_parser()
    assert len(found) > 50
    for verb in found:
        assert verb.examples, verb.prog
        for line, what in verb.examples:
            assert verb.prog in line, (verb.prog, line)
            assert what, line
            if given := words(line):
                shown = given[-1] in ("--help", "--version")
                try:
                    parser.parse_args(given)
                except SystemExit as end:
                    assert (shown, end.code) == (True, 0), line


def test_help_fits_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(MOST))
    for parser in parsers():
        for line in parser.format_help().splitlines():
            assert len(line) <= MOST, line


def test_the_list_of_verbs_has_each_once_in_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(MOST))
    text = build_parser().format_help()
    for title, names in GROUPS:
        block = text.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == list(names)
    assert set(build_parser().verbs()) == {name for _, names in GROUPS for name in names}


def test_options_tell_their_defaults():
    for parser in parsers():
        for action in parser._actions:
            if action.option_strings and action.nargs != 0 and not action.required:
                notified = re.search(r"default|needed|\bonly\b|instead", parser._get_formatter()._expand_help(action))
                assert notified, (parser.prog, action.dest)
                assert action.metavar or action.choices or isinstance(action, argparse.BooleanOptionalAction), (
                    parser.prog,
                    action.dest,
                )


def test_choices_are_those_of_the_node_api():
    assert get_args(Signal) == rules.EVICTION_SIGNALS
    assert tuple(kind for kind in get_args(EventKind) if kind != "other") == rules.EVENT_KINDS


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gran list", "did you mean `gpushare grant`"),
        ("create --memory 1GiB", "did you mean `gpushare grant create`?"),
        ("grant crate", "did you mean `gpushare grant create`?"),
        ("Devices", "did you mean `gpushare devices`"),
        ("status", "did you mean `gpushare doctor`"),
        ("grant", "which verb? create, show, "),
        ("grant xyzzy", "there is create, show, "),
        ("--json ps", "--json goes behind its verb"),
        ("grant --json list", "gpushare grant VERB --json"),
        ("ps -a", "did you mean --all?"),
        ("ps g-1", "'g-1' is one word too many"),
        ("-V", "did you mean --version?"),
        ("--verison", "did you mean --version?"),
        ("grant create --memroy 1GiB --time 30%", "no option '--memroy' here: did you mean --memory?"),
        ("grant create --time 30%", "missing: --memory"),
        ("run --memory 1GiB --tiem 30% -- true", "did you mean --time? (see `gpushare run --help`)"),
        ("run --memory 1GiB -- true", "give --memory and --time, --simulate, or --grant ID"),
        ("run --memory 8 --time 30% -- true", "memory '8' has no unit and would be bytes: write 8GiB or 8MiB"),
        ("run --memory 8GiB --time 50 -- true", "time '50' has no unit: write 50% or 50m (thousandths: 5%)"),
        ("run --memory 8GiB --time 300 -- true", "time '300' has no unit: write 300m (thousandths: 30%)"),
        ("run --memory 1GiB --time 0,3 -- true", "write 30%, 0.3 or 300m"),
        ("run --wait soon -- true", "duration 'soon' is none: write for example 30s, 5m"),
        ("run --memory 1GiB --time 30% --class fast -- true", "give interactive, training or inference"),
        ("runtime status --engine dokcer", "did you mean docker?"),
        ("events --kind leases", "did you mean lease"),
        ("plan --memory 1GiB --time 30% --eviction-signal sigusr3", "give HUP, INT, "),
        ("adapter slurm", "missing: WHAT"),
        ("ps --\x1b[31m", r"'--\x1b[31m'"),
        ("ps " + "x" * 5000, "is one word too many"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_what_was_meant(line, message, monkeypatch, capsys):
    monkeypatch.setenv("GPUSHARE_SOCKET", "/nowhere/node.sock")
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1
    assert len(err) < 300
    assert err.rstrip("\n").isprintable()


def test_help_is_a_verb_too(capsys):
    for line in ("help", "help grant create"):
        with pytest.raises(SystemExit):
            main(line.split())
        by_verb = capsys.readouterr().out
        with pytest.raises(SystemExit):
            main([*line.split()[1:], "--help"])
        assert by_verb == capsys.readouterr().out


def test_times_to_wait_are_written_as_all_durations_are():
    for given in ("--wait 5m", "--wait 300", "--grace 5m --wait 300s"):
        args = build_parser().parse_args(["run", *given.split(), "--", "true"])
        assert args.wait == 300 and args.grace in (None, 300)
    assert build_parser().parse_args(["pause", "--all", "--wait=1.5h"]).wait == 5400


def test_an_unknown_option_behind_the_command_is_the_commands():
    args = build_parser().parse_args(["run", "--memory", "1GiB", "--time", "1%", "--", "python3", "--memroy"])
    assert args.argv == ["--", "python3", "--memroy"]
    with pytest.raises(UsageError, match="no option '--memroy'"):
        build_parser().parse_args(["run", "--memroy", "1GiB", "--", "python3"])


def test_manual_pages_show_what_the_help_states(tmp_path):
    """`man` has no warnings, and shows text with special characters as it is."""
    subprocess.run([sys.executable, ROOT / "scripts/reference.py", "--man", tmp_path], check=True)
    assert {path.name for path in (tmp_path / "man1").iterdir()} >= {"gpushare.1", "gpushare-run.1", "gpushare-why.1"}
    page = tmp_path / "man1" / "gpushare-grant.1"
    env = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANROFFSEQ": ""}
    done = subprocess.run(["man", "--warnings", "-l", page], env=env, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    flat = " ".join(done.stdout.split())
    for verb in build_parser().verbs()["grant"].verbs().values():
        assert all(
            option in flat for action in verb._actions for option in action.option_strings if action.dest != "help"
        )
        assert all(" ".join(line.split()) in flat for line, _ in verb.examples)
    assert "\"memory >= 40Gi && arch == 'Hopper'\"" in flat


def test_the_reference_is_that_of_the_parser():
    done = subprocess.run([sys.executable, ROOT / "scripts/reference.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_progress_is_a_line_for_each_quarter_where_nobody_watches():
    out = io.StringIO()
    with Progress("counting", out, quiet=0) as progress:
        assert list(progress.over(range(1000))) == list(range(1000))
    assert out.getvalue().splitlines() == [
        "counting: 0 of 1000 (0 %)",
        "counting: 250 of 1000 (25 %)",
        "counting: 500 of 1000 (50 %)",
        "counting: 750 of 1000 (75 %)",
    ]
    with Progress("quick", out := io.StringIO(), quiet=60) as progress:
        assert list(progress.over("abc")) == ["a", "b", "c"]
    assert out.getvalue() == ""


def test_progress_is_one_line_of_a_terminal_which_it_leaves_empty():
    mine, its = pty.openpty()
    with open(its, "w") as out, open(mine, "rb", buffering=0) as terminal:
        with Progress("counting", out, quiet=0) as progress:
            progress.at(1, 2)
        expected = b"\r\x1b[Kcounting: 1 of 2 (50 %)\r\x1b[K"
        shown = b""
        while len(shown) < len(expected):  # a read may return only a part
            shown += terminal.read(100)
        assert shown == expected


@pytest.mark.slow
def test_a_followed_command_states_how_far_it_is_in_plain_lines():
    steps = "import time\nfor n in 1, 2, 3, 4: print(f'[{n}/4] step', flush=True); time.sleep(0.35)"
    follow = [sys.executable, ROOT / "scripts/follow", "building"]
    done = subprocess.run([*follow, sys.executable, "-c", steps], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert all(re.fullmatch(r"building(: \d of 4 \(\d+ %\))?", line) for line in done.stderr.splitlines())
    assert "building: 4 of 4 (100 %)" in done.stderr
    failed = subprocess.run([*follow, sys.executable, "-c", "print('why'); exit(3)"], capture_output=True, text=True)
    assert (failed.returncode, failed.stdout, failed.stderr) == (3, "why\n", "")
