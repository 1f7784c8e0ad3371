"""`top` with a real daemon: on Textual's test screen, and in a real terminal (tmux)."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from run.waiting import until
from views.tops import screen

from gpushare.tui.app import Top
from gpushare.tui.queries import Looker

pytestmark = pytest.mark.xdist_group("top")


async def soon(condition, what, seconds=20.0):
    """Like waiting.until, for a condition that needs this event loop to run."""
    began = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.02)
    return value


def drive(daemon, steps, interval=0.1, size=(100, 30)):
    async def run():
        app = Top(daemon.client, Looker(daemon.client).look(), interval)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()

            async def states(*words):
                try:
                    await soon(lambda: all(word in "\n".join(screen(app)) for word in words), "")
                except AssertionError:
                    raise AssertionError(f"{words} are not all in:\n" + "\n".join(screen(app))) from None

            await steps(app, pilot, states)
        assert app.return_code in (0, None), app.return_value

    asyncio.run(run())


def row_of(app, pid):
    return next((line for line in screen(app) if f"└─{pid}" in line), "")


def grant_of(daemon, **more):
    return daemon.client.create(memory="1GiB", time="25%", **more)["id"]


def test_release_asks_first(daemon):
    kept, gone = grant_of(daemon), grant_of(daemon)

    async def steps(app, pilot, states):
        await states(kept, gone, "2 grants")
        await pilot.press("down", "x")
        await states(f"Release {gone} of default?", "0 processes")
        await pilot.press("n")
        await pilot.press("x", "enter")  # the focus is on keeping it
        await soon(lambda: len(app.screen_stack) == 1, "the dialog is gone")
        assert len(daemon.client.grants()) == 2
        await pilot.press("x", "y")
        await states(f"{gone} is released", "1 grant")
        assert [grant["id"] for grant in daemon.client.grants()] == [kept]

    drive(daemon, steps)


def test_resize_shows_the_daemons_answer(daemon):
    grant = grant_of(daemon)

    async def steps(app, pilot, states):
        await states(grant)
        await pilot.press("r")
        await states(f"Resize {grant} of default", "1GiB", "25%")
        await pilot.press("enter")
        await states("nothing is changed yet")
        await pilot.press(*"9Ti", "enter")
        refusal = daemon.cli("grant", "resize", grant, "--memory", "9Ti").stderr.removeprefix("gpushare: ")
        await states(refusal[:60])
        await pilot.press("ctrl+u", *"2Gi", "tab", *"40%", "enter")
        await states(f"{grant} has memory 2Gi, time 40%", "0/2GiB", "40%")
        (changed,) = daemon.client.grant(grant)["devices"]
        assert (changed["memory_limit_bytes"], changed["time_milli"]) == (2 << 30, 400)
        await pilot.press("r", "escape")
        await soon(lambda: len(app.screen_stack) == 1, "the dialog is gone")

    drive(daemon, steps)


def test_processes_and_receipts_of_one_grant(lone):
    tenants = [lone.spin("1GiB", share) for share in ("25%", "75%")]
    try:
        for tenant in tenants:
            tenant.tell("run 500000")
        until(lambda: lone.client.call("GET", "/v1/events?kind=revoke&limit=1")["events"], "they wait for each other")
        first = lone.client.grants()[0]["id"]

        async def steps(app, pilot, states):
            await soon(lambda: app.grants.rows and app.grants.rows[0].got_milli, "something is got")
            await pilot.press("slash", *first, "enter", "space")
            held = {book["pid"]: book["bytes"] for book in lone.books()["processes"]}
            (pid,) = lone.client.grant(first)["processes"]
            await states(f"└─{pid}", "gpushare-spin", f"{held[pid] >> 20}MiB", "cpu")
            await soon(lambda: re.search(r" [1-9][0-9.]*% .*cpu", row_of(app, pid)), "the device time that it gets")
            await pilot.press("space")
            await soon(lambda: not row_of(app, pid), "they are hidden again")
            await pilot.press("z")
            await states(f"Move the memory of {first}", "did not ask for memory that may be moved")
            await pilot.press("p")
            await states("lend")  # the daemon's reason
            await pilot.press("escape", "enter")
            await states(f"RECEIPTS of {first}", "device 0: guaranteed 25%", "served after", "of default")
            newest = app.receipts._story.lines[0]
            await soon(lambda: app.receipts._story.lines[0] != newest, "newer ones come")
            await pilot.press("pagedown", "pagedown")
            assert app.receipts.body.scroll_offset.y > 0
            await pilot.press("escape")
            assert not app.receipts.display

        drive(lone, steps)
    finally:
        for tenant in tenants:
            tenant.kill()


def test_memory_leaves_and_comes_back(lending):
    tenant = lending.spin("1GiB", "25%", idle_memory="lend")
    try:
        tenant.tell("alloc 256MiB")
        (grant,) = (grant["id"] for grant in lending.client.grants())

        async def steps(app, pilot, states):
            await states(grant)
            await pilot.press("z", "p")
            await states(f"{grant} is paused")
            await states("(suspended) …", "256MiB")
            assert lending.client.grant(grant)["residency"]["hold"]
            await pilot.press("z")
            await states(f"Resume {grant} of default?")
            await pilot.press("c")
            await states(f"{grant} is resumed")
            await soon(lambda: app.grants.rows[0].phase == "active", "it is on its device again")

        drive(lending, steps, size=(160, 30))
    finally:
        tenant.kill()


def test_a_daemon_that_is_away_and_comes_back(fresh):
    grant = grant_of(fresh)

    async def steps(app, pilot, states):
        await states(grant)
        fresh.kill()
        await states("the daemon is away; as of", grant)
        assert app.grants.body.dimmed
        await pilot.press("x", "y")
        await states("no daemon")
        await pilot.press("escape")
        await asyncio.to_thread(fresh.start)
        await states("1 grant ")
        assert not app.grants.body.dimmed
        another = grant_of(fresh)
        await states(another)

    drive(fresh, steps)


# In a terminal


class Terminal:
    """A tmux server with one window, in which a shell runs."""

    def __init__(self, directory, env, columns, lines):
        self._tmux = ["tmux", "-S", str(directory / "tmux"), "-f", "/dev/null"]
        self._env = {**os.environ, **env, "PS1": "$ ", "LC_ALL": "C.UTF-8"}
        new = ["new-session", "-d", "-x", str(columns), "-y", str(lines), "sh"]
        if "server exited" in self._run(*new).stderr:  # tmux on a busy machine, before it has started the shell
            self.tmux(*new)
        self.tmux("set-option", "-g", "window-size", "manual")
        until(lambda: self.text().strip(), "the prompt")  # typing before it would mix with it

    def _run(self, *words):
        return subprocess.run([*self._tmux, *words], env=self._env, capture_output=True, text=True, check=False)

    def tmux(self, *words):
        done = self._run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def types(self, text):
        self.tmux("send-keys", "-l", text)
        self.tmux("send-keys", "Enter")

    def key(self, name):
        self.tmux("send-keys", name)

    def text(self):
        return self.tmux("capture-pane", "-p")

    def shows(self, *words):
        try:
            until(lambda: all(word in self.text() for word in words), seconds=60)
        except AssertionError:
            raise AssertionError(f"{words} are not all in:\n{self.text()}") from None

    def end(self):
        subprocess.run([*self._tmux, "kill-server"], check=False, capture_output=True)


@contextmanager
def terminal(daemon, columns, lines, **env):
    found = Terminal(daemon.state_dir, {**daemon.env, **env}, columns, lines)
    try:
        yield found
    finally:
        found.end()


def settings(text):
    """The output of `stty -a | md5sum` before and after; None until both are there."""
    found = re.findall(r"^[0-9a-f]{32}\b", text, re.MULTILINE)
    return found if len(found) == 2 else None


GPUSHARE = shlex.join([sys.executable, "-m", "gpushare"])


def test_in_a_terminal_that_changes_its_size(daemon):
    grants = [grant_of(daemon) for _ in range(3)]
    with terminal(daemon, 80, 24) as terminal_:
        before = terminal_.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}")
        terminal_.types(f"stty -a | md5sum; {GPUSHARE} top --interval 0.2; echo status $?; stty -a | md5sum")
        terminal_.shows("2 simulated devices, 3 grants", "HISTORY", "? help", *grants)
        assert "BORROWED" not in terminal_.text()
        assert all(len(line) <= 80 for line in terminal_.text().splitlines())
        terminal_.tmux("resize-window", "-x", "160", "-y", "50")
        terminal_.shows("BORROWED", "WAITS", "ENTITLED", *grants)
        lines = terminal_.text().splitlines()
        assert max(map(len, lines)) > 120
        assert lines[-1].startswith("? help")
        terminal_.key("?")
        terminal_.shows("guaranteed: used by grants")
        terminal_.key("Escape")
        until(lambda: "used by grants" not in terminal_.text(), "the page on keys goes")
        terminal_.tmux("resize-window", "-x", "80", "-y", "24")
        until(lambda: terminal_.text().rstrip("\n").count("\n") == 23 and "PIDS" not in terminal_.text(), "80 columns")
        terminal_.shows("gpushare", "? help", *grants)
        terminal_.key("q")
        terminal_.shows("status 0")
        before_it, after_it = until(lambda: settings(terminal_.text()), "the terminal's settings")
        assert before_it == after_it
        assert terminal_.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}") == before
        assert "HISTORY" not in terminal_.text()


@pytest.mark.slow
def test_in_a_terminal_without_a_whole_screen(daemon):
    grant = grant_of(daemon)
    with terminal(daemon, 200, 30) as terminal_:
        terminal_.types(f"{GPUSHARE} top --count 2 --interval 0.1 | cat -v; echo status $?")
        terminal_.shows("status 0")
        assert terminal_.text().count(grant) == 2
        terminal_.types(f"TERM=dumb {GPUSHARE} top --count 2 --interval 0.1; echo second $?")
        terminal_.shows("second 0")
        assert terminal_.text().count(grant) == 4


@pytest.mark.slow
def test_without_colours_none_are_sent(daemon):
    grant_of(daemon)
    with terminal(daemon, 80, 24, NO_COLOR="1") as terminal_:
        terminal_.types(f"{GPUSHARE} top; echo first $?")
        terminal_.shows("? help", "simulated devices")
        coloured = terminal_.tmux("capture-pane", "-p", "-e")
        assert "\x1b[1m" in coloured or "\x1b[7m" in coloured
        assert not re.search(r"\x1b\[[\d;]*[34][0-8]", coloured)
        terminal_.key("q")
        terminal_.shows("first 0")
        terminal_.types(f"{GPUSHARE} top --count 2 --interval 0.2; echo counted $?")
        terminal_.shows("counted 0")
        terminal_.types(f"{GPUSHARE} top & echo $! > {daemon.state_dir}/pid; fg; echo ended $?")
        terminal_.shows("? help", "simulated devices")
        os.kill(int((daemon.state_dir / "pid").read_text()), signal.SIGTERM)
        terminal_.shows("ended 143")
        assert terminal_.tmux("display-message", "-p", "#{alternate_on}") == "0\n"


def test_again_and_again_for_pipes(daemon):
    grant = grant_of(daemon)
    text = daemon.cli("ps", "--watch", "--interval", "0.1", "--count", "3").stdout
    assert text.count(grant) == text.count("GRANT") == text.count("\n\n") == 3
    assert "\x1b" not in text
    lines = daemon.cli("ps", "--watch", "--json", "--interval", "0.1", "--count", "2").stdout.splitlines()
    assert [json.loads(line)["grants"][0]["id"] for line in lines] == [grant] * 2
    refused = daemon.cli("ps", "--interval", "5")
    assert (refused.returncode, refused.stdout) == (2, "")
