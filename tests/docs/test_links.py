"""Links on the pages, as GitHub follows them: the file and the heading exist."""

import re
from collections import Counter
from pathlib import Path

import pytest
from views.pagecode import ROOT, pages

_FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2 *$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(prose(path)):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("\\", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(slug if not seen[slug] else f"{slug}-{seen[slug]}")
        seen[slug] += 1
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page):
    lost = []
    for link in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []
