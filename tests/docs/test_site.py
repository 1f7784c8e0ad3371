"""The site builds without a warning, has no dead links, says what the pages say, and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import sync_playwright
from views.pagecode import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
RELATIONS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
COUNTED = ("li", "table", "tr", "pre", "h1", "h2", "h3", "blockquote")


class Page(HTMLParser):
    """A page's ids, links and loaded resources, and the number of tags in its article."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.tags: Counter[str] = Counter()
        self.code_tables = 0
        self._article = 0
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        said = dict(attrs)
        self._article += tag == "article"
        if self._article and tag in COUNTED:
            self.tags[tag] += 1
        if said.get("id"):
            self.ids.add(said["id"])
        if tag == "a" and said.get("href"):
            self.links.append(said["href"])
        if tag in LOADED and said.get(LOADED[tag]):
            self.loads.append(said[LOADED[tag]])
        if tag == "link" and RELATIONS & set((said.get("rel") or "").split()):
            self.loads.append(said["href"])

    def handle_endtag(self, tag):
        self._article -= tag == "article"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return directory


@cache
def read(path: Path) -> Page:
    return Page(path.read_text())


def documents(site: Path) -> list[Path]:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 60
    return found


def test_links_lead_somewhere(site):
    lost = []
    for path in documents(site):
        for link in read(path).links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if path.name == "404.html":
                continue  # its links are relative to where the site is served
            if not target.is_file() or (anchor and target.suffix == ".html" and anchor not in read(target).ids):
                lost.append(f"{path.relative_to(site)}: {link}")
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(site):
    foreign = [
        f"{path.relative_to(site)}: {load}"
        for path in documents(site)
        for load in read(path).loads
        if urlsplit(load).scheme not in ("", "data") or load.startswith("//")
    ]
    assert foreign == []
    for path in site.rglob("*.css"):
        assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)|@import[^;]*//[^;]*;", path.read_text()) == [], path
    for path in site.rglob("*.svg"):
        assert not re.search(r"(?:href|src)\s*=\s*[\"'](?:https?:)?//", path.read_text()), path


def test_the_site_shows_what_github_shows(site):
    """Both have the same number of list items, tables, rows, code blocks and headings: they parse Markdown
    differently."""
    github = MarkdownIt("gfm-like", {"linkify": False})
    unlike = []
    for path in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md"]):
        name = path.relative_to(ROOT)
        source = name.relative_to("docs") if name.parts[0] == "docs" else Path("tree", name)
        built = site / (source.with_name("index.md") if source.name == "README.md" else source).with_suffix(".html")
        there = Counter(re.findall(rf"<({'|'.join(COUNTED)})[ >]", github.render(path.read_text())))
        here = read(built).tags
        if difference := {tag: (there[tag], here[tag]) for tag in COUNTED if there[tag] != here[tag]}:
            unlike.append((str(name), difference))
    assert unlike == []


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield one
        one.close()


def test_in_a_browser_without_a_network(site, browser):
    """Opened from the file system: no request leaves the site, no error is logged, the search finds a page."""
    requests: list[str] = []
    errors: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name in ("index.html", "concepts/leases.html", "reference/api.html"):
        page.goto((site / name).as_uri())
        page.wait_for_load_state("networkidle")
    page.locator("input.md-search__input").click()
    page.keyboard.type("eviction")
    page.locator(".md-search-result__item a").first.wait_for()
    assert page.locator(".md-search-result__item a").count() > 1
    page.close()
    outside = [url for url in requests if not url.startswith((site.as_uri(), "data:", "blob:"))]
    assert (outside, errors) == ([], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_on_a_narrow_screen(site, browser, scheme):
    """Tables and code scroll on their own; the page does not scroll sideways."""
    page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    wide = ("index", "start/podman", "concepts/share", "reference/api", "reference/metrics", "security/promises")
    for name in (f"{page}.html" for page in wide):
        page.goto((site / name).as_uri())
        width = page.evaluate("document.scrollingElement.scrollWidth")
        assert width <= 360, (name, width)
    page.close()
