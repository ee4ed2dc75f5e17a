"""A run with only hostile texts: its pages are inert in a real browser, and a terminal shows letters only."""

from __future__ import annotations

import http.server
import re
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints
from xml.etree import ElementTree

import pytest

import stagelens as sl
from kit.browsing import Opened, browser  # noqa: F401
from kit.written_runs import STEPS, staircase, write_run
from stagelens.report.pages import write_comparison, write_report
from stagelens.runs import manifest

OWN = "window.owned=(window.owned||0)+1"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e[bold]x[/]"
MARKUP = f"<script>{OWN}</script>\"'><img src=x onerror={OWN}><a href=javascript:{OWN}>javascript:{OWN}</a>"
HOSTILE = MARKUP + ESCAPES
FOLDER = (f'"><img src=x onerror={OWN}>{ESCAPES}').replace("/", "|").replace("\r", "")  # a folder's name can hold these
KNOWN = {"status": "failed", "timeline": "", "format": 1}  # what must be right for a run to be opened


def poisoned(kind: Any) -> Any:
    """A value of a manifest's field that is hostile wherever it can be."""
    if kind is bool:  # pydantic refuses texts in it
        return False
    if kind is str:
        return HOSTILE
    if kind == manifest.Texts:
        return [HOSTILE, HOSTILE]
    if kind == manifest.NamedNumbers:
        return {HOSTILE: 1.0}
    if kind == manifest.NamedTexts:
        return {HOSTILE: HOSTILE}
    if kind == dict[str, Any]:
        return {HOSTILE: HOSTILE, "list": [HOSTILE, {HOSTILE: HOSTILE}]}
    if kind in (manifest.Rows, manifest.Rows | None):  # of stages, of theory, of phases
        texts = dict.fromkeys(("name", "reference", "series", "phase", "layer", "label"), HOSTILE)
        numbers = dict.fromkeys(("start", "end", "level", "drop", "expected", "measured", "error"), 1.0)
        return [texts | numbers | {"kind": "transition"}, texts | numbers | {"kind": HOSTILE}]
    raise AssertionError(f"a manifest has fields of a new kind, {kind}: say how it can be hostile")


