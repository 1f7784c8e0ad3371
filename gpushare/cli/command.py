"""The interface of every verb family, and what they share. Imports of the standard library alone at start."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from gpushare.cli.parser import Example, Parser
from gpushare.errors import UsageError
from gpushare.printable import printable
from gpushare.units import parse_memory, parse_time

if TYPE_CHECKING:
    from pathlib import Path

    from gpushare.client import Client


NOTHING = "-"
"""Shown in tables instead of a number that is zero or absent."""


class Command(Protocol):
    """One verb (family). The docstring of the class is its help, of which the list of all verbs shows the first line;
    `examples` end it. `run` returns the exit status."""

    @property
    def examples(self) -> tuple[Example, ...]:
        """At least one."""
        ...

    def prepare_parser(self, parser: Parser) -> None:
        """Adds the verb's options and its own verbs."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Does it, and gives the exit status. Raises GpushareError, which cli/main.py reports."""
        ...


def add_verbs(parser: Parser, places: Mapping[str, str], dest: str) -> dict[str, Parser]:
    """Adds the verbs of `places`: names, and the module and class of this package that each is. `dest`: of the parsed
    arguments, where the Command will be. Gives each verb's parser."""
    verbs, made = parser.add_subparsers(metavar="VERB", required=True), {}
    for name, place in places.items():
        module, _, kind = place.partition(".")
        command: Command = getattr(import_module(f"gpushare.cli.{module}"), kind)()
        made[name] = add_verb(verbs, name, command.__doc__ or "", *command.examples)
        made[name].set_defaults(**{dest: command})
        command.prepare_parser(made[name])
    return made


def add_verb(verbs: Any, name: str, text: str, *examples: Example) -> Parser:
    """Adds a verb. `text`: what it does; its first line is the one in the list of verbs."""
    parser: Parser = verbs.add_parser(name, help=text.partition("\n")[0], description=text)
    parser.examples = examples
    return parser


def add_socket(parser: argparse.ArgumentParser) -> None:
    """The option that names the daemon's socket."""
    parser.add_argument(
        "--socket", metavar="PATH", help="the daemon's socket (default $GPUSHARE_SOCKET, else /run/gpushare/node.sock)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option for output that programs read."""
    parser.add_argument("--json", action="store_true", help="print JSON: integers of bytes, nanoseconds and milli")


def client(args: argparse.Namespace) -> "Client":
    """The node API at the socket that the options name. Nothing is sent before its first call."""
    from gpushare.client import Client

    return Client(args.socket)


def closed(path: "Path") -> bool:
    """Whether the daemon's socket is there, and not for this user."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(path, os.W_OK)


def memory_argument(text: str) -> int | str:
    """For argparse's `type`: bytes, or a percentage that the daemon applies to the device it picks."""
    return text.strip() if text.strip().endswith("%") and parse_memory(text, 1 << 40) else parse_memory(text, 0)


def time_argument(text: str) -> int:
    """For argparse's `type`: milli-GPU of one device. Raises UsageError."""
    return parse_time(text)


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Makes argparse show our message: of a ValueError it prints the type only."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def print_json(value: Any, indent: int | None = 2) -> None:
    """As indented JSON to stdout."""
    print(json.dumps(value, indent=indent))


def say(text: str, out: Any = None) -> None:
    """One line for people; what others named in it obeys no terminal."""
    print(printable(text), file=out or sys.stdout)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], out: Any = None) -> None:
    """Columns as wide as needed; numbers to the right."""
    columns = [[title, *(printable(str(row[i])) for row in rows)] for i, title in enumerate(titles)]
    forms = []
    for i, column in enumerate(columns):
        right = bool(rows) and all(_numeric(row[i]) for row in rows)
        forms.append(f"{{:{'>' if right else '<'}{max(map(len, column))}}}")
    form = "  ".join(forms).format
    print("\n".join(form(*line).rstrip() for line in zip(*columns, strict=True)), file=out or sys.stdout)


def _numeric(cell: object) -> bool:
    if isinstance(cell, str):
        return cell[:1].isdigit() or cell == NOTHING
    return isinstance(cell, (int, float))
