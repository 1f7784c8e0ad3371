"""Blocks of commands on the pages, made into a script that runs them as they are pasted, and what they say compared
with what the page shows."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from views.pagecode import ROOT, Block, blocks

PLACES = ("README*.md", "docs/start/*.md", "docs/guides/troubleshooting/symptoms.md")
"""Pages, each of whose blocks of commands is run, or is in NOT_RUN."""

CLONE = "a clone, packages and minutes: make test-release does the same"
RELEASE = "the files of a release: make test-release installs and upgrades to them"
DOCKER = "Docker's daemon: tests/engines does the same where Docker 25 or later is installed"
CLUSTER = "a cluster"
NOT_RUN = {
    "README.ja.md": {"": "README.md has the same"},
    "README.md": {
        "make demo ": "a clone, and minutes: tests/containers/demo plays the scenario",
        "sudo python3 -m venv": CLONE,
    },
    "docs/guides/troubleshooting/symptoms.md": {"gpushare ps\n": "a node whose daemon is away: tests/daemon/cli"},
    "docs/start/crio.md": {"": "CRI-O, and " + CLUSTER},
    "docs/start/docker.md": {"": DOCKER},
    "docs/start/index.md": {"sudo scripts/setup build": CLONE},
    "docs/start/index.ja.md": {
        "sudo scripts/setup build": CLONE,
        "sudo gpushare daemon": "index.md has the same, and one node has one daemon",
    },
    "docs/start/install.md": {
        "sudo python3 -m venv": RELEASE,
        "sudo apt install ./gpushare_*_amd64.deb ": RELEASE,
        "sudo apt install ./gpushare_*_amd64.deb\n": RELEASE,
    },
    "docs/start/k3s.md": {"": "k3s: tests/engines does it to the files that k3s writes"},
    "docs/start/kubernetes.md": {"": CLUSTER},
    "docs/start/nomad.md": {"": "a package of PyPI, and Nomad"},
    "docs/start/process.md": {
        "gpushare run --memory 1GiB --time 50% -- setpriv": "a program of a reader that uses the device",
        "export LIB=": "a program of a reader that uses the device",
        "gpushare run --memory 1GiB --time 50% -- bwrap": "a program of a reader, and bubblewrap",
        "gpushare run --memory 8GiB --time 30% -- python train.py": "a program of a reader",
    },
    "docs/start/ray.md": {"": "Ray: make test-ray does the same"},
    "docs/start/rke2.md": {"": "RKE2: tests/engines does it to the files that RKE2 writes"},
    "docs/start/slurm.md": {"sbatch ": "a job of a reader: tests/slurm submits such jobs"},
}
"""What a block needs that a test of the pages does not have, by its page and how its commands begin; "": all blocks of
the page."""

_PROMPT = re.compile(r"^[$#] ")
# What is another one each time. A page shows one of them.
_OTHERS = (
    (re.compile(r"\bg-[0-9a-f]{4,}\b"), "g-ID"),
    (re.compile(r"\b(process|pid) \d+\b"), r"\1 PID"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:\.\d+)?\b"), "CLOCK"),
    (re.compile(r"\b\d+(?:\.\d+)?(?: ?(?:ns|us|ms|s|min|h)\b| ?%)"), "TIME"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True)
class Step:
    """A command of a console, and the lines that the page shows after it."""

    command: str
    shown: list[str]


def pasted(*kinds: str) -> Iterator[Block]:
    """The blocks of commands of all pages of PLACES."""
    for place in PLACES:
        for page in sorted(ROOT.glob(place)):
            yield from blocks(page, *(kinds or ("sh", "console")))


def steps(block: Block) -> list[Step]:
    """What a console shows. A command goes on in the next line after a backslash, and up to the end of a document."""
    found: list[Step] = []
    end = ""  # of the command: a document's last line, or any line
    for line in block.text.splitlines():
        if end or (found and not found[-1].shown and found[-1].command.endswith("\\")):
            found[-1] = Step(f"{found[-1].command}\n{line}", [])
            end = "" if line == end else end
        elif _PROMPT.match(line):
            found.append(Step(_PROMPT.sub("", line, count=1), []))
            document = re.search(r"<<-?\s*'?(\w+)'?", line)
            end = document[1] if document else ""
        else:
            assert found, f"{block} begins with what no command says"
            found[-1].shown.append(line)
    return found


def commands(block: Block) -> str:
    """The commands of a block, a line each."""
    return block.text if block.kind == "sh" else "".join(f"{one.command}\n" for one in steps(block))


def reason(block: Block) -> str | None:
    """Why a block is not run; None: it is."""
    return next((why for start, why in NOT_RUN.get(block.page, {}).items() if commands(block).startswith(start)), None)


def script(page: str) -> list[str]:
    """The blocks of a page that are run, as parts of a script of bash, in order. A command of a console prints what it
    said between marks, for `unlike`; where the page shows nothing after it, it has to succeed."""
    parts = []
    for block in blocks(ROOT / page, "sh", "console"):
        if reason(block) is not None:
            continue
        if block.kind == "sh":
            parts.append(block.text)
            continue
        part = ""
        for at, step in enumerate(steps(block)):
            fails = " || true" if step.shown else ""
            part += f"{{ {step.command}\n}} > /tmp/said 2>&1 {fails or '|| { cat /tmp/said; exit 1; }'}\n"
            part += f"echo '<<< {block} {at}'; cat /tmp/said; echo '>>>'\n"
        parts.append(part)
    return parts


def unlike(page: str, output: str) -> list[str]:
    """Commands of a page's consoles that did not say what the page shows. Three dots stand for
    any text, and as a line for any lines."""
    found = []
    said = dict(re.findall(r"^<<< (\S+ \d+)\n(.*?)^>>>$", output, re.DOTALL | re.MULTILINE))
    for block in blocks(ROOT / page, "console"):
        for at, step in enumerate(steps(block) if reason(block) is None else ()):
            there = said.get(f"{block} {at}")
            if there is None or (step.shown and not alike(step.shown, there.splitlines())):
                found.append("\n".join((f"{block}: $ {step.command}", "shown:", *step.shown, "said:", str(there))))
    return found


def alike(shown: list[str], said: list[str]) -> bool:
    """Whether lines are those that a page shows, but for ids, processes and times."""
    pattern = "".join("(?:.*\n)*?" if line == "..." else _pattern(line) + "\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{_plain(line)}\n" for line in said)) is not None


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in _plain(line).split("..."))


def _plain(line: str) -> str:
    for pattern, name in _OTHERS:
        line = pattern.sub(name, line)
    return line.strip()
