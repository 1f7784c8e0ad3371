"""docs/troubleshooting.md: each check of the doctor, with what it means and what to do."""

import importlib
import re

from text import escaped, made_from, wrapped

from gpushare.doctor.finding import Check

MODULES = {
    "machine": "The machine",
    "installed": "The installation",
    "engines": "Engines",
    "node": "The daemon and its node",
    "cdi": "CDI specs",
    "containers": "Containers and programs",
    "audited": "Use of a device outside a share",
}
HEAD = """# Troubleshooting

`gpushare doctor` reports what is wrong on a node and what to do; this page lists everything that it can report.
[doctor](doctor.md) shows its output and related commands. Words in capitals are placeholders for values that
differ from node to node.

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
    parts = (f"-   **{check.level}**: {_shown(check.found)}", check.why, f"**Do:** {_shown(check.mend)}")
    first, *rest = (wrapped(part, "    ") for part in parts)
    return "\n".join((first, *(f"    {part}" for part in rest))) + "\n"


def page() -> str:
    """The whole page."""
    text = made_from("gpushare/doctor") + HEAD
    for module, title in MODULES.items():
        text += f"## {title}\n\n"
        heading = None
        for check in found(module):
            if check.what != heading:
                heading = check.what
                text += f"### {_PLACE.sub(lambda name: name[1].upper().replace('_', ' '), heading)}\n\n"
            text += _entry(check)
    return text.rstrip("\n") + "\n"
