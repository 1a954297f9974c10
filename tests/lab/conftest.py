"""A browser, and the laboratory's page in it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from upweight.lab.page import PageParameters, run

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is not installed")

OpenPage = Callable[..., "sync_api.Page"]

QUICK = "ratio.answers=16&ratio.lengths=20,40&mismatch.batches=4&kl.samples=1000"
"""A state that is drawn at once, for tests of something else than its numbers."""


@pytest.fixture(scope="session")
def browser() -> Iterator["sync_api.Browser"]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "lab.html"
    run(PageParameters(out=str(file)))
    return file


@contextmanager
def windows(browser: "sync_api.Browser", page_file: Path) -> Iterator[OpenPage]:
    """Open the page from disk in windows of their own; none may complain or ask for anything but its file."""
    problems: list[str] = []
    contexts = []

    def open_one(state: str = QUICK, *, width: int = 1000, scheme: str = "light") -> "sync_api.Page":
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: problems.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: asked(request.url))
        page.goto(f"{page_file.as_uri()}#{state}")
        settle(page)
        return page

    def asked(url: str) -> None:
        if url.partition("#")[0] != page_file.as_uri():
            problems.append(f"asked for {url}")

    yield open_one
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def open_page(browser: "sync_api.Browser", page_file: Path) -> Iterator[OpenPage]:
    """Opens the page anew, in the state given."""
    with windows(browser, page_file) as open_one:
        yield open_one


@pytest.fixture(scope="module")
def lab_page(browser: "sync_api.Browser", page_file: Path) -> Iterator["sync_api.Page"]:
    """One page for tests that set all they need."""
    with windows(browser, page_file) as open_one:
        yield open_one()


def settle(page: "sync_api.Page") -> None:
    """Wait until every panel is drawn."""
    sync_api.expect(page.locator("section[aria-busy=false]")).to_have_count(6, timeout=15_000)
