#!/usr/bin/env python3
"""The reference of the command line, made from its parser and from the commented files of packaging/.

reference.py writes docs/reference/cli.md; --check compares; --man DIR writes the manual pages into DIR/man1,
DIR/man5 and DIR/man8. Needs nothing but Python, as the build of the wheel runs it.
"""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from gpushare import __version__  # noqa: E402 - of this tree
from gpushare.cli.main import EXIT_STATUS, GROUPS, VERBS, build_parser  # noqa: E402
from gpushare.cli.parser import Parser  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "cli.md"
FILES = {
    "gpushare.toml": "configuration of the gpushare daemon",
    "tenants.toml": "who is guaranteed what on a node of gpushare",
    "prices.toml": "what an hour of a device costs, for gpushare usage",
}
"""Files in packaging/, and the titles of their manual pages."""
PROGRAM_PAGE = ROOT / "packaging" / "gpushare-runtime.8"
STATUS = "exit status: "
_VARIABLE = re.compile(r"\$([A-Z][A-Z_]+)")
_PATH = re.compile(r"/(?:etc|run|var)/[\w./-]*\w")
_HEAD = re.compile(r"\[(.+)\]")
_SETTING = re.compile(r"(\w+ = .*?) {2,}# (.*)")


def verbs(parser: Parser) -> Iterator[Parser]:
    """The parser's verbs, each followed by its own."""
    for verb in parser.verbs().values():
        yield verb
        yield from verbs(verb)


def invocation(action: argparse.Action) -> str:
    """An option as `--memory SIZE`, or an argument's name."""
    shown = action.metavar if action.metavar is not None else action.dest
    if action.choices is not None and action.metavar is None:
        shown = f"{{{','.join(map(str, action.choices))}}}"
    if not action.option_strings:
        return str(shown)
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    value = str(shown) if action.metavar or action.choices else action.dest.upper()
    return f"{names} [{value}]" if action.nargs == "?" else f"{names} {value}"


def shown(parser: Parser) -> list[argparse.Action]:
    """The arguments and options that `--help` shows."""
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def synopsis(parser: Parser) -> list[str]:
    """The synopsis, in words that must not be broken across lines."""
    words = [parser.prog]
    for action in shown(parser):
        if isinstance(action, argparse._SubParsersAction):
            words.append("VERB ..." if action.required else "[VERB ...]")
        elif action.option_strings and action.dest != "help":
            text = invocation(action).replace(", ", "|")
            words.append(text if action.required else f"[{text}]")
        elif not action.option_strings:
            text = invocation(action)
            words.append({"?": f"[{text}]", "+": f"{text} ..."}.get(str(action.nargs), text))
    return words


def help_text(parser: Parser, action: argparse.Action) -> str:
    """The help text of an argument or option."""
    return parser._get_formatter()._expand_help(action)


def paragraphs(parser: Parser) -> list[str]:
    """The verb's description, and remarks other than those about its exit status."""
    found = [" ".join(part.split()) for part in (parser.description or "").split("\n\n")]
    if parser.epilog and not parser.epilog.startswith(STATUS):
        found.append(parser.epilog)
    return [f"{text[:1].upper()}{text[1:]}{'' if text[-1] in '.:' else '.'}" for text in found if text]


def status(parser: Parser) -> str:
    """What the exit statuses of a verb mean."""
    epilog = parser.epilog or ""
    return (epilog if epilog.startswith(STATUS) else EXIT_STATUS).removeprefix(STATUS)


def options(parser: Parser) -> list[tuple[str, str]]:
    """All arguments and options, and their help."""
    own = [action for action in shown(parser) if not isinstance(action, argparse._SubParsersAction)]
    return [(invocation(action), help_text(parser, action)) for action in own if action.dest != "help"]


# Markdown.


