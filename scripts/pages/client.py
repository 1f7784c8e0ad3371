"""gpushare/client/types.py and awaited.pyi: what the client's verbs take and return, for editors and type checkers.

Made from the types of gpushare/api that the annotations in gpushare/client/verbs.py name as `types.NAME`, with all that
these contain, and from those annotations.
"""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
import textwrap
import types as python
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import fields

from gpushare import api
from gpushare.api import types

ROOT = Path(__file__).parents[2]
VERBS = ROOT / "gpushare" / "client" / "verbs.py"
MODULES = (types, *(importlib.import_module(f"gpushare.api.{one.name}") for one in pkgutil.iter_modules(api.__path__)))
"""Where a name is looked for, in this order."""
OBJECTS = {
    "grant": "Grant", "device": "Device", "tenant": "Tenant", "node": "Node", "eviction": "Eviction",
    "gang": "GangPart", "finding": "Finding", "attachment": "Attachment", "bookmark": "",
}  # fmt: skip
"""Of an Event, by its kind."""
HEAD = '"""{0}\n\nMade from {1} by scripts/pages. Change it there, then run make pages.\n"""\n\n'
TYPES = "What the client's verbs take and return, as types: answers are plain dicts of these."
EVENTS = '''
class Listed(TypedDict):
    """All grants, as an event of `follow`."""

    rv: int
    epoch: int
    kind: Literal["grants"]
    type: Literal["listed"]
    name: str
    object: list[Grant]


class Away(TypedDict):
    """No daemon answers, as an event of `follow`; `object` has the reason."""

    rv: None
    epoch: None
    kind: Literal["node"]
    type: Literal["away"]
    name: str
    object: dict[str, str]
'''


def _docstring(text: str | None, indent: str = "    ") -> str:
    parts = re.split(r"\n\s*\n", textwrap.dedent((text or "").strip()))
    wrapped = "\n\n".join(
        textwrap.fill(" ".join(part.split()), 114 - len(indent), break_on_hyphens=False) for part in parts
    )
    return textwrap.indent(f'"""{wrapped}"""', indent) + "\n\n" if wrapped else ""


class _Types:
    def __init__(self, named: list[str], unpacked: set[str]) -> None:
        self._unpacked = unpacked
        self._done: dict[str, str] = {}
        for name in named:
            if name not in ("Event", "FollowEvent"):
                self._define(name, next(getattr(module, name) for module in MODULES if hasattr(module, name)))

    def text(self) -> str:
        return "\n\n".join(self._done.values())

    def _define(self, name: str, found: Any) -> None:
        if name in self._done:
            return
        if isinstance(found, type) and issubclass(found, msgspec.Struct):
            text = self._struct(found)
        else:
            text = f"{name} = {self._kind(found)}\n"
        self._done[name] = text

    def _struct(self, struct: type[msgspec.Struct]) -> str:
        hints = get_type_hints(struct, include_extras=True)
        config, name = struct.__struct_config__, struct.__name__
        lines, keywords = [], []
        for field in fields(struct):
            kind = self._kind(hints[field.name])
            given = name in self._unpacked
            if given and not field.required and not re.search(r"\bNone\b", kind):
                kind += " | None"
            if not field.required and (config.omit_defaults or config.forbid_unknown_fields):
                kind = f"NotRequired[{kind}]"
            key = field.name if given else field.encode_name
            (keywords if key == "class" else lines).append((key, kind))
        base = "TypedDict"
        text = ""
        if keywords:
            base = f"_{name}"
            text = f"{base} = TypedDict({base!r}, {{{', '.join(f'{key!r}: {kind}' for key, kind in keywords)}}})\n\n\n"
        body = "".join(f"    {key}: {kind}\n" for key, kind in lines) or "    pass\n"
        return f"{text}class {name}({base}):\n{_docstring(struct.__doc__)}{body}"

    def _kind(self, hint: Any) -> str:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._kind(arguments[0])
        if origin is Literal:
            return f"Literal[{', '.join(map(repr, arguments))}]"
        if origin in (Union, python.UnionType):
            # What may be left out is not there: it has no value of its own.
            return " | ".join(dict.fromkeys(self._kind(one) for one in arguments if one is not msgspec.UnsetType))
        if origin in (list, dict):
            return f"{origin.__name__}[{', '.join(map(self._kind, arguments))}]"
        if hint is type(None):
            return "None"
        if hint is Any:
            return "Any"
        if issubclass(hint, msgspec.Struct):
            self._define(hint.__name__, hint)
        return str(hint.__name__)


