"""The interface of every verb family, and helpers that they share. Imports only the standard library at start."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpushare.cli.parser import Example, Parser
from gpushare.errors import UsageError
from gpushare.text import width
from gpushare.text.printable import printable
from gpushare.text.units import parse_memory

if TYPE_CHECKING:
    from pathlib import Path

    from gpushare.client import Client


_DIGITS_MAX = 9
_SHOWN = 80
NOTHING = "-"
"""Shown in tables instead of a number that is zero or absent."""


class Command:
    """One verb. The class docstring is its help text; its first line is shown in the list of verbs.
    `examples`, at least one, end the help."""

    examples: tuple[Example, ...] = ()

    def prepare_parser(self, parser: Parser) -> None:
        """Adds the verb's options and its own verbs."""

    def run(self, args: argparse.Namespace) -> int:
        """Executes the verb and returns the exit status. Raises GpushareError, which cli/main.py reports."""
        raise NotImplementedError


class Family(Command):
    """A verb that only has other verbs below it; each names the function that executes it."""


def add_verbs(parser: Parser, places: Mapping[str, str]) -> list[Parser]:
    """Adds verbs and returns their parsers. `places`: by verb, `MODULE.CLASS` in this package."""
    made = []
    for name, place in places.items():
        module, _, kind = place.rpartition(".")
        command: Command = getattr(import_module(f"gpushare.cli.{module}"), kind)()
        run = None if isinstance(command, Family) else command.run
        made.append(parser.verb(name, run, command.__doc__ or "", *command.examples))
        command.prepare_parser(made[-1])
    return made


def add_socket(parser: Parser) -> None:
    """Adds the option that names the daemon's socket."""
    parser.option("--socket", "PATH", "the daemon's socket (default $GPUSHARE_SOCKET, else /run/gpushare/node.sock)")


def add_json(parser: Parser) -> None:
    """Adds the option for machine-readable output."""
    parser.flag("--json", "print JSON; bytes, nanoseconds and thousandths of a device (_milli) are integers")


def add_common(parser: Parser) -> None:
    """Adds the options of a verb that asks the daemon and prints its answer."""
    add_json(parser)
    add_socket(parser)


def client(args: argparse.Namespace) -> "Client":
    """Returns a client of the node API at the socket that the options name. It connects at its first call."""
    from gpushare.client import Client

    return Client(args.socket)


def is_closed_to_user(path: "Path") -> bool:
    """Returns whether the daemon's socket exists and this user may not connect to it."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(path, os.W_OK)


def memory_argument(text: str) -> int | str:
    """For Parser.option: bytes, or a percentage that the daemon applies to the device it picks."""
    return text.strip() if text.strip().endswith("%") and parse_memory(text, 1 << 40) else parse_memory(text, 0)


def simulated_devices(text: str) -> str:
    """For Parser.option: checks `2x16GiB`."""
    from gpushare.node.devices import parse_simulate

    try:
        parse_simulate(text)
    except UsageError as error:
        if text[:1].isdigit():
            raise
        raise UsageError(f"{text!r} is no size of devices: write -- before the command") from error
    return text


def whole(what: str, least: int, most: int, advice: str = "") -> Callable[[str], int]:
    """For Parser.option: parses a number without a sign. `what`: what it is, with its article. `advice`: what to give,
    where that is not just a number from `least` to `most`."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX and least <= int(text) <= most:
            return int(text)
        raise UsageError(f"{text[:_SHOWN]!r} is not {what}: {advice or f'give {least} to {most}'}")

    return parse


def answer(args: argparse.Namespace, value: Any, show: Callable[[], None] | None = None) -> int:
    """Prints an answer of the daemon, as JSON if the options ask for that, else by `show`; None: nothing. Returns the
    exit status."""
    if args.json:
        print_json(value)
    elif show is not None:
        show()
    return 0


def print_json(value: Any, indent: int | None = 2) -> None:
    """Prints indented JSON to stdout."""
    print(json.dumps(value, indent=indent))


def say(text: str, out: Any = None) -> None:
    """Prints one line for people, with control characters escaped: names in it may come from other users."""
    print(printable(text), file=out or sys.stdout)


def say_each(lines: Iterable[str]) -> None:
    """As `say`, for each of these lines."""
    for line in lines:
        say(line)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]], out: Any = None) -> None:
    """Prints columns as wide as needed; numbers are right-aligned."""
    columns = [[title, *(printable(str(row[i])) for row in rows)] for i, title in enumerate(titles)]
    right = [bool(rows) and all(_numeric(row[i]) for row in rows) for i in range(len(titles))]
    wide = [max(map(width.columns, column)) for column in columns]
    cells = [
        [width.padded(cell, size, right=number) for cell in column]
        for column, size, number in zip(columns, wide, right, strict=True)
    ]
    print("\n".join("  ".join(line).rstrip() for line in zip(*cells, strict=True)), file=out or sys.stdout)


def _numeric(cell: object) -> bool:
    if isinstance(cell, str):
        return cell[:1].isdigit() or cell[:1] == "<" or cell == NOTHING
    return isinstance(cell, (int, float))
