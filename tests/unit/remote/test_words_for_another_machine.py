"""What `run --on` has a shell of another machine do, whatever is in the words."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cli import program
from gpushare.cli.grants import there
from gpushare.cli.main import build_parser
from gpushare.processes import ssh

WORDS = [
    "a b",
    "c'd",
    'e"f',
    "$HOME",
    "`id`",
    "\\n",
    "new\nline",
    "!x",
    "%s",
    "é\udcff",
    "\\\\",
    "",
    "*",
    "~",
    "#",
    "-n",
]
SHELLS = [shell for shell in ("sh", "bash", "dash", "csh", "tcsh", "fish", "zsh") if shutil.which(shell)]
SHOW = "import os, sys; sys.stdout.write(ascii(sys.argv[1:]))"


def line(words, script="exec {}"):
    """The last word of the ssh command: what the shell there gets."""
    quoted = ssh.quoted([sys.executable, "-c", SHOW, *words])
    *_, host, found = ssh.running("host", script.format(quoted), terminal=False, log="/dev/null")
    assert host == "host"
    return found


@pytest.mark.parametrize("shell", SHELLS)
def test_words_arrive_as_they_were_in_every_shell(shell):
    done = subprocess.run([shell, "-c", line(WORDS)], capture_output=True, check=True)
    assert done.stdout.decode() == ascii(WORDS)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), max_size=4))
def test_any_words_arrive_as_they_were(words):
    done = subprocess.run(["sh", "-c", line(words)], capture_output=True, check=True)
    assert done.stdout.decode() == ascii(words)


@pytest.fixture
def gpushare(tmp_path):
    """A directory for PATH with a gpushare that says where and with what it runs."""
    program = tmp_path / "bin" / "gpushare"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"print(json.dumps([os.getcwd(), os.environ['{there.PARENT_ENV}'], os.getppid(), sys.argv[1:]]))\n"
    )
    program.chmod(0o755)
    return program.parent


def run(script, path, home):
    *_, words = ssh.running("host", script, terminal=False, log="/dev/null")
    env = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(home)}
    return subprocess.run(["sh", "-c", words], capture_output=True, text=True, env=env, cwd=home, check=False)


def test_it_runs_in_the_same_directory_there(gpushare, tmp_path):
    (place := tmp_path / "it's here").mkdir()
    done = run(there.script("gpu1", place, ["--memory", "1GiB"], ["prog", "a b"]), gpushare, tmp_path)
    where, session, parent, words = json.loads(done.stdout)
    assert (where, words) == (str(place), ["run", "--memory", "1GiB", "--", "prog", "a b"])
    assert session == str(parent)
    assert done.stderr == ""


def test_without_that_directory_it_says_so_once_and_runs_at_home(gpushare, tmp_path):
    done = run(there.script("gpu1", Path("/no/such; place"), [], ["prog"]), gpushare, tmp_path)
    assert json.loads(done.stdout)[0] == str(tmp_path)
    assert done.stderr == (
        "gpushare: gpu1 has no directory /no/such; place: the command runs in your home directory there\n"
    )


def test_a_node_without_gpushare_is_named(tmp_path):
    done = run(there.script("gpu1", tmp_path, [], ["prog"]), tmp_path, tmp_path)
    assert done.returncode == 125
    assert "gpu1 has no gpushare" in done.stderr


@pytest.mark.parametrize(
    ("typed", "passed"),
    [
        ("--on gpu1 --memory 1GiB -- x", "--memory 1GiB"),
        ("--memory 1GiB --on=gpu1 -- x --on y", "--memory 1GiB"),
        ("--memory=35% --time 30% --nodes f --on gpu1 x -- y", "--memory=35% --time 30%"),
        ("--nod f --on gpu1 --class inference --report -- x", "--class inference --report"),
        ("--on unix:x --simulate -- x", "--simulate"),
    ],
)
def test_options_of_a_share_are_passed_on_as_they_were_typed(typed, passed):
    parser = build_parser("run").verbs()["run"]
    args = parser.parse_args(typed.split())
    assert there.options(parser, program.command(args.argv)) == passed.split()
