"""The example command lines of all verbs, as their help shows them."""

import re
import shlex
from collections.abc import Iterator

from gpushare.cli.main import build_parser
from gpushare.cli.parser import Parser


def parsers(parser: Parser | None = None) -> Iterator[Parser]:
    """The parsers of the whole command, of each verb, and of the verbs below it."""
    parser = parser or build_parser()
    yield parser
    for verb in parser.verbs().values():
        yield from parsers(verb)


def words(line: str) -> list[str]:
    """The arguments that a shell line passes to gpushare: without sudo, quotes, pipes and redirections."""
    own = line[re.search(r"\bgpushare\b", line).end() :]
    if match := re.search(r" [|<>] |\)\"?$", own):
        own = own[: match.start()]
    return shlex.split(own)
