"""docs/guides/troubleshooting: each check of the doctor, with what it means and what to do."""

import importlib
import re

from text import anchor, escaped, made_from, table, wrapped

from gpushare.doctor.finding import Check

FOLDER = "guides/troubleshooting"
SECTIONS = {
    "machine": "The machine",
    "installed": "The installation",
    "engines": "Engines",
    "node": "The daemon and its node",
    "host_pool": "The host pool",
    "cdi": "CDI specs",
    "containers": "Containers and programs",
    "audited": "Use of a device outside a share",
    "remote": "Remote grants",
}
"""Modules of gpushare/doctor, and the title of the page of each."""
HEAD = """# Troubleshooting

A program is slow, stopped or finds no device, or a container does not start: look [by
symptom](symptoms.md).

`gpushare doctor` reports what is wrong on a node and what to do. These pages list everything that
it can report: find the first words of its line below. [What the doctor finds](../doctor.md) shows
related commands. Words in capitals are placeholders for values that differ from node to node.

*missing* and *wrong*: something does not work (exit status 1). *note*: everything works without it.

"""
_PLACE = re.compile(r"\{(\w+)\}")


def found(module: str) -> list[Check]:
    """The checks of a module of gpushare/doctor, in order."""
    return [
        one for one in vars(importlib.import_module(f"gpushare.doctor.{module}")).values() if isinstance(one, Check)
    ]


def _shown(text: str) -> str:
    # Placeholders outside backticks are set in backticks.
    parts = re.split(r"(`[^`]*`)", text)
    upper = [_PLACE.sub(lambda name: name[1].upper(), part) if part.startswith("`") else part for part in parts]
    return "".join(part if part.startswith("`") else _outside(part) for part in upper)


def _outside(text: str) -> str:
    parts = _PLACE.split(text)
    return "".join(f"`{part.upper()}`" if at % 2 else escaped(part) for at, part in enumerate(parts))


def _entry(check: Check) -> str:
    # Four spaces, since the site's Markdown counts them from the margin.
    parts = (f"**{check.level}**: {_shown(check.found)}", check.why, f"**Do:** {_shown(check.mend)}")
    starts = ("-   ", "    ", "    ")
    return "\n".join(wrapped(part, "    ", first) for part, first in zip(parts, starts, strict=True)) + "\n"


def _heading(what: str) -> str:
    return _PLACE.sub(lambda name: name[1].upper().replace("_", " "), what)


def _section(module: str) -> str:
    text, heading = made_from("gpushare/doctor") + f"# {SECTIONS[module]}\n\n", None
    for check in found(module):
        if check.what != heading:
            heading = check.what
            text += f"## {_heading(heading)}\n\n"
        text += _entry(check)
    return text.rstrip("\n") + "\n"


def _index() -> str:
    rows = []
    for module, title in SECTIONS.items():
        headings = dict.fromkeys(_heading(check.what) for check in found(module))
        links = (f"[{one}]({module}.md#{anchor(one)})" for one in headings)
        rows.append((f"[{title}]({module}.md)", ", ".join(links)))
    return (made_from("gpushare/doctor") + HEAD + table(("page", "the line begins with"), rows)).rstrip("\n") + "\n"


def pages() -> dict[str, str]:
    """The pages by their names: one for each module of the doctor, and their index."""
    return {f"{FOLDER}/index.md": _index()} | {f"{FOLDER}/{module}.md": _section(module) for module in SECTIONS}
