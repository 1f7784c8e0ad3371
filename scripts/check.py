"""Checks that no linter makes: versions agree, files and folders are within limits, words for users are plain,
generated tables are current, NVML has one importer."""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import editorconfig

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench" / "gpu")]

import words  # noqa: E402
from gpubench import published  # noqa: E402 - not in the installed package

PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md", "docs/**/*.md", "native/**/README.md")
# In backticks: a file or folder with a slash in its name, possibly with a function of that file.
NAMED = re.compile(r"`((?:gpushare|native|hooks|tests|bench|scripts|packaging|docs)/[\w./-]*)(?::(\w+))?`")

# Patterns that define a function or a constant, by kind of file; in other files the name must occur.
DEFINED = {
    ".py": r"(?m)^\s*(?:async def|def|class) {0}\b|^{0}\s*[:=]",
    ".c": r"(?m)^[A-Za-z][^;={{}}]*\b{0}\(|^(?:#define|struct|enum) {0}\b",
    ".h": r"(?m)^[A-Za-z][^;={{}}]*\b{0}\(|^(?:#define|struct|enum) {0}\b",
}

# Files that state the version, and the text around it.
WITH_THE_VERSION = (
    ("gpushare/__init__.py", r'^__version__ = "(.*)"$'),
    ("packaging/kubernetes/chart/Chart.yaml", r"^(?:version|appVersion): (.*)$"),
    ("packaging/kubernetes/chart/values.yaml", r"^  tag: (.*)$"),
    ("packaging/kubernetes/Containerfile", r"localhost/gpushare:(\S+)"),
    ("docs/**/*.md", r"\bgpushare:(\d[\d.]*\d)"),
)
PROSE_WIDTH = 100
"""Of the lines of the root's pages and of docs/, except tables, code and comments."""
FRAGMENT = re.compile(r"(?:\+[\w-]+|\d+)\.(?:security|added|changed|removed|fixed)\.md|README\.md")
# On PyPI `gpushare` is somebody else's: as something for pip to fetch, or with one of our extras.
FETCHED = re.compile(
    r"\bpip3?\b[^`&;|]*?\b(?:install|download|wheel)\b[^`&;|,]*?(?<![\w./-])gpushare(?![\w./-])"
    r"|\bgpushare\[(?:kubernetes|nomad|tui)\b"
)
LINES_MAX = 700
PRODUCT_LINES_MAX = 400  # of a Python file in gpushare/
GENERATED = ("gpushare/client/types.py",)
"""Files that scripts/pages makes, which nobody reads from end to end: of any length."""
FILES_MAX = 20  # in a folder of these, besides its rooms
CAPPED = ("bench", "docs", "examples", "gpushare", "hooks", "native", "packaging", "scripts", "tests")


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
            path, mention = ROOT / name, f"{page.relative_to(ROOT)} names {name}"
            if not path.exists():
                found.append(f"{mention}, which does not exist")
            elif function and not re.search(DEFINED.get(path.suffix, r"\b{}\b").format(function), path.read_text()):
                found.append(f"{mention}:{function}, which is not defined in that file")
    return found


def wide_prose() -> list[str]:
    """Lines of prose that are wider than a page."""
    found = []
    for page in sorted(path for pattern in ("*.md", "docs/**/*.md", "changelog.d/*") for path in ROOT.glob(pattern)):
        is_code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            text = line.strip()
            if text.startswith("```"):
                is_code = not is_code
            elif not is_code and len(line) > PROSE_WIDTH and not text.startswith(("|", "#", "<!--", "![")):
                found.append(f"{page.relative_to(ROOT)}:{number} has {len(line)} columns, {PROSE_WIDTH} at most")
    return found


def misnamed_fragments() -> list[str]:
    """Files of changelog.d that towncrier would not take."""
    names = sorted(path.name for path in ROOT.glob("changelog.d/*"))
    return [f"changelog.d/{name}: see changelog.d/README.md" for name in names if not FRAGMENT.fullmatch(name)]


def unlike_editorconfig() -> list[str]:
    """Text files that do not conform to .editorconfig."""
    found = []
    for path in tracked():
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            continue  # binary: a picture, a fuzzer's corpus
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


def other_versions() -> list[str]:
    """Places with another version than pyproject.toml. Generated files (manifests, packages) take it from these
    places."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = []
    for pattern, expression in WITH_THE_VERSION:
        for path in sorted(ROOT.glob(pattern)):
            every = re.findall(expression, path.read_text(), re.MULTILINE)
            if "*" not in pattern and not every:
                found.append(f"{path.relative_to(ROOT)} has no version")
            found += [
                f"{path.relative_to(ROOT)} has {one}, pyproject.toml {version}" for one in every if one != version
            ]
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if sections[:1] != [version]:
        found.append(f"CHANGELOG.md begins with a section for {sections[0]}, pyproject.toml has {version}")
    if sections != sorted(set(sections), key=lambda one: [*map(int, one.split("."))], reverse=True):
        found.append("CHANGELOG.md: its versions are not in order, the newest first")
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD", "v*"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return found + [
        f"this commit is {tag}, pyproject.toml has {version}" for tag in tags.stdout.split() if tag != f"v{version}"
    ]


def foreign_installs() -> list[str]:
    """Lines that have pip fetch somebody else's gpushare, and another name of ours than pyproject.toml's."""
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    found = []
    for path in tracked():
        if path.suffix not in (".c", ".h", ".svg") and path != Path(__file__).resolve():
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if FETCHED.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number} names gpushare to pip: {name} is ours")
    if f'DISTRIBUTION = "{name}"\n' not in (ROOT / "gpushare/__init__.py").read_text():
        found.append(f"gpushare/__init__.py: DISTRIBUTION is not {name}, as in pyproject.toml")
    return found


def crowded(paths: Iterable[Path]) -> list[str]:
    """Folders with too many files. `paths`: of files, from the root of the tree."""
    names = [path for path in paths if path.parts[0] in CAPPED and path.name != "__init__.py"]
    counts = Counter(name.parent.as_posix() for name in names)
    return [
        f"{folder} has {count} files, {FILES_MAX} at most: give it rooms"
        for folder, count in sorted(counts.items())
        if count > FILES_MAX
    ]


def problems() -> list[str]:
    found = lost_names() + wide_prose() + misnamed_fragments() + unlike_editorconfig() + other_versions()
    found += foreign_installs()
    found += words.problems()
    found += crowded(path.relative_to(ROOT) for path in tracked())
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        most = PRODUCT_LINES_MAX if path.suffix == ".py" and name.startswith("gpushare/") else LINES_MAX
        if (
            name not in GENERATED
            and path.suffix in (".py", ".c", ".h")
            and (lines := len(path.read_text().splitlines())) > most
        ):
            found.append(f"{name} has {lines} lines, {most} at most")
        if path.suffix == ".py" and name.startswith("gpushare/") and name != "gpushare/node/nvml.py":
            for line in path.read_text().splitlines():
                if re.match(r"\s*(import|from) pynvml", line) and name != "gpushare/node/probe.py":
                    found.append(f"{name} imports pynvml: only gpushare/node/nvml.py and probe.py may")
    try:
        if published.is_stale(ROOT):
            again = "`bench/gpu/run --merge` of that result writes it"
            found.append(f"{published.PAGE}: its block of real GPUs is not what bench/results gives: {again}")
    except ValueError as error:
        found.append(str(error))
    return found


if __name__ == "__main__":
    messages = problems()
    print("\n".join(messages) or "check: ok")
    sys.exit(bool(messages))
