"""The interface of every verb family, and helpers that they share. Imports only the standard library at start."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from gpushare.cli.parser import Example, Parser
from gpushare.errors import UsageError
from gpushare.text.printable import printable
from gpushare.text.units import parse_memory, parse_time

if TYPE_CHECKING:
    from pathlib import Path

    from gpushare.client import Client


NOTHING = "-"
"""Shown in tables instead of a number that is zero or absent."""


class Command(Protocol):
    """One verb or verb family. The class docstring is its help text; its first line is shown in the list of verbs.
    `examples` end the help. `run` returns the exit status."""

    @property
    def examples(self) -> tuple[Example, ...]:
        """At least one."""
        ...

    def prepare_parser(self, parser: Parser) -> None:
        """Adds the verb's options and its own verbs."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Executes the verb and returns the exit status. Raises GpushareError, which cli/main.py reports."""
        ...


def add_verbs(parser: Parser, places: Mapping[str, str], dest: str) -> dict[str, Parser]:
    """Adds verbs and returns each one's parser. `places`: by verb, `MODULE.CLASS` in this package. `dest`: attribute of
    the parsed arguments that will hold the Command."""
    verbs, made = parser.add_subparsers(metavar="VERB", required=True), {}
    for name, place in places.items():
        module, _, kind = place.rpartition(".")
        command: Command = getattr(import_module(f"gpushare.cli.{module}"), kind)()
        made[name] = add_verb(verbs, name, command.__doc__ or "", *command.examples)
        made[name].set_defaults(**{dest: command})
        command.prepare_parser(made[name])
    return made


def add_verb(verbs: Any, name: str, text: str, *examples: Example) -> Parser:
    """Adds a verb. `text`: what it does; its first line is shown in the list of verbs."""
    parser: Parser = verbs.add_parser(name, help=text.partition("\n")[0], description=text)
    parser.examples = examples
    return parser


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names the daemon's socket."""
    parser.add_argument(
        "--socket", metavar="PATH", help="the daemon's socket (default $GPUSHARE_SOCKET, else /run/gpushare/node.sock)"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the option for machine-readable output."""
    parser.add_argument("--json", action="store_true", help="print JSON, with integers in bytes, nanoseconds and milli")


def client(args: argparse.Namespace) -> "Client":
    """Returns a client of the node API at the socket that the options name. It connects at its first call."""
    from gpushare.client import Client

    return Client(args.socket)


def closed(path: "Path") -> bool:
    """Returns whether the daemon's socket exists and this user may not connect to it."""
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
    """Wraps `parse` so that argparse shows our message: for a ValueError it would name only the type."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def print_json(value: Any, indent: int | None = 2) -> None:
    """Prints indented JSON to stdout."""
    print(json.dumps(value, indent=indent))


def say(text: str, out: Any = None) -> None:
    """Prints one line for people, with control characters escaped: names in it may come from other users."""
    print(printable(text), file=out or sys.stdout)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], out: Any = None) -> None:
    """Prints columns as wide as needed; numbers are right-aligned."""
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
