"""All code on the pages parses: with its own language's parser, and each gpushare command with gpushare's."""

import argparse
import ast
import json
import re
import tomllib

import pytest
import yaml
from views.pagecode import ROOT, SHELL, blocks, commands, mentions, pages

from gpushare.carriers import contract
from gpushare.cli import prices
from gpushare.cli.main import build_parser
from gpushare.daemon import config
from gpushare.errors import UsageError
from gpushare.remote import nodes
from gpushare.tenants import file as tenants
from gpushare.text import toml

PARSER = build_parser()
PAGES = pages()
ALL = [block for page in PAGES for block in blocks(page)]


def of(*kinds: str) -> list:
    return [pytest.param(block, id=str(block)) for block in ALL if block.kind in kinds]


def test_calls_of_gpushare_are_what_it_understands():
    wrong, count = [], 0
    for block in ALL:
        for words in commands(block) if block.kind in SHELL else ():
            count += 1
            try:
                PARSER.parse_args(words)
            except UsageError as error:
                wrong.append(f"{block}: gpushare {' '.join(words)}: {error}")
            except SystemExit as end:
                assert end.code == 0  # --help, --version
    assert wrong == []
    assert count > 80  # commands are found at all


def test_options_and_verbs_in_the_text_are_known():
    wrong = []
    for page in PAGES:
        for words in mentions(page):
            verb, options = known(words)
            own = words[: words.index("--")] if "--" in words else words
            asked = [re.split("[=,)]", word.strip("[]"))[0] for word in own if word.startswith(("--", "[--"))]
            lost = [option for option in asked if option not in options]
            if verb is None or lost:
                wrong.append(f"{page.relative_to(ROOT)}: gpushare {' '.join(words)}: {lost or 'no such verb'}")
    assert wrong == []


def known(words: list[str]) -> tuple[argparse.ArgumentParser | None, set[str]]:
    """Returns the parser of the verb that the words begin with, or None, and its options and those of its parents."""
    parser, options = PARSER, set()
    for word in words:
        options |= set(parser._option_string_actions)
        verbs = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
        if verbs is None or not re.fullmatch(r"[a-z-]+", word) or word.startswith("-"):
            break
        if word not in verbs.choices:
            return None, options
        parser = verbs.choices[word]
    return parser, options | set(parser._option_string_actions)


def test_calls_are_found():
    """Wherever in a line they may be."""
    [block] = [one for one in blocks(ROOT / "docs/start/podman.md", "sh") if "gpushare grant create" in one.text]
    assert [words[:2] for words in commands(block)] == [["grant", "create"]]
    install = next(one for one in blocks(ROOT / "README.md", "sh") if "gpushare install" in one.text)
    assert ["install"] in list(commands(install))


@pytest.mark.parametrize("block", of("python"))
def test_python(block):
    ast.parse(block.text)


@pytest.mark.parametrize("block", of("json"))
def test_json(block):
    text = block.text.strip()
    json.loads(text if text.startswith(("{", "[")) else f"{{{text}}}")  # a member of an object


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml(block):
    assert all(isinstance(part, (dict, list)) for part in yaml.safe_load_all(block.text))


@pytest.mark.parametrize("block", of("toml"))
def test_configuration(block, tmp_path):
    """The product's own reader of that file accepts it."""
    said = tomllib.loads(block.text)
    path = tmp_path / "file.toml"
    path.write_text(block.text)
    if "tenants" in said and isinstance(said["tenants"], dict):
        assert tenants.read(path).by_name
    elif "currency" in said:
        assert prices.load(path)
    elif "nodes" in said:
        assert nodes.table(path)
    elif "server" in said or "client" in said:
        assert contract.of(toml.parse(path, path.read_bytes()), said["name"])
    else:
        config.load(path)


def test_variables_of_the_environment_are_all_there():
    """docs/reference/environment.md names all that the product reads, and no others."""
    named = set(
        re.findall(r"^\| `(GPUSHARE_\w+)` ", (ROOT / "docs/reference/environment.md").read_text(), re.MULTILINE)
    )
    from gpushare.node.simulator import OPTIONS

    read = {f"GPUSHARE_SIM_{name}" for name in OPTIONS}
    for folder, pattern in (("gpushare", "*.py"), ("native", "*.[ch]"), ("hooks", "*.c")):
        for path in (ROOT / folder).rglob(pattern):
            quoted = re.findall(r"""["'](GPUSHARE_[A-Z_]+)["']""", path.read_text())
            read |= {name for name in quoted if not name.endswith("_")}
    read |= set(re.findall(r"\$\{(GPUSHARE_\w+)", (ROOT / "packaging/debian/gpushare.prerm").read_text()))
    assert named == read


def test_figures_are_those_of_the_results():
    """Each figure of docs/concepts/exact.md is in the stored result named next to it."""
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \| \[[^]]+\]\(\.\./\.\./(bench/results/[^)]+)\) \|$",
                      (ROOT / "docs/concepts/exact.md").read_text(), re.MULTILINE)  # fmt: skip
    assert len(rows) >= 10
    for measured, against, name in rows:
        stored = (ROOT / name).read_text()
        for figure in re.findall(r"[+-]?\d[\d.,]*\d\s?(?:%|ms|ns|points)", f"{measured} {against}"):
            assert figure.lstrip("+") in stored, (figure, name)


def test_the_kubernetes_objects_are_of_our_names():
    """Pods on the pages request shares by names that the adapters serve."""
    known = (ROOT / "packaging/kubernetes/dra/gpushare.yaml").read_text()
    assert "gpu.gpushare.dev" in known
    for block in ALL:
        if block.kind == "yaml":
            for name in re.findall(r"deviceClassName: (\S+)", block.text):
                assert name == "gpu.gpushare.dev", block


@pytest.mark.parametrize("page", sorted(ROOT.glob("README.*.md")) + sorted(ROOT.glob("docs/**/*.??.md")), ids=str)
def test_a_translation_has_the_commands_of_the_original(page):
    """All of them, in order; others only from other pages. Comments are translated."""

    def plain(block) -> str:
        return re.sub(r" +# .*", "", block.text)

    original = page.with_name(page.name.split(".")[0] + ".md")
    wanted = [plain(block) for block in blocks(original, *SHELL[:-1])]
    found = [plain(block) for block in blocks(page, *SHELL[:-1])]
    assert [one for one in found if one in wanted] == wanted
    elsewhere = "".join(other.read_text() for other in PAGES if other != page)
    assert [one for one in found if one not in wanted and one not in elsewhere] == []
