"""`gpushare run --on NODE`: the program runs there, by ssh, as if it had been started there."""

import signal

import pytest
from remote import sshd
from run import running
from run.waiting import until

from gpushare.errors import UnreachableError

SHARE = ("--memory", "1GiB", "--time", "10%")


def test_the_program_runs_there_in_a_share(elsewhere, tmp_path):
    script = 'echo "$0|$1|$PWD|$GPUSHARE_GRANT_DIR"; cat; exit 7'
    words = ("run", "--on", elsewhere.ssh, *SHARE, "--", "sh", "-c", script, "it's", "a\nb")
    done = elsewhere.cli(*words, cwd=tmp_path, input="typed")
    said, _, grant = done.stdout.rpartition("|")
    assert (done.returncode, said) == (7, f"it's|a\nb|{tmp_path}")
    assert grant.startswith(f"{elsewhere.node.layout.grants}/g-") and grant.endswith("\ntyped")
    assert done.stderr == ""


def test_what_it_says_of_the_share_is_said_here(elsewhere):
    done = elsewhere.cli("run", "--on", elsewhere.ssh, *SHARE, "--report", "--", running.SPIN, "--seconds", "0.02")
    assert done.returncode == 0
    assert "1GiB and 10%" in done.stderr


def test_an_option_of_the_list_names_the_socket_there(elsewhere):
    elsewhere.write(f'[nodes.gpu1]\ntarget = "ssh:far"\nsocket = "{elsewhere.node.layout.socket}"\n')
    done = elsewhere.cli("run", "--on", "gpu1", *SHARE, "--", "printenv", "GPUSHARE_GRANT_DIR")
    assert done.returncode == 0, done.stderr


def test_a_node_on_this_machine_needs_no_ssh(elsewhere):
    target = f"unix:{elsewhere.node.layout.socket}"
    done = elsewhere.cli("run", "--on", target, *SHARE, "--", "printenv", "GPUSHARE_GRANT_DIR")
    assert done.returncode == 0, done.stderr


def test_a_node_on_this_machine_that_does_not_answer(elsewhere, tmp_path):
    done = elsewhere.cli("run", "--on", f"unix:{tmp_path / 'none.sock'}", *SHARE, "--", "true")
    assert done.returncode == UnreachableError.exit_code
    assert "--simulate" not in done.stderr


def test_the_status_of_ssh_is_the_commands_own_unless_ssh_failed(elsewhere):
    done = elsewhere.cli("run", "--on", elsewhere.ssh, *SHARE, "--", "sh", "-c", "exit 255")
    assert (done.returncode, done.stderr) == (255, "")
    done = elsewhere.cli("run", "--on", f"ssh:{sshd.OFF}", *SHARE, "--", "true")
    assert done.returncode == UnreachableError.exit_code
    assert done.stderr.startswith(f"gpushare: ssh:{sshd.OFF} cannot be reached by ssh: ")
    assert "Connection refused" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_program_ends_with_what_started_it(elsewhere, tmp_path, number):
    noted = tmp_path / "noted"
    script = f'trap "echo ended > {noted}; exit" TERM; echo $$; while :; do sleep 1 & wait; done'
    words = [*running.GPUSHARE, "run", "--on", elsewhere.ssh, *SHARE, "--", "sh", "-c", script]
    run = running.start(words, elsewhere.env)
    pid = int(run.stdout.readline())
    run.send_signal(number)
    run.communicate(timeout=30)
    assert run.wait(30) == -number
    until(lambda: not running.alive(pid), "the program ends", 30)
    assert noted.read_text() == "ended\n"


def test_options_that_do_not_go_with_it_are_refused(elsewhere):
    for words in (("--remote", "x"), ("--link-min", "any"), ("--carrier", "x")):
        done = elsewhere.cli("run", "--on", "far", *words, *SHARE, "--", "true")
        assert done.returncode == 2, done.stderr
