"""Adds to the site, below tree/, the parts of the tree outside docs/ that pages link to, so that a link such as
`../SECURITY.md` works on the site as on GitHub. Called by mkdocs (mkdocs.yml: hooks)."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS, TREE = "docs/", "tree/"
ROOTS = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "README.ja.md",
    "SECURITY.md",
    "bench/README.md",
)
"""Pages that the site has even if nothing links to them."""
PICTURES = (".svg", ".png")
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[`~]* *$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


def uri(name: str) -> str:
    """The path of a file or folder of the tree among the site's sources. `name`: relative to the tree."""
    if name.startswith(DOCS):
        return name.removeprefix(DOCS)
    if (ROOT / name).is_dir():
        return f"{TREE}{name}/index.md"
    return f"{TREE}{name}" if Path(name).suffix in (".md", *PICTURES) else f"{TREE}{name}.md"


def name_of(source: str) -> str:
    """The file in the tree of a page of the site."""
    return source.removeprefix(TREE) if source.startswith(TREE) else f"{DOCS}{source}"


def _target(name: str, link: str) -> str | None:
    """The file or folder of the tree that a link on the page `name` leads to; None if it leads elsewhere."""
    if re.match(r"[a-z]+:|/", link):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
    return found if not found.startswith("..") and (ROOT / found).exists() else None


def _prose(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and whether each is prose rather than code."""
    at = 0
    blocks = [match.span() for match in _FENCE.finditer(text)]
    inline = [match.span() for match in _CODE.finditer(text) if not any(a <= match.start() < b for a, b in blocks)]
    for begin, end in sorted([*blocks, *inline]):
        yield text[at:begin], True
        yield text[begin:end], False
        at = end
    yield text[at:], True


def links(name: str, text: str) -> Iterator[str]:
    """The files and folders of the tree that a page links to."""
    for piece, prose in _prose(text):
        for match in _LINK.finditer(piece) if prose else ():
            if (target := _target(name, match[2])) is not None:
                yield target


def rewritten(name: str, text: str) -> str:
    """A page's text, with links rewritten for the site."""

    def link(match: re.Match[str]) -> str:
        target = _target(name, match[2])
        if target is None:
            return match[0]
        there = posixpath.relpath(uri(target), posixpath.dirname(uri(name)) or ".")
        return f"{match[1]}{there}{match[3] or ''}{match[4]}"

    return "".join(_LINK.sub(link, piece) if prose else piece for piece, prose in _prose(text))


def _shown(name: str) -> str:
    """A file or folder that is not a page, as a page."""
    path = ROOT / name
    if path.is_dir():
        inside = sorted(one for one in path.iterdir() if one.is_file())
        return f"# {name}\n\n" + "".join(f"- [{one.name}]({one.name})\n" for one in inside)
    fence = "`" * 4
    return f"# {name}\n\n{fence}{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}{fence}\n"


def page(name: str) -> str:
    """The text of a page outside docs/, with links as in the tree."""
    return (ROOT / name).read_text() if name.endswith(".md") else _shown(name)


def _base(name: str) -> str:
    # Links on a folder's page are relative to the folder.
    return f"{name}/index.md" if (ROOT / name).is_dir() else name


def on_files(files: Files, config: Any) -> Files:
    """Adds what the pages of docs/ link to, directly or through other pages."""
    waiting = [*ROOTS]
    for file in files.documentation_pages():
        waiting += links(name_of(file.src_uri), file.content_string)
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name.startswith(DOCS) or name in seen:
            continue
        seen.add(name)
        if Path(name).suffix in PICTURES:
            files.append(File.generated(config, uri(name), abs_src_path=str(ROOT / name)))
            continue
        text = page(name)
        files.append(File.generated(config, uri(name), content=text))
        if name.endswith(".md") or (ROOT / name).is_dir():
            waiting += links(_base(name), text)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites the links of each page of the site."""
    return rewritten(name_of(page.file.src_uri), markdown)
