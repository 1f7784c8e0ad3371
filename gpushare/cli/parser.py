"""The parser of every verb: help for people with examples, and errors that say what was probably meant."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, NoReturn

from gpushare.errors import UsageError

Example = tuple[str, str]
"""A command line, and its description."""
Run = Callable[[argparse.Namespace], int]
"""Executes a verb and returns the exit status."""
Section = tuple[str, list[argparse.Action]]
"""A title, and the options and arguments below it."""

_ELSEWHERE = {
    "version": "--version",
    "list": "ps",
    "ls": "ps",
    "status": "doctor",
    "check": "doctor",
    "start": "daemon",
    "serve": "daemon",
    "exec": "run",
    "logs": "events",
    "kill": "grant release",
    "rm": "grant release",
    "delete": "grant release",
    "info": "devices",
    "gpus": "devices",
    "smi": "devices",
    "metrics": "adapter prometheus",
    "remove": "uninstall",
    "setup": "install",
}
"""Verbs of other programs, and their names here."""
FILES = ("DIR", "FILE", "PATH", "STATE.json")
"""Metavars of file system paths in the help."""
_NEAR = 3
_LISTED = 9
_SHOWN = 80
_OPTION = re.compile(r"--?[A-Za-z]")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Fills each paragraph separately to the width of the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
        # The base class's method, since RawDescriptionHelpFormatter's keeps all line ends.
        fill = argparse.HelpFormatter._fill_text
        return "\n\n".join(fill(self, paragraph, width, indent) for paragraph in paragraphs)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # As in Python 3.13: show the value once, not after each of several names.
        if len(action.option_strings) < 2 or action.nargs == 0:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        return f"{names} {self._format_args(action, self._get_default_metavar_for_optional(action))}"

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        # argparse would show only "..." for the command that ends the line.
        if action.nargs == argparse.REMAINDER:
            return str(action.metavar)
        return super()._format_args(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """`examples`: shown at the end of the help. `groups`: titles, with the names of the verbs under each."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **options})
        self.examples: Sequence[Example] = ()
        self.groups: Sequence[tuple[str, Iterable[str]]] = ()
        self._given: list[str] = []
        self._signed: set[str] = set()
        self._below: Any = None

    def option(
        self,
        name: str,
        metavar: str,
        text: str,
        parse: Callable[[str], Any] = str,
        *,
        short: str = "",
        signed: bool = False,
        **more: Any,
    ) -> None:
        """Adds an option with a value. `text`: its help. `parse`: returns the value of what was given; its UsageError
        is shown. `short`: a second name. `signed`: the value may begin with a hyphen. `more`: as add_argument takes
        it."""
        self.add_argument(*filter(None, (short, name)), metavar=metavar, help=text, type=checked(parse), **more)
        self._signed |= {name} if signed else set()

    def flag(self, name: str, text: str) -> None:
        """Adds an option without a value. `text`: its help."""
        self.add_argument(name, action="store_true", help=text)

    def verb(self, name: str, run: Run | None, text: str, *examples: Example) -> "Parser":
        """Adds a verb below this one. `run`: executes it; None if it only has other verbs below it. `text`: what it
        does; its first line is shown in the list of verbs."""
        if self._below is None:
            self._below = self.add_subparsers(metavar="VERB", required=self.get_default("run") is None)
        below: Parser = self._below.add_parser(name, help=text.partition("\n")[0], description=text)
        below.examples = examples
        if run is not None:
            below.set_defaults(run=run)
        return below

    def verbs(self) -> dict[str, "Parser"]:
        """Returns the subparsers by name; empty for a parser without verbs."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}

    @property
    def given(self) -> list[str]:
        """The words that it was given, as they were typed."""
        return self._given

    def names(self) -> list[str]:
        """The names of its options."""
        return list(self._option_string_actions)

    def sections(self) -> Iterator[Section]:
        """Yields the sections of the help between the description and the examples."""
        for group in self._action_groups:
            plain = [action for action in group._group_actions if not isinstance(action, argparse._SubParsersAction)]
            for action in group._group_actions:
                if isinstance(action, argparse._SubParsersAction):
                    lines = {line.dest: line for line in action._get_subactions()}
                    for title, names in self.groups or [("verbs", lines)]:
                        yield title, [lines[name] for name in names]
            if plain:
                yield str(group.title), plain

    def format_help(self) -> str:
        """Formats as argparse does, with the verbs in groups, and with examples."""
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, actions in self.sections():
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        formatter.add_text(self.epilog)
        lines = [f"  {command}\n      {what}\n" for command, what in self.examples]
        return formatter.format_help() + ("\nexamples:\n" + "".join(lines) if lines else "")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but an unknown word is refused by the verb that it follows, whose options are suggested."""
        self._given = list(args or ())
        found, unknown = super().parse_known_args(self._with_signs(args), namespace)
        if unknown:
            self._refuse(unknown[0])
        return found, unknown

    def _with_signs(self, args: Any) -> Any:
        """Ties values that begin with a hyphen to their options: argparse would take them for options."""
        if args is None or not self._signed:
            return args
        tied: list[str] = []
        for word in args:
            is_value = tied and tied[-1] in self._signed and word[:1] == "-" and word not in self._option_string_actions
            if is_value and "--" not in tied:
                tied[-1] += f"={word}"
            else:
                tied.append(word)
        return tied

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """As argparse's, but text that is not UTF-8 is refused, except in paths and in the words of a command."""
        taken = action.metavar in FILES or action.nargs == argparse.REMAINDER
        if not taken and not isinstance(action, argparse._SubParsersAction):
            try:
                arg_string.encode()
            except UnicodeEncodeError:
                shown = arg_string.encode(errors="surrogateescape").decode(errors="backslashreplace")[:_SHOWN]
                raise argparse.ArgumentError(action, f"'{shown}' is not UTF-8: write it in UTF-8") from None
        return super()._get_value(action, arg_string)

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse's, which hides that the output is full."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError with argparse's message, or for a missing argument with the likely reason."""
        _, missing, names = message.partition("the following arguments are required: ")
        if missing:
            verbs = f"which verb?{_or(list(self.verbs()), ' ')}"
            message = self._mistyped() or (verbs if names == "VERB" else f"missing: {names}")
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def _mistyped(self) -> str:
        """Returns a message on the first word that looks like an option and is not one; empty if there is none."""
        for word in self._given:
            name = word.partition("=")[0]
            if word == "--":
                break
            if _OPTION.match(name) and not any(text.startswith(name) for text in self._option_string_actions):
                return self._no_option(name)
        return ""

    def _no_option(self, name: str) -> str:
        verbs = self.verbs()
        if behind := [verb for verb in verbs if name in verbs[verb]._option_string_actions]:
            return f"{name} goes behind its verb: {self.prog} {behind[0] if len(behind) == 1 else 'VERB'} {name}"
        known = {text.lstrip("-"): text for text in self._option_string_actions}
        bare = name.lstrip("-").lower()
        near = _near(bare, known) if len(bare) > 1 else [text for text in known if text.startswith(bare)]
        return f"no option {name[:_SHOWN]!r} here{_did_you_mean([known[text] for text in near])}"

    def _refuse(self, word: str) -> NoReturn:
        name = word.partition("=")[0]
        self.error(self._no_option(name) if word.startswith("-") else f"{word[:_SHOWN]!r} is one word too many")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if not isinstance(action, argparse._SubParsersAction):
            words = [str(choice) for choice in action.choices]
            near = _did_you_mean(_near(str(value), words)) or _or(words, ": give ")
            raise argparse.ArgumentError(action, f"{str(value)[:_SHOWN]!r} is none of what it takes{near}")
        near = _did_you_mean(self._verbs_near(value)) or _or(list(self.verbs()), ": there is ")
        self.error(f"no verb {str(value)[:_SHOWN]!r}{near}")

    def _verbs_near(self, word: str) -> list[str]:
        """Returns similar command lines: verbs of this parser, else verbs below those, or what another program's
        verb is called here."""
        verbs = self.verbs()
        below = {f"{name} {inner}": inner for name, parser in verbs.items() for inner in parser.verbs()}
        same = [line for line, inner in below.items() if inner == word]
        found = same or _near(word, verbs) or [line for line in below if below[line] in _near(word, below.values())]
        if " " not in self.prog and word in _ELSEWHERE:
            found = [_ELSEWHERE[word], *same]
        return [f"`{self.prog} {line}`" for line in found[:_NEAR]]


def checked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wraps `parse` so that argparse shows our message: for a ValueError it would name only the type."""

    @wraps(parse)
    def convert(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _near(word: str, known: Iterable[str]) -> list[str]:
    import difflib  # needed only after a mistake

    return difflib.get_close_matches(word[:_SHOWN].lower(), list(dict.fromkeys(known)), _NEAR)


def _or(words: Sequence[str], before: str) -> str:
    """Returns the words as a list after `before`; empty if there are none, or too many to read."""
    if not 0 < len(words) <= _LISTED:
        return ""
    *others, last = words
    return f"{before}{', '.join(others)}{' or ' if others else ''}{last}"


def _did_you_mean(words: Sequence[str]) -> str:
    found = _or(words, ": did you mean ")
    return f"{found}?" if found else ""