NUMBERS = (manifest.Integer, manifest.Integer | None, manifest.Number, manifest.Number | None)
FIELDS = get_type_hints(manifest.Manifest, include_extras=True)
FIELDS = {one.name: FIELDS[one.name] for one in fields(manifest.Manifest)}
FIELDS = {name: kind for name, kind in FIELDS.items() if name not in KNOWN and kind not in NUMBERS}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two hostile runs; of one the metric is a hostile series too."""
    folder = tmp_path_factory.mktemp("hostile")
    curve = staircase(STEPS, (200, 600), (3.0, 2.0, 1.0))
    labelled = (STEPS % 2, (), (HOSTILE, "b"))
    series = {"loss": curve, HOSTILE: curve, f"{HOSTILE}/of": (curve[:, None] * [1, 2], ("head",)), "l": labelled}
    hostile = {name: poisoned(kind) for name, kind in FIELDS.items()} | {"seed": 0} | KNOWN
    write_run(folder, FOLDER, series, **hostile | {"metric": "loss"})
    write_run(folder, f"{FOLDER}2", series, **hostile | {"stages": None})
    return folder


@pytest.mark.parametrize("command", ["show", "runs", "stages", "compare", "compare both", "report", "export"])
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["table", "json"])
def test_a_terminal_is_shown_letters_only(runs, tmp_path, cli, command, words):
    command, _, both = command.partition(" ")
    names = [] if command == "runs" else [FOLDER, f"{FOLDER}2"] if both else [f"{FOLDER}2"]
    if command in ("report", "export"):
        words = ("-o", tmp_path / f"{ESCAPES.replace('/', '|')}.html", *words)
    answer = cli(command, *names, *words, "--runs", runs)
    assert answer.code == 0, answer.err
    assert [c for c in answer.out + answer.err if not (c.isprintable() or c == "\n")] == []
    assert "owned" in answer.out  # it was shown, as letters


@pytest.mark.parametrize(
    "words", [("show", "nobody\x1b[2J"), ("run", HOSTILE), ("show", FOLDER, "--runs", "no\x1b[2J")]
)
def test_a_complaint_is_letters_only_too(runs, cli, words):
    answer = cli(*words)
    assert answer.code == 2 and all(character.isprintable() or character == "\n" for character in answer.err)


@pytest.fixture(scope="module")
def pages(runs):
    """The page of one run, and of both."""
    one, two = (sl.load(name, runs) for name in (FOLDER, f"{FOLDER}2"))
    return [write_report(one), write_comparison([one, two])]


def test_a_page_of_hostile_texts_is_inert(browser, pages):
    for path in pages:
        opened = Opened(browser, path)
        page = opened.page
        for index in range(page.locator("#chart-series option").count()):
            page.select_option("#chart-series", index=index)
        assert page.evaluate("window.owned") is None
        assert page.locator("script").count() == 3  # plotly, ours, and the chart's data
        attributes = "[...document.querySelectorAll('*')].flatMap((e) => e.getAttributeNames())"
        assert [name for name in page.evaluate(attributes) if name.startswith("on")] == []
        links = page.evaluate("[...document.querySelectorAll('[href], [src]')].map((e) => e.href || e.src)")
        assert [link for link in links if not str(link).startswith(("data:image/png", "file:"))] == []
        assert "<script>" in page.inner_text("body")  # as letters
        opened.close()


def test_figures_of_hostile_texts_hold_no_script(pages):
    pictures = list((pages[0].parent / "figures").glob("*.svg"))
    assert pictures
    for file in pictures:
        elements = list(ElementTree.parse(file).iter())
        assert {"script", "img", "a", "foreignObject"}.isdisjoint(one.tag.rpartition("}")[2] for one in elements)
        attributes = {(name, value) for one in elements for name, value in one.items()}
        assert [name for name, value in attributes if name.startswith("on") or "javascript:" in value] == []


def running(name: str, where: str = "window") -> str:
    return f"({where}.owned ??= []).push(`{name}`)"


FETCHED = {
    "/x.js": "<script src={url}></script>",
    "/x.css": "<link rel=stylesheet href={url}>",
    "/x.png": "<img src={url}>",
    "/x": "<object data={url}></object>",
}
INJECTED = {
    "a script": "<script>{run}</script>",
    "a script in an address": "<script src='data:text/javascript,{run}'></script>",
    "a module": "<script type=module>{run}</script>",
    "a handler": "<img src=data:, onerror='{run}'>",
    "a handler of a drawing": "<svg onload='{run}'></svg>",
    "a page in the page": "<iframe srcdoc='<script>{run}</script>'></iframe>",
    "a link that is clicked": "<a class=press href='javascript:{run};void 0'>x</a>",
    "a handler that is clicked": "<b class=press onclick='{run}'>x</b>",
}
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


class Elsewhere(http.server.ThreadingHTTPServer):
    """A second server, which records the requests that it gets."""

    def __init__(self) -> None:
        asked = self.asked = set[str]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.add(self.path)
                self.send_error(404)

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


@pytest.fixture
def elsewhere():
    with Elsewhere() as server:
        yield server
        server.shutdown()


def attacked(browser: Any, path: Path, page: str, server: Elsewhere) -> tuple[Opened, list[str]]:
    """Opens the page in a browser with all injections, and returns those that were executed."""
    address = f"http://127.0.0.1:{server.server_port}"
    injected = [text.format(url=address + path) for path, text in FETCHED.items()]
    for name, text in INJECTED.items():
        injected.append(text.format(run=running(name, "parent" if "srcdoc" in text else "window")))
    path.write_text(page.replace("<h1>", "".join([*injected, "<h1>"]), 1), encoding="utf-8")
    opened = Opened(browser, path)
    for place in opened.page.locator(".press").all():
        place.click()
    opened.page.wait_for_timeout(200)
    return opened, opened.page.evaluate("window.owned ?? []")


def test_the_content_security_policy_blocks_injected_code(browser, pages, tmp_path, elsewhere):
    opened, ran = attacked(browser, tmp_path / "page.html", pages[0].read_text(encoding="utf-8"), elsewhere)
    assert ran == [] and elsewhere.asked == set()
    told = [complaint for complaint in opened.complaints if "Content Security Policy" in complaint]
    assert len(told) >= len(INJECTED) + len(FETCHED) - 1  # a frame inside the page reports itself
    assert opened.drawn  # the page itself still works
    opened.page.close()


def test_without_the_policy_the_injected_code_would_run(browser, pages, tmp_path, elsewhere):
    bare, found = POLICY.subn("", pages[0].read_text(encoding="utf-8"))
    assert found == 1
    opened, ran = attacked(browser, tmp_path / "page.html", bare, elsewhere)
    assert set(ran) == set(INJECTED) and elsewhere.asked == set(FETCHED)
    opened.page.close()
