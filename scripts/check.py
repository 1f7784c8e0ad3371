"""Checks that no linter makes: versions agree, file sizes are within limits, generated tables are current, NVML has one
importer."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import editorconfig

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "gpu"))

from gpubench import readme  # noqa: E402 - not in the installed package

PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "docs/*.md", "native/**/README.md")
# In backticks: a file or folder with a slash in its name, possibly with a function of that file.
NAMED = re.compile(r"`((?:gpushare|native|hooks|tests|bench|scripts|packaging|docs)/[\w./-]*)(?::(\w+))?`")

LINES_MAX = 700
PRODUCT_LINES_MAX = 400  # of a Python file in gpushare/


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def lost_names() -> list[str]:
    """Files, folders and functions that a page mentions but that do not exist."""
    found = []
    for page in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        for name, function in NAMED.findall(page.read_text()):
            path, said = ROOT / name, f"{page.relative_to(ROOT)} names {name}"
            if not path.exists():
                found.append(f"{said}, which does not exist")
            elif function and not re.search(rf"\b{function}\b", path.read_text()):
                found.append(f"{said}:{function}, which is not in that file")
    return found


def unlike_editorconfig() -> list[str]:
    """Text files that do not conform to .editorconfig."""
    found = []
    for path in tracked():
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue  # a picture, a fuzzer's corpus
        asked, name = editorconfig.get_properties(str(path)), path.relative_to(ROOT).as_posix()
        if not text or asked["insert_final_newline"] == "unset":
            continue
        if not text.endswith("\n"):
            found.append(f"{name} does not end with a newline")
        if "\r\n" in text:
            found.append(f"{name} has DOS line ends")
        for number, line in enumerate(text.splitlines(), 1):
            if line != line.rstrip() and asked["trim_trailing_whitespace"] == "true":
                found.append(f"{name}:{number} ends with white space")
            if line.startswith("\t") and asked.get("indent_style") == "space":
                found.append(f"{name}:{number} begins with a tab")
    return found


def problems() -> list[str]:
    found = lost_names() + unlike_editorconfig()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if f'__version__ = "{version}"' not in (ROOT / "gpushare/__init__.py").read_text():
        found.append(f"gpushare/__init__.py does not say version {version} of pyproject.toml")
    if f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        found.append(f"CHANGELOG.md has no section for {version}")
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        most = PRODUCT_LINES_MAX if path.suffix == ".py" and name.startswith("gpushare/") else LINES_MAX
        if path.suffix in (".py", ".c", ".h") and (lines := len(path.read_text().splitlines())) > most:
            found.append(f"{name} has {lines} lines, {most} at most")
        if path.suffix == ".py" and name.startswith("gpushare/") and name != "gpushare/node/nvml.py":
            for line in path.read_text().splitlines():
                if re.match(r"\s*(import|from) pynvml", line) and name != "gpushare/node/probe.py":
                    found.append(f"{name} imports pynvml: only gpushare/node/nvml.py and probe.py may")
    try:
        old = [path.relative_to(ROOT).as_posix() for path in readme.stale(ROOT)]
        again = "`bench/gpu/run --merge` of that result writes it"
        found += [f"{name}: its block of real GPUs is not what bench/results gives: {again}" for name in old]
    except ValueError as error:
        found.append(str(error))
    return found


if __name__ == "__main__":
    messages = problems()
    print("\n".join(messages) or "check: ok")
    sys.exit(bool(messages))
