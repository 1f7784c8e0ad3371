"""The examples in help texts, run as typed on an otherwise idle node."""

import itertools
import json

import pytest
from views.commandlines import parsers, words

pytestmark = pytest.mark.timeout(300)  # a hundred commands, some of them processes

ELSEWHERE = (
    # run until they are ended
    *("daemon", "top", "watch", "adapter", "dashboard"),
    # change this machine
    *("demo", "install", "uninstall", "runtime configure", "runtime unconfigure"),
    # inspects the whole machine
    "doctor",
)
"""Verbs that other tests run."""
AND_YET = ("--dry-run", "adapter prometheus --print", "adapter slurm conf", "adapter slurm scripts", "adapter htcondor")
PROCESSES = ("run", "sim exec", "adapter htcondor --slots 4 --")
"""Verbs that exec another program."""
STATUS_OF_MACHINE = "runtime status"
PROGRAMS = ("train.py", "infer.py", "batch.py", "bench", "job")
STATE = json.dumps({"C": 2000, "tenants": [{"name": "a", "g": 1000, "demand": 2000}]})
JOBS = ("job-7", "job-8", "job-9")
"""Gang ids in examples; each test replaces them, as an ended id cannot be used again."""
FILES = {
    "nodes.toml": '[nodes.here]\ntarget = "unix:/nowhere"\n',
    "new.toml": '[tenants.new]\ntime = "50%"\n',
    "prices.toml": 'currency = "EUR"\nguaranteed = 2.5\n',
    "state.json": STATE,
    "parts.json": json.dumps([{"memory": "1GiB", "time": "10%"}]),
}


def runs(given):
    line = " ".join(given)
    if {"--remote", "--on", "gpu1"} & set(given):  # there is no other node
        return False
    return not line.startswith(ELSEWHERE) or any(part in line for part in AND_YET)


EXAMPLES = [[given for line, _ in parser.examples if runs(given := words(line))] for parser in parsers()]
"""The examples of each verb, as words."""


@pytest.fixture
def node(daemon, tmp_path, monkeypatch):
    """A daemon; the files that the examples name are in the current directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name in PROGRAMS:
        (tmp_path / name).write_text("#!/usr/bin/env python3\n")
        (tmp_path / name).chmod(0o755)
    return daemon


def end_well(node, tmp_path, examples):
    ran = set()
    for _, family in itertools.groupby(filter(None, examples), lambda given: given[0]):
        for given in family:
            line = " ".join(given)
            if line in ran or line in ("--version", "run --help"):
                continue
            ran.add(line)
            there = {"/etc/slurm/gpushare": str(tmp_path / "slurm")}
            if given[:2] == ["grant", "resize"]:
                node.settle()  # there is room for it
            if {"g-1a2b3c", "$id"} & set(given):
                lends = "lend" if {"suspend", "resume", "pause"} & set(given[:2]) else "keep"
                grant = node.client.create(memory="3GiB", time=100, keep=True, idle_memory=lends)["id"]
                there |= {"g-1a2b3c": grant, "$id": grant}
            if line == "tenants remove research/ada":
                node.client.set_tenant("research/ada", {"time": 100})
            typed = [f"{word}-{tmp_path.name[-20:]}" if word in JOBS else there.get(word, word) for word in given]
            if "--watch" in given:  # it would never end
                typed += ["--count", "1"]
            if line == "quota solve -":
                done = node.cli(*typed, input=STATE)
            else:
                done = (node.cli if line.startswith(PROCESSES) else node.cli_here)(*typed)
            if line.startswith(("grant suspend", "pause g-")):
                assert "nothing runs in it" in done.stderr, "of a grant without a program"
                continue
            assert done.returncode in ((0, 1) if line.startswith(STATUS_OF_MACHINE) else (0,)), (line, done.stderr)
        node.settle()
    return ran


def test_the_first_example_of_each_verb_ends_well(node, tmp_path):
    ran = end_well(node, tmp_path, [of_verb[0] for of_verb in EXAMPLES if of_verb])
    assert {line.split()[0] for line in ran} >= {
        "run",
        "grant",
        "plan",
        "why",
        "events",
        "usage",
        "tenants",
        "completion",
    }


@pytest.mark.slow
def test_all_examples_end_well(node, tmp_path):
    assert len(end_well(node, tmp_path, itertools.chain.from_iterable(EXAMPLES))) > 60
