"""gpushare completion, and the answers to a shell at each press of the tab key."""

import argparse
import contextlib
import os
from collections.abc import Callable
from typing import Any

from gpushare.cli.parser import FILES, Parser
from gpushare.errors import GpushareError

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"
"""Environment variable by which argcomplete asks a command for completions."""
ANSWER_SECONDS = 1.0
"""Timeout for the daemon's answer: a person waits for the completions."""

_Row = dict[str, Any]


_Kind = tuple[str, str, Callable[[_Row], dict[str, str]]]
"""Path of the API call, name of the list in its answer, and the completions of each entry, with a text about each."""
_GRANT: _Kind = ("/v1/grants", "grants", lambda row: {row["id"]: f"{row['phase']}, {row['tenant']}"})
_TENANT: _Kind = ("/v1/tenants", "tenants", lambda row: {row["name"]: row["parent"] or "tenant"})
_DEVICE: _Kind = ("/v1/devices", "devices", lambda row: {str(row["index"]): row["name"], row["id"]: row["name"]})
_INDEX: _Kind = ("/v1/devices", "devices", lambda row: {str(row["index"]): row["name"]})
_GANG: _Kind = ("/v1/gangs", "parts", lambda row: {row["gang"]: row["phase"]})

_NAMED = {"grant": _GRANT, "tenant": _TENANT, "parent": _TENANT, "gpu": _DEVICE, "device": _DEVICE}
"""Kinds by name of an option or argument, the same for all verbs."""
_OF_VERB = {
    ("grant", "id"): _GRANT,
    ("pause", "id"): _GRANT,
    ("resume", "id"): _GRANT,
    ("tenants", "name"): _TENANT,
    ("gang", "id"): _GANG,
    ("sim", "device"): _INDEX,
}


_NODES = {("run", "on"), ("run", "remote"), ("plan", "remote"), ("remote", "node")}
"""Options and arguments that name another node, by verb."""


def _nodes(prefix: str, parsed_args: argparse.Namespace, **_: object) -> dict[str, str]:
    """Returns the nodes of nodes.toml, and how each is reached."""
    from gpushare.remote import nodes

    try:
        known = nodes.table(getattr(parsed_args, "nodes", None))
    except GpushareError:
        return {}
    return {
        name: f"ssh:{one.host}" if one.host else f"unix:{one.socket}"
        for name, one in known.items()
        if name.startswith(prefix)
    }


class _Daemon:
    """Completes with objects that the daemon has now."""

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind

    def __call__(self, prefix: str, parsed_args: argparse.Namespace, **_: object) -> dict[str, str]:
        """Returns completions and a description of each; none if no daemon answers."""
        from gpushare.client import Client

        (path, name, show), client = self._kind, Client(getattr(parsed_args, "socket", None))
        try:
            rows = client.call("GET", path, timeout=ANSWER_SECONDS)[name]
        except GpushareError:
            return {}
        return {name: text for row in rows for name, text in show(row).items() if name.startswith(prefix)}


def _programs(prefix: str, files: Callable[..., Any]) -> list[str]:
    """Returns programs in PATH, as a shell offers for the first word of a command."""
    if "/" in prefix:
        return list(files(prefix))
    found = set()
    for directory in os.get_exec_path():
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            found |= {one.name for one in entries if one.name.startswith(prefix) and os.access(one.path, os.X_OK)}
    return sorted(found)


def _command(files: Callable[..., Any]) -> Callable[..., Any]:
    def offer(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
        begun = [word for word in parsed_args.argv or () if word != "--"]
        return list(files(prefix)) if begun else _programs(prefix, files)

    return offer


def _attach(parser: argparse.ArgumentParser, files: Callable[..., Any], verb: str = "") -> None:
    """Attaches a completer to each argument of the parser and of its subparsers."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                _attach(below, files, verb or name)
        elif (verb, action.dest) in _NODES:
            action.completer = _nodes  # type: ignore[attr-defined]
        elif kind := _OF_VERB.get((verb, action.dest)) or _NAMED.get(action.dest):
            action.completer = _Daemon(kind)  # type: ignore[attr-defined] # argcomplete looks for it there
        elif action.dest == "argv":
            action.completer = _command(files)  # type: ignore[attr-defined]
        elif action.metavar in FILES:
            action.completer = files  # type: ignore[attr-defined]


def answer(parser: argparse.ArgumentParser) -> None:
    """Prints the completions and ends the process."""
    import argcomplete
    from argcomplete.completers import FilesCompleter, SuppressCompleter

    _attach(parser, FilesCompleter())
    nothing = SuppressCompleter()  # argcomplete's default, files, would mislead
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=nothing)


class CompletionCommand:
    """print shell completion for gpushare

    bash, zsh or fish then complete verbs, options, choices, files, and the node's grants, tenants, devices and gangs.
    """

    examples = (
        ('eval "$(gpushare completion bash)"', "in this shell only"),
        ("gpushare completion bash > /etc/bash_completion.d/gpushare", "for bash, all users"),
        ("gpushare completion zsh > ~/.zfunc/_gpushare", "for zsh, with ~/.zfunc in fpath"),
        ("gpushare completion fish > ~/.config/fish/completions/gpushare.fish", "for fish"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument("shell", choices=SHELLS, help="the shell to print it for")

    def run(self, args: argparse.Namespace) -> int:
        from argcomplete.shell_integration import shellcode

        print(shellcode(["gpushare"], shell=args.shell), end="")
        return 0


def is_asked_by_shell() -> bool:
    """Returns whether a shell asks for completions."""
    return ASKED in os.environ
