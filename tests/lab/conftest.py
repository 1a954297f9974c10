"""A browser, and the laboratory's page in it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from upweight.lab.page import PageParameters, run

OpenPage = Callable[..., Any]

WINDOWS = [(width, scheme) for width in (390, 820, 1400) for scheme in ("light", "dark")]

QUICK = "ratio.answers=16&ratio.lengths=20,40&mismatch.batches=4&kl.samples=1000"
"""A state that is drawn at once, for tests of something else than its numbers."""


@pytest.fixture(scope="module")  # no longer: its event loop runs in this thread, where other tests start their own
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright, which drives a browser, is not installed")
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
def windows(browser: Any, page_file: Path) -> Iterator[OpenPage]:
    """Open the page from disk in windows of their own; none may complain or ask for anything but its file."""
    problems: list[str] = []
    contexts = []

    def open_one(state: str = QUICK, *, width: int = 1000, scheme: str = "light") -> Any:
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
def open_page(browser: Any, page_file: Path) -> Iterator[OpenPage]:
    """Opens the page anew, in the state given."""
    with windows(browser, page_file) as open_one:
        yield open_one


@pytest.fixture(scope="module")
def lab_page(browser: Any, page_file: Path) -> Iterator[Any]:
    """One page for tests that set all they need."""
    with windows(browser, page_file) as open_one:
        yield open_one()


@pytest.fixture(scope="module", params=WINDOWS, ids=lambda item: f"{item[0]}-{item[1]}")
def window(request: pytest.FixtureRequest, browser: Any, page_file: Path) -> Iterator[tuple[Any, int, str]]:
    """The page in a window of each width and scheme."""
    width, scheme = request.param
    with windows(browser, page_file) as open_one:
        yield open_one(width=width, scheme=scheme), width, scheme


def settle(page: Any) -> None:
    """Wait until every panel is drawn."""
    from playwright import sync_api

    sync_api.expect(page.locator("section[aria-busy=false]")).to_have_count(6, timeout=15_000)