def plain(text: str) -> str:
    """Text with Markdown's markup escaped, except in `code`."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_<>\[\]|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(part.replace("|", "\\|") if at % 2 else part for at, part in enumerate(parts))


def wrapped(words: list[str], width: int = 100) -> str:
    """The words in lines, all but the first indented."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > width:
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def prose(text: str) -> str:
    """A paragraph in lines of the pages' width, broken outside `code` only."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), plain(text))
    return textwrap.fill(whole, 100, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def described(parser: Parser) -> Iterator[str]:
    """A verb in Markdown, without its heading."""
    yield from (prose(text) for text in paragraphs(parser))
    yield f"```text\n{wrapped(synopsis(parser))}\n```"
    if found := options(parser):
        rows = [f"| `{name.replace('|', chr(92) + '|')}` | {plain(text)} |" for name, text in found]
        yield "\n".join(["| | |", "|---|---|", *rows])
    if status(parser) != EXIT_STATUS.removeprefix(STATUS):
        yield prose(f"Exit status: {status(parser)}.")
    if parser.examples:
        yield "```sh\n" + "\n".join(f"# {what}\n{line}" for line, what in parser.examples) + "\n```"


def markdown(parser: Parser) -> str:
    """The whole page."""
    parts = [
        "# The command line",
        "<!-- Made by scripts/reference.py of the texts of `--help`. Change them there. -->",
        prose(f"{parser.description} The same texts: `gpushare VERB --help`, and `man gpushare-VERB`."),
        prose(f"Exit status: {status(parser)}. `gpushare run` returns its command's. Errors are one line on stderr."),
    ]
    for title, names in GROUPS:
        rows = [f"| [{name}](#gpushare-{name}) | {plain(first(parser, name))} |" for name in names]
        parts.append("\n".join([f"| **{title}** | |", "|---|---|", *rows]))
    for verb in verbs(parser):
        parts.append(f"{'##' if verb.prog.count(' ') == 1 else '###'} {verb.prog}")
        parts.extend(described(verb))
    return "\n\n".join(parts) + "\n"


def first(parser: Parser, name: str) -> str:
    """The first line of a verb's description, for the list of all verbs."""
    return (parser.verbs()[name].description or "").partition("\n")[0]


# Manual pages.

