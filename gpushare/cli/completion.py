"""gpushare completion, and what a shell asks for at each press of the tab key."""

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpushare.errors import GpushareError

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"
"""In the environment of a command that is to say what could come next, by argcomplete."""
ANSWER_SECONDS = 1.0
"""A person waits for it: a daemon that does not answer has nothing to offer."""

_Row = dict[str, Any]


def _grants(row: _Row) -> Iterator[tuple[str, str]]:
    yield row["id"], f"{row['phase']}, {row['tenant']}"


def _tenants(row: _Row) -> Iterator[tuple[str, str]]:
    yield row["name"], row["parent"] or "tenant"


def _devices(row: _Row) -> Iterator[tuple[str, str]]:
    yield str(row["index"]), row["name"]
    yield row["id"], row["name"]


_KINDS = {"grants": _grants, "tenants": _tenants, "devices": _devices}
_NAMED = {
    "grant": "grants",
    "tenant": "tenants",
    "parent": "tenants",
    "gpu": "devices",
    "device": "devices",
}
"""What an option or argument of this name takes, wherever in the command line it is."""
_OF_VERB = {("grant", "id"): "grants", ("tenants", "name"): "tenants"}


class _Daemon:
    """Offers what a daemon has now."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __call__(self, prefix: str, parsed_args: argparse.Namespace, **_: object) -> dict[str, str]:
        """What may follow and a word about it; nothing where no daemon answers."""
        from gpushare.client import Client

        client, show = Client(getattr(parsed_args, "socket", None)), _KINDS[self._kind]
        try:
            rows = client.call("GET", f"/v1/{self._kind}", timeout=ANSWER_SECONDS)[self._kind]
        except GpushareError:
            return {}
        return {name: text for row in rows for name, text in show(row) if name.startswith(prefix)}


def _tell(parser: argparse.ArgumentParser, files: Callable[..., Any], verb: str = "") -> None:
    """Puts into each argument of the parser, and of those below it, what it takes."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                _tell(below, files, verb or name)
        elif kind := _OF_VERB.get((verb, action.dest)) or _NAMED.get(action.dest):
            action.completer = _Daemon(kind)  # type: ignore[attr-defined] # argcomplete looks for it there
        elif action.type is Path or action.dest in ("argv", "socket"):
            action.completer = files  # type: ignore[attr-defined]


def answer(parser: argparse.ArgumentParser) -> None:
    """Says what could come next, and ends the process."""
    import argcomplete
    from argcomplete.completers import FilesCompleter, SuppressCompleter

    _tell(parser, FilesCompleter())
    nothing = SuppressCompleter()  # where neither a name nor a file is wanted, files would mislead
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=nothing)


class CompletionCommand:
    """what a shell needs to complete gpushare's verbs, options, grants, tenants, devices and engines

    bash: gpushare completion bash > /etc/bash_completion.d/gpushare
    zsh:  gpushare completion zsh > /usr/local/share/zsh/site-functions/_gpushare
    fish: gpushare completion fish > /etc/fish/completions/gpushare.fish
    Or in one shell alone: eval "$(gpushare completion bash)"
    """

    name = "completion"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=SHELLS, help="whose")

    def run(self, args: argparse.Namespace) -> int:
        from argcomplete.shell_integration import shellcode

        print(shellcode(["gpushare"], shell=args.shell), end="")
        return 0


def asked() -> bool:
    """Whether a shell wants to know what could come next."""
    return ASKED in os.environ
