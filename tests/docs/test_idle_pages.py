"""The start-up file for IPython on the page about Jupyter does what the page says."""

import sys
from collections import defaultdict
from types import ModuleType
from typing import ClassVar

import pytest
from views.pagecode import ROOT, blocks


class Shell:
    """IPython's registry of events."""

    def __init__(self):
        self.events, self._called = self, defaultdict(list)

    def register(self, name, function):
        self._called[name].append(function)

    def happens(self, name):
        for function in self._called[name]:
            function(object())


class Timer:
    """A threading.Timer that runs out when a test says so."""

    made: ClassVar[list["Timer"]] = []

    def __init__(self, seconds, function):
        self.seconds, self.function, self.state = seconds, function, "made"
        Timer.made.append(self)

    def start(self):
        self.state = "started"

    def cancel(self):
        self.state = "cancelled"


@pytest.fixture
def shell(monkeypatch):
    found, package = Shell(), ModuleType("IPython")
    package.get_ipython = lambda: found
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setattr("threading.Timer", Timer)
    Timer.made.clear()
    [block] = blocks(ROOT / "docs/guides/idle/jupyter.md", "python")
    exec(compile(block.text, str(block), "exec"), {"__name__": "startup"})
    return found


def test_it_is_idle_a_while_after_the_last_cell(shell, monkeypatch):
    ran = []
    monkeypatch.setattr("subprocess.run", lambda words, check: ran.append(words))
    shell.happens("pre_run_cell")
    shell.happens("post_run_cell")
    shell.happens("pre_run_cell")
    shell.happens("post_run_cell")
    first, last = Timer.made
    assert (first.state, last.state, last.seconds) == ("cancelled", "started", 30)
    last.function()
    assert ran == [["gpushare", "yield"]]
