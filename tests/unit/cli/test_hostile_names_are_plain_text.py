"""Names that others chose reach a terminal only as plain text, in tables, receipts, decisions and errors."""

import pytest
from views.tops import grant

from gpushare.cli import main
from gpushare.cli.command import say, table
from gpushare.cli.look import render
from gpushare.errors import RefusedError
from gpushare.text import sentences
from gpushare.text.printable import printable

EVIL = "\x1b]0;mine\x07\x9b2J\r\n\N{RIGHT-TO-LEFT OVERRIDE}x"
TAMED = "\\x1b]0;mine\\x07\\x9b2J\\r\\n\\u202ex"


@pytest.mark.promise("names-are-harmless")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 字", "plain é 字"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\x9b31m", "\\x9b31m"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}evil", "\\u202eevil"),
        ("\ud800", "\\ud800"),
        ("[red]x[/]", "[red]x[/]"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text, shown):
    assert printable(text) == shown


def test_tables_and_lines(capsys):
    table(("A", "B"), [[EVIL, 1], ["é", 22]])
    say(EVIL)
    assert capsys.readouterr().out == f"{'A':{len(TAMED)}}   B\n{TAMED}   1\n{'é':{len(TAMED)}}  22\n{TAMED}\n"


def test_grants_and_their_notices(capsys):
    more = {"leases": 0, "memory_borrowed_bytes": 0, "memory_hosted_bytes": 0, "memory_refused": None}
    render.grants([grant(EVIL, tenant=EVIL, phase=EVIL, notice=EVIL, **more)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2] == f"{TAMED}: {TAMED}"
    assert all(line.isprintable() for line in lines)


def test_sentences_of_commands_that_processes_choose(capsys):
    found = {"at_ns": 0, "kind": "outside", "device": 0, "grant": None, "tenant": None, "memory_bytes": None}
    more = {"pid": 1, "command": EVIL, "act": "none", "stop_ns": None, "note": EVIL, "outcome": EVIL}
    say(sentences.finding({**found, **more}))
    assert capsys.readouterr().out.rstrip("\n").isprintable()


def test_errors_are_one_line(capsys, monkeypatch):
    def refuse(*_):
        raise RefusedError(EVIL)

    monkeypatch.setattr(main, "build_parser", refuse)
    assert main.main(["ps"]) == 3
    assert capsys.readouterr().err == f"gpushare: {TAMED}\n"