def _events() -> str:
    hints = get_type_hints(types.Event)
    kinds, happened = get_args(hints["kind"]), [name for name in get_args(types.Name) if name]
    if set(kinds) != set(OBJECTS):
        raise ValueError(f"scripts/pages/client.py does not have the kinds of Event: {set(kinds) ^ set(OBJECTS)}")
    text = f"What = Literal[{', '.join(map(repr, ['', *happened]))}]\n"
    names = []
    for kind, of in OBJECTS.items():
        names.append(f"{kind.title()}Event")
        how = "'bookmark'" if kind == "bookmark" else "'added', 'changed', 'removed'"
        text += f"\n\nclass {names[-1]}(TypedDict):\n" + _docstring(
            types.Event.__doc__ if kind == "grant" else f"An event of kind `{kind}`: see GrantEvent."
        )
        text += f"    rv: int\n    epoch: int\n    kind: Literal[{kind!r}]\n    type: Literal[{how}]\n    name: What\n"
        text += f"    object: {of or None}\n"
    text += f"\n{EVENTS}\n\nEvent = {' | '.join(names)}\n"
    return text + f"FollowEvent = {' | '.join(one for one in names if one != 'BookmarkEvent')} | Listed | Away\n"


def _methods() -> Iterator[ast.FunctionDef]:
    for one in ast.walk(ast.parse(VERBS.read_text())):
        if isinstance(one, ast.ClassDef) and one.name == "Verbs":
            yield from (method for method in one.body if isinstance(method, ast.FunctionDef))


def _awaited() -> str:
    text = "from collections.abc import Sequence\nfrom typing import Any, Unpack\n\n"
    text += "from gpushare.client import types\n\n\nclass AwaitedVerbs:\n"
    for method in _methods():
        if not method.name.startswith("_"):
            words = re.sub(r"'([^']*types\.[^']*)'", r"\1", ast.unparse(method.args))
            answer = ast.unparse(method.returns).strip("'") if method.returns else "Any"
            documented = _docstring(ast.get_docstring(method), " " * 8)
            text += f"    async def {method.name}({words}) -> {answer}:\n{documented}\n"
    return text


def _formatted(text: str, name: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", f"--stdin-filename={name}", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def files() -> dict[str, str]:
    """Both files, by their names in the repository."""
    written, head = VERBS.read_text(), HEAD.format(TYPES, "gpushare/api")
    # Of what `watch` and `follow` yield besides.
    named = [*re.findall(r"\btypes\.(\w+)", written), *filter(None, OBJECTS.values())]
    of_verbs = _Types(list(dict.fromkeys(named)), set(re.findall(r"Unpack\[types\.(\w+)\]", written)))
    text = of_verbs.text() + "\n\n" + _events()
    words = [word for word in ("Any", "Literal", "NotRequired", "TypedDict") if re.search(rf"\b{word}\b", text)]
    found = {
        "gpushare/client/types.py": f"{head}from typing import {', '.join(words)}\n\n\n{text}",
        "gpushare/client/awaited.pyi": HEAD.format("The verbs, each to be awaited.", "gpushare/client/verbs.py")
        + _awaited(),
    }
    return {name: _formatted(text, name) for name, text in found.items()}
