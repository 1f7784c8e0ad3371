"""Pages generated from the product are complete."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec.structs import fields
from views.pagecode import ROOT

from gpushare.api.tenants import TenantPolicy
from gpushare.daemon.config import Config
from gpushare.daemon.http.routes import ROUTES

DOCS = ROOT / "docs"


def test_they_are_current():
    done = subprocess.run([sys.executable, ROOT / "scripts/pages", "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_promise_without_a_test_and_a_test_without_its_promise_are_found(tmp_path):
    """In a copy of the pages' generator, with promises of its own."""
    (tmp_path / "docs/security").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    shutil.copytree(ROOT / "scripts/pages", tmp_path / "scripts/pages")
    promises = tmp_path / "docs/security/promises.toml"
    promises.write_text('[[section]]\ntitle = "t"\n[section.promises.kept]\ntext = "it is kept"\nby = "this"\n')
    test = tmp_path / "tests/test_it.py"

    def page(marks: str) -> subprocess.CompletedProcess[str]:
        test.write_text(f"import pytest\n{marks}\ndef test_it(): pass\n")
        call = [sys.executable, "-c", "import promises; print(promises.page())"]
        env = {**os.environ, "PYTHONPATH": str(tmp_path / "scripts/pages")}
        return subprocess.run(call, env=env, capture_output=True, text=True)

    assert "| it is kept | this | `tests/test_it.py:test_it` |" in page('@pytest.mark.promise("kept")').stdout
    assert "no test is marked with kept" in page("").stderr
    assert "has no promise other, which" in page('@pytest.mark.promise("kept", "other")').stderr


def test_each_fault_that_the_doctor_tells_is_declared():
    """Otherwise docs/guides/troubleshooting would miss it: a Finding constructed directly may only state that all is
    well."""
    count = 0
    for path in [*(ROOT / "gpushare/doctor").glob("*.py"), ROOT / "gpushare/cli/node/doctor.py"]:
        if path.name == "finding.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                count += 1
                assert isinstance(node.args[1], ast.Constant) and node.args[1].value == "ok", f"{path}:{node.lineno}"
    assert count > 5


def test_each_check_of_the_doctor_is_on_a_page():
    shown = "".join(page.read_text() for page in (DOCS / "guides/troubleshooting").glob("*.md"))
    declared = sum(
        getattr(node.func, "id", "") == "Check"
        for path in (ROOT / "gpushare/doctor").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    )
    assert shown.count("**Do:**") == declared > 40


def test_each_key_of_the_configuration_has_a_meaning():
    rows = [line.split(" | ") for line in (DOCS / "reference/configuration.md").read_text().splitlines()]
    found = [(row[0].strip("| `"), row[-1].strip("| ")) for row in rows if row[0].startswith("| `")]
    assert [key for key, meaning in found if not meaning] == []
    keys = {key for key, _ in found}
    tables = [field.type for field in fields(Config) if hasattr(field.type, "__struct_fields__")]
    wanted = {
        field.name for kind in (Config, TenantPolicy, *tables) for field in fields(kind) if field.type not in tables
    }
    assert wanted <= keys and {"currency", "memory_gib"} <= keys


def test_each_call_of_the_node_api_is_on_the_page():
    said = (DOCS / "reference/api.md").read_text()
    for route in ROUTES:
        assert f"### {route.method} {route.path}\n" in said


def test_the_navigation_has_each_page():
    """mkdocs checks this too, but only when the site is built."""
    listed = set(re.findall(r"^ *- (?:[^#\n]*: )?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert there == {name for name in listed if not name.startswith("tree/")}


def test_pictures_say_in_words_what_they_show():
    for picture in sorted(Path(DOCS, "concepts/pictures").glob("*.svg")):
        text = picture.read_text()
        assert "<title id=" in text and "<desc id=" in text and "prefers-color-scheme: dark" in text, picture
