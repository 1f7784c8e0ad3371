"""Debian's Chromium, driven by Playwright. A warning or error on a page's console is a failure, and so is a violation
of its content security policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = "/usr/bin/chromium"
_QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--disable-extensions",
        "--metrics-recording-only",
    ),
    *(
        "--disable-features=OptimizationHints,MediaRouter,Translate",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ),
)
_VIOLATIONS = (
    "addEventListener('securitypolicyviolation', event => console.error('violates', event.violatedDirective));"
)


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=list(_QUIET))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, url: str, *, expected: tuple[str, ...] = (), **options: Any) -> Iterator[Page]:
    """A page in its own profile. `options`: of the profile, such as `color_scheme`. `expected`: parts of console
    messages that are not failures."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(30_000)
    context.add_init_script(_VIOLATIONS)
    page = context.new_page()
    answer: list[str] = []
    page.on("console", lambda message: answer.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: answer.append(str(error)))
    try:
        page.goto(url)
        yield page
        found = [text for text in answer if not any(part in text for part in expected)]
        assert not found, found
    finally:
        context.close()
