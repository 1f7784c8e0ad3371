#!/usr/bin/env python3
"""The manifests for `kubectl apply`, made from the Helm chart: `manifests.py` writes them, `--check` compares.

Renders the part of Helm's language that the chart uses: values by their path, and `if eq`. Anything else is an error.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).parent.parent / "packaging" / "kubernetes"
CHART = KUBERNETES / "chart"
NAMESPACE = "gpushare"
ADAPTERS = {"kubernetes": "dra", "device-plugin": "device-plugin"}
"""Folders of the manifests, by adapter."""
HEADER = "# Made from ../chart by scripts/manifests.py. Change it there.\n"
SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}

_ACTION = re.compile(r"(?:\s*\{\{-|\{\{) *(.*?) *\}\}")
_IF = re.compile(r'if eq (\S+) "([^"]*)"')


def values() -> dict[str, Any]:
    """The chart's default values."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def render(template: str, given: Mapping[str, Any]) -> str:
    """Renders a template. Raises ValueError for an unknown action."""
    roots = {"Values": given, "Release": {"Namespace": NAMESPACE}}

    def value(path: str) -> str:
        _, root, name = path.split(".")
        return str(roots[root][name])

    out, shown, at = "", [True], 0
    for found in _ACTION.finditer(template):
        if all(shown):
            out += template[at : found.start()]
        at = found.end()
        action = found.group(1)
        if condition := _IF.fullmatch(action):
            shown.append(value(condition.group(1)) == condition.group(2))
        elif action == "end":
            shown.pop()
        elif re.fullmatch(r"\.(Values|Release)\.\w+", action):
            out += value(action) if all(shown) else ""
        else:
            raise ValueError(f"{{{{ {action} }}}} is not among what is known here")
    if len(shown) != 1:
        raise ValueError("an `if` has no end, or an `end` no if")
    return out + template[at:]


def manifests(adapter: str, **changed: Any) -> str:
    """All of the chart's objects, as text."""
    given = {**values(), **changed, "adapter": adapter}
    parts = [yaml.safe_dump(SPACE, sort_keys=False)]
    parts += [render(file.read_text(), given).strip("\n") + "\n" for file in sorted((CHART / "templates").iterdir())]
    return HEADER + "---\n".join(part for part in parts if part.strip())


def main() -> int:
    """Writes or checks the manifests; returns the exit status."""
    wrong = 0
    for adapter, folder in ADAPTERS.items():
        path, text = KUBERNETES / folder / "gpushare.yaml", manifests(adapter)
        if sys.argv[1:] != ["--check"]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path} is not what the chart gives: run make manifests", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
