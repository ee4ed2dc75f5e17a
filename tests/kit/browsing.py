"""HTML pages in a real browser: what they draw, log to the console, and request."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser():
    """Chromium, started for the tests of one file."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium to open the pages with")
    quiet = ["background-networking", "component-update", "sync", "quic", "gpu", "default-apps", "extensions"]
    options = ["--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet)]
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=options)
        yield opened
        opened.close()


class Opened:
    """A page in the browser, with its console messages and requests."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.page = browser.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_selector("#chart .main-svg")

    def choose(self, control: str, label: str) -> None:
        self.page.select_option(f"#chart-{control}", label=label)

    @property
    def drawn(self) -> list[dict[str, Any]]:
        """The traces in the chart: name, x and y."""
        script = "document.getElementById('chart').data.map((t) => ({name: t.name, x: t.x, y: t.y}))"
        traces: list[dict[str, Any]] = self.page.evaluate(script)
        return traces

    @property
    def paths(self) -> list[str]:
        """The lines as the browser drew them."""
        script = "[...document.querySelectorAll('#chart .scatterlayer path.js-line')].map((p) => p.getAttribute('d'))"
        found: list[str] = self.page.evaluate(script)
        return found

    def close(self) -> None:
        """Asserts that there is no console message, and no request but that for the page."""
        self.page.close()
        assert self.complaints == []
        assert len(self.requests) == 1 and self.requests[0].startswith("file:"), self.requests