_ROFF = {"\\": r"\e", '"': r"\(dq", "-": r"\-", "`": r"\(ga", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti"}


def roff(text: str) -> str:
    """Text escaped, so that roff shows it and does not interpret it."""
    shown = "".join(_ROFF.get(char, char) for char in text)
    # A dot at the start of a line begins a request; dots at its end would end a sentence.
    return re.sub(r"^(?=\.)|(?<=\.\.\.)$", r"\\&", shown, flags=re.MULTILINE)


def marked(text: str) -> str:
    """Text escaped for roff, with `code` in bold."""
    return "".join(rf"\fB{roff(part)}\fR" if at % 2 else roff(part) for at, part in enumerate(text.split("`")))


def usage_line(parser: Parser) -> str:
    """The synopsis for roff, broken only between words."""
    first_word, *words = synopsis(parser)
    shown = "\n".join(roff(word).replace(" ", r"\ ") for word in words)
    return f".nh\n.ad l\n.HP\n\\fB{roff(first_word)}\\fR\n{shown}\n.ad b\n.hy"


def items(rows: list[tuple[str, str]]) -> str:
    """A list of names, each with a text below."""
    return "\n".join(f".TP\n.B {roff(name)}\n{marked(text)}" for name, text in rows)


def examples(parser: Parser) -> str:
    """The examples, each below its explanation."""
    return "\n".join(f".PP\n{marked(what)}:\n.PP\n.RS 4\n.EX\n{roff(line)}\n.EE\n.RE" for line, what in parser.examples)


def heading(name: str, section: int, what: str) -> str:
    """The first lines of a page."""
    return (
        f'.\\" Made by scripts/reference.py.\n.TH {name.upper()} {section} "" "gpushare {__version__}" "gpushare"\n'
        f".SH NAME\n{roff(name)} \\- {roff(what)}"
    )


def named(found: list[Parser], pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """What matches the pattern in the options' texts, each with the options that mention it."""
    by: dict[str, list[str]] = {}
    for parser in found:
        for name, text in options(parser):
            for match in pattern.finditer(text):
                mentions = by.setdefault(match[match.re.groups], [])
                mentions += [] if (word := name.split()[0]) in mentions else [word]
    return [(name, f"See `{'`, `'.join(mentions)}`.") for name, mentions in sorted(by.items())]


def page(parser: Parser) -> str:
    """The manual page of a verb and the verbs below it, or of the whole command."""
    root, name = " " not in parser.prog, parser.prog.replace(" ", "-")
    below = [] if root else list(verbs(parser))
    texts = paragraphs(parser)
    what = texts[0].rstrip(".")
    parts = [heading(name, 1, what[:1].lower() + what[1:])]
    parts += [".SH SYNOPSIS", *(usage_line(one) for one in [parser, *below] if one is parser or not one.verbs())]
    parts += [".SH DESCRIPTION", *(f".PP\n{marked(text)}" for text in texts)]
    if root:
        for title, names in GROUPS:
            rows = [(name, first(parser, name)) for name in names]
            parts += [f".SS {title.capitalize()}", items(rows)]
    if own := options(parser):
        parts += [".SH OPTIONS", items(own)]
    if below:
        parts.append(".SH VERBS")
        for verb in below:
            parts += [f".SS {roff(verb.prog)}", *(f"{marked(text)}\n.PP" for text in paragraphs(verb))]
            parts += [items(options(verb)), examples(verb)]
    if parser.examples:
        parts += [".SH EXAMPLES", examples(parser)]
    parts += [".SH EXIT STATUS", f"{marked(status(parser))}."]
    for title, pattern in (("ENVIRONMENT", _VARIABLE), ("FILES", _PATH)):
        if found := named([*verbs(parser)] if root else [parser, *below], pattern):
            parts += [f".SH {title}", items(found)]
    return "\n".join(
        [*parts, ".SH SEE ALSO\n.nh", ",\n".join(f".BR {roff(one)} ({n})" for one, n in related(name)), ""]
    )


def related(name: str) -> list[tuple[str, int]]:
    """Pages for SEE ALSO: the command's page names all others, and all others name it."""
    everything = [(f"gpushare-{name}", 1) for name in VERBS]
    ours = {"gpushare-runtime": [("gpushare-runtime", 8)], "gpushare": [*everything, ("gpushare-runtime", 8)]}
    own = [("gpushare", 1)] if name != "gpushare" else []
    files = {
        "gpushare-daemon": ["gpushare.toml", "tenants.toml"],
        "gpushare-tenants": ["tenants.toml"],
        "gpushare-usage": ["prices.toml"],
        "gpushare": list(FILES),
    }
    return own + ours.get(name, []) + [(file_page(file), 5) for file in files.get(name, ())]


def file_page(file: str) -> str:
    """The name of a file's page, which no other program's page has."""
    return file if file.startswith("gpushare") else f"gpushare-{file}"


def settings(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a commented file: ("", paragraph), ("[table]", "") and ("name = value", meaning). Raises ValueError
    for any other line."""
    entry: list[str] | None = None
    for line in text.splitlines():
        bare = line.removeprefix("#").strip()
        if found := _SETTING.fullmatch(bare):
            if entry:
                yield entry[0], entry[1]
            entry = [found[1], found[2]]
        elif entry and bare.startswith("#"):
            entry[1] += f" {bare.lstrip('# ')}"
        else:
            if entry:
                yield entry[0], entry[1]
                entry = None
            if _HEAD.fullmatch(bare):
                yield bare, ""
            elif " = " in bare:
                raise ValueError(f"{line!r}: write # NAME = VALUE  # WHAT IT MEANS")
            elif bare:
                yield "", bare
    if entry:
        yield entry[0], entry[1]


def settings_page(file: str) -> str:
    """The manual page of a configuration file."""
    parts = [heading(file_page(file), 5, FILES[file]), ".SH DESCRIPTION"]
    shown = False
    for name, text in settings((ROOT / "packaging" / file).read_text()):
        if not name:
            parts.append(marked(text))
        elif not text:
            parts.append(f".SH {roff(name)}" if not shown else f".SS {roff(name)}")
        else:
            parts += [] if shown else [".SH SETTINGS"]
            parts.append(items([(name, text)]))
            shown = True
    return "\n".join([*parts, ".SH SEE ALSO", ".BR gpushare (1),\n.BR gpushare\\-daemon (1)", ""])


def manual(directory: Path) -> None:
    """Writes all pages."""
    parser = build_parser()
    pages = {f"man1/{one.prog.replace(' ', '-')}.1": page(one) for one in (parser, *parser.verbs().values())}
    pages |= {f"man5/{file_page(file)}.5": settings_page(file) for file in FILES}
    for name, text in pages.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    (directory / "man8").mkdir(exist_ok=True)
    shutil.copyfile(PROGRAM_PAGE, directory / "man8" / PROGRAM_PAGE.name)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="write nothing; status 1 where the page is another")
    options.add_argument("--man", type=Path, metavar="DIR", help="write the manual pages instead")
    given = options.parse_args()
    if given.man is not None:
        manual(given.man)
        return 0
    text = markdown(build_parser())
    if given.check:
        if PAGE.is_file() and PAGE.read_text() == text:
            return 0
        print(f"{PAGE.relative_to(ROOT)} is not what the parser gives: run scripts/reference.py", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
