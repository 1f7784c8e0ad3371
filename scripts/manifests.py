#!/usr/bin/env python3
"""The manifests for `kubectl apply`, made from the Helm chart: `manifests.py` writes them, `--check` compares.

Renders the part of Helm's language that the chart uses: values by their path, `if`, `with`, `define`, and the functions
in `_Renderer`. Anything else is an error.
"""

import hashlib
import json
import re
import shlex
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
SPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    # The daemon's pods are privileged.
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
}

_ACTION = re.compile(r"\{\{(-?) *(.*?) *(-?)\}\}")
_OPENING = ("if", "with", "define")


def values() -> dict[str, Any]:
    """The chart's default values."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def merged(given: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Helm merges them: maps by key, and a key that is None goes."""
    out = dict(given)
    for name, value in changed.items():
        if value is None:
            out.pop(name, None)
        elif isinstance(value, Mapping):
            out[name] = merged(out[name] if isinstance(out.get(name), Mapping) else {}, value)
        else:
            out[name] = value
    return out


def _tokens(template: str) -> list[str]:
    """Text and actions in turn, beginning and ending with text; white space goes where an action has its dash."""
    out, at = [""], 0
    trims = False
    for found in _ACTION.finditer(template):
        text = template[at : found.start()]
        text = text.lstrip() if trims else text
        out[-1:] = [text.rstrip() if found.group(1) else text, found.group(2), ""]
        at, trims = found.end(), bool(found.group(3))
    return [*out[:-1], template[at:].lstrip() if trims else template[at:]]


class _Renderer:
    """Renders the tokens of one template. `defined`: tokens of the chart's named templates, by name."""

    def __init__(self, root: Mapping[str, Any], defined: dict[str, list[str]]) -> None:
        self._root, self._defined = root, defined

    def render(self, tokens: list[str], dot: Any) -> str:
        """Raises ValueError for an unknown action."""
        out, at = tokens[0], 1
        while at < len(tokens):
            word, _, rest = tokens[at].partition(" ")
            if word in _OPENING:
                end, otherwise = _closing(tokens, at)
                inside = tokens[at + 1 : otherwise or end]
                if word == "define":
                    self._defined[shlex.split(rest)[0]] = inside
                elif found := self._value(rest, dot):
                    out += self.render(inside, found if word == "with" else dot)
                elif otherwise:
                    out += self.render(tokens[otherwise + 1 : end], dot)
                at = end
            else:
                out += str(self._value(tokens[at], dot))
            out += tokens[at + 1]
            at += 2
        return out

    def _value(self, pipeline: str, dot: Any) -> Any:
        first, *rest = re.split(r" *\| *", pipeline)
        found = self._call(shlex.split(first, posix=False), dot)
        for part in rest:
            name, *arguments = part.split()
            found = self._apply(name, [*map(int, arguments), found], dot, pipeline)
        return found

    def _call(self, words: list[str], dot: Any) -> Any:
        if len(words) == 1:
            return self._word(words[0], dot)
        return self._apply(words[0], [self._word(word, dot) for word in words[1:]], dot, " ".join(words))

    def _word(self, word: str, dot: Any) -> Any:
        if word.startswith('"'):
            return json.loads(word)
        if not re.fullmatch(r"\.|(\.\w+)+", word):
            raise ValueError(f"{{{{ {word} }}}} is not among what is known here")
        found = dot if word == "." else self._root
        for name in filter(None, word.split(".")):
            found = found[name]
        return found

    def _apply(self, name: str, given: list[Any], dot: Any, action: str) -> Any:
        match name, given:
            case "eq", [one, other]:
                return one == other
            case "or", [one, other]:
                return one or other
            case "printf", [form, *rest]:
                return form % tuple(rest)
            case "include", [str(known), _] if known in self._defined:
                return self.render(self._defined[known], dot)
            case "toYaml", [one]:
                return yaml.safe_dump(one, default_flow_style=False).removesuffix("...\n").rstrip("\n")
            case "toJson", [one]:
                return json.dumps(one)
            case "trim", [one]:
                return one.strip()
            case "quote", [one]:
                return json.dumps(str(one))
            case "sha256sum", [one]:
                return hashlib.sha256(one.encode()).hexdigest()
            case "nindent", [int(columns), one]:
                return "".join(f"\n{' ' * columns}{line}" for line in one.split("\n"))
        raise ValueError(f"{{{{ {action} }}}} is not among what is known here")


def _closing(tokens: list[str], at: int) -> tuple[int, int | None]:
    """Places of the end of what opens there, and of its `else`. Raises ValueError."""
    depth, otherwise = 0, None
    for place in range(at, len(tokens), 2):
        word = tokens[place].partition(" ")[0]
        depth += (word in _OPENING) - (word == "end")
        if word == "else" and depth == 1:
            otherwise = place
        if depth == 0:
            return place, otherwise
    raise ValueError(f"{{{{ {tokens[at]} }}}} has no end")


def render(template: str, given: Mapping[str, Any], defined: dict[str, list[str]] | None = None) -> str:
    """Renders a template. Raises ValueError for an unknown action."""
    root = {"Values": given, "Release": {"Namespace": NAMESPACE}}
    return _Renderer(root, {} if defined is None else defined).render(_tokens(template), root)


def manifests(adapter: str, **changed: Any) -> str:
    """All of the chart's objects, as text."""
    given = merged(values(), {**changed, "adapter": adapter})
    defined: dict[str, list[str]] = {}
    for file in sorted((CHART / "templates").glob("_*.tpl")):
        render(file.read_text(), given, defined)
    parts = [yaml.safe_dump(SPACE, sort_keys=False)]
    for file in sorted((CHART / "templates").glob("*.yaml")):
        text = render(file.read_text(), given, defined)
        parts.append("\n".join(line.rstrip() for line in text.strip("\n").split("\n")) + "\n")
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
