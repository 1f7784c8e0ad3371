"""The examples that help texts show, as they are typed, on a node that is otherwise idle."""

import itertools
import json

import pytest
from commandlines import parsers, words

ELSEWHERE = (
    # go on until they are ended
    *("daemon", "top", "watch", "adapter"),
    # change this machine
    *("demo", "install", "uninstall", "runtime configure", "runtime unconfigure"),
    # look at all of this machine
    "doctor",
)
"""Verbs that tests of their own run."""
AND_YET = ("--dry-run", "adapter prometheus --print", "adapter slurm conf", "adapter slurm scripts", "adapter htcondor")
PROCESSES = ("run", "sim exec", "adapter htcondor --slots 4 --")
"""Those that become another program."""
STATUS_OF_MACHINE = "runtime status"
PROGRAMS = ("train.py", "infer.py", "batch.py", "bench", "job")
STATE = json.dumps({"C": 2000, "tenants": [{"name": "a", "g": 1000, "demand": 2000}]})
FILES = {
    "new.toml": '[tenants.new]\ntime = "50%"\n',
    "prices.toml": 'currency = "EUR"\nguaranteed = 2.5\n',
    "state.json": STATE,
    "parts.json": json.dumps([{"memory": "1GiB", "time": "10%"}]),
}


def runs(given):
    line = " ".join(given)
    return not line.startswith(ELSEWHERE) or any(part in line for part in AND_YET)


EXAMPLES = [given for parser in parsers() for line, _ in parser.examples if runs(given := words(line))]


@pytest.fixture
def node(daemon, tmp_path, monkeypatch):
    """With the files that the examples name, in the current directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name in PROGRAMS:
        (tmp_path / name).write_text("#!/usr/bin/env python3\n")
        (tmp_path / name).chmod(0o755)
    return daemon


def test_examples_end_well(node, tmp_path):
    assert len(EXAMPLES) > 60
    ran = set()
    for _, examples in itertools.groupby(EXAMPLES, lambda given: given[:1]):
        for given in filter(None, examples):
            line = " ".join(given)
            if line in ran or line in ("--version", "run --help"):
                continue
            ran.add(line)
            there = {"/etc/slurm/gpushare": str(tmp_path / "slurm")}
            if {"g-1a2b3c", "$id"} & set(given):
                there |= dict.fromkeys(
                    ("g-1a2b3c", "$id"), node.client.create(memory="3GiB", time=100, keep=True)["id"]
                )
            words_given = [there.get(word, word) for word in given]
            if line == "quota solve -":
                done = node.cli(*words_given, input=STATE)
            else:
                done = (node.cli if line.startswith(PROCESSES) else node.cli_here)(*words_given)
            assert done.returncode in ((0, 1) if line.startswith(STATUS_OF_MACHINE) else (0,)), (line, done.stderr)
        node.settle()
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
