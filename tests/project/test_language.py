"""Plain English: docstrings, comments, messages and docs use standard terms, and sentences in docstrings are short."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("toolkit", "probes", "plugins", "benchmarks", "docs", "tests", ".ci")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "plugins", "tests", "benchmarks")
TEMPLATES = ("toolkit/stagelens/cli/templates", "toolkit/stagelens/report/templates")
SETTINGS = ("Makefile", "pyproject.toml", "mkdocs.yml", ".github")  # their comments and texts
NOT_OURS = ("frozen_plugin", "old_runs", "__pycache__")  # a plugin and runs of an earlier version
LONGEST = 25  # words of a sentence in a docstring or on a page
# Pages whose sentences are not checked: they are generated from texts of plugins, or have not been rewritten yet.
LONG_PAGES = ("docs/gallery.md", "docs/stages.md", "docs/speed.md", "benchmarks/speed.md", "docs/reference/")

# A home-made term -> what to write, a sentence that must be found, and one in which the word has its ordinary sense.
TERMS = {
    r"(?:is|are|was|were|be|been|not) told|told (?:in|at|of)": (
        "reports, raises, prints",
        "A wrong key is told in one line.",
        "The two colours can be distinguished.",
    ),
    r"(?:say|says|said) so": ("reports, states", "A probe that fails says so.", "The header says what it has."),
    r"mend(?:s|ed|ing)?": ("fix", "The report says how to mend it.", "An amendment."),
    r"(?:is|are|was|were|be) kept|kept (?:as|up to|there)": (
        "stored, cached",
        "The runs are kept in the cache.",
        "Axes and texts keep their size.",
    ),
    r"strangers?|foreign": ("untrusted, third-party", "A foreign plugin can do the same.", "A third-party plugin."),
    r"tortur\w+": ("stress test, fault injection", "`make` tortures it.", "Stress tests."),
    r"(?:an?|another|first|short|timed) look at|(?:heads?|probes?|recorders?|queries) looks? at|looks of": (
        "attend (a head), measure (a probe)",
        "The head looks at the first key.",
        "Look at the figure.",
    ),
    r"stands? (?:beside|next|above|below|between|before|at|in|for|there)|(?:as|where) (?:it|they) stands?": (
        "is, represents",
        "The name stands above the axis.",
        "A drop that stands out against noise.",
    ),
    r"beside": ("next to, in addition to", "The legend is beside the panel.", "Besides, it has a legend."),
    r"(?:go|goes|went|going|gone) on": ("resumes, continues", "The run goes on.", "The figure goes onto the page."),
    r"(?:loss|curve|run|series|which|that) rests|rests (?:at|on|of)|between the rests": (
        "is on a plateau, plateaus",
        "The loss rests at this level.",
        "The rest of the steps.",
    ),
    r"hurr(?:y|ies|ied)": ("accelerates", "The heads hurry.", "Fast."),
    r"(?:heads?|curves?|runs?) parts?": ("diverge, separate", "Then the heads part.", "The first part of a run."),
    r"doors?": ("entry point", "Plugins come in through one door.", "Indoor."),
    r"folders? of runs|runs folder": ("runs directory", "A folder of runs.", "The folder of a plugin."),
    r"pictures?": ("figure, chart", "It draws a picture of the run.", "A figure of the run."),
    r"(?:trained|seeds|recorders|looking) as one": ("vectorized seeds", "Six seeds as one.", "One check for all."),
    r"(?:fast|slow|own) way|fast (?:path|forward)(?! path)": (
        "fused forward path, TransformerLens' own forward pass",
        "The fast way has no hooks.",
        "A fast model has no hooks.",
    ),
    r"hidden keys?": ("masked key", "Scores of hidden keys are -inf.", "A hidden layer."),
    r"whole numbers?": ("integer", "Give a whole number.", "The whole model."),
    r"even (?:spacing|grid|steps|distances)": ("uniform", "At even distances.", "Evenly spaced."),
    r"(?:single|double) precision": ("float32, float64", "In single precision.", "A single number."),
    r"machine's (?:own )?faults?|faults? of the machine": ("environment error", "It is the machine's fault.", "Disk."),
    r"(?<!\.)scenes?": ("probe context", "What the scene holds.", "The module stagelens.scene."),
    r"(?<!auto)correlated noise": ("autocorrelated noise", "In correlated noise.", "In autocorrelated noise."),
    r"decades?": ("factor of ten, log10", "Over three decades.", "Over three factors of ten."),
    r"outlook": ("the reference flow", "The outlook of a run.", "The reference flow."),
    r"nobody|somebody|anybody(?:'s)?|whoever": ("say who acts", "Nobody reads it.", "No probe reads it."),
}
# Public functions and classes without a docstring of their own, each with the reason.
WITHOUT = {
    "toolkit/stagelens/api.py Recorder": "it has the docstring of the class that it extends",
    "toolkit/stagelens/cli/main.py setup": "typer would print it as the help of `stagelens`",
}
PATTERNS = {term: re.compile(rf"\b(?:{term})\b", re.IGNORECASE) for term in TERMS}

# A word in its ordinary sense, or a name that is public: the end of a path, and a part of the line.
ALLOWED = (
    ("markov/flow.py", "heads part"),  # the name of an event
    ("markov/claims/measures.py", "heads part"),
    ("cli/doctor.py", "runs folder"),  # a name in `stagelens doctor --json`
)


def files(places: tuple[str, ...], suffix: str) -> Iterator[Path]:
    """Yields the files with this suffix at `places`, without those of earlier versions."""
    for place in places:
        start = ROOT / place
        for file in sorted(start.rglob(f"*{suffix}")) if start.is_dir() else [start]:
            if file.suffix == suffix and not set(file.relative_to(ROOT).parts) & set(NOT_OURS):
                yield file


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def prose_of_code(source: str, messages: bool = True) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of docstrings and comments and, with `messages`, of all other texts with a space."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    tree = ast.parse(source)
    texts = list(docstrings(tree))
    if messages:
        texts = [(n.lineno, n.value) for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is str]
    for start, text in texts:
        for offset, line in enumerate(text.splitlines()):
            if " " in line:
                yield start + offset, line


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of a Markdown page without its code blocks."""
    in_block = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block:
            yield number, line


def sentences_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line, sentence) of a Markdown page: of its paragraphs and list items, without tables."""
    paragraph, start = "", 0
    for line, content in [*prose_of_page(text), (0, "")]:
        if not content.strip() or re.match(r"\s*(?:[-*>#|!]|\d+\.) ?", content):
            plain = re.sub(r"\]\([^)]*\)", "]", paragraph).replace("[", "").replace("]", "")  # links are their texts
            yield from ((start, sentence) for sentence in _split(plain))
            paragraph, start = "", line
        if not content.lstrip().startswith("|"):
            paragraph += " " + content.strip().lstrip("-*># ")


def home_made(text: str) -> list[str]:
    """Returns the home-made terms in a text, outside of inline code."""
    plain = re.sub(r"`[^`]*`", "X", text)
    return [found[0] for pattern in PATTERNS.values() if (found := pattern.search(plain))]


def all_prose() -> Iterator[tuple[Path, int, str]]:
    """Yields (file, line, text) of all prose of the project."""
    for file in files(CODE, ".py"):
        if file != Path(__file__):
            messages = file.relative_to(ROOT).parts[0] != "tests"
            yield from ((file, *found) for found in prose_of_code(file.read_text(encoding="utf-8"), messages))
    for file in files(PAGES, ".md"):
        yield from ((file, *found) for found in prose_of_page(file.read_text(encoding="utf-8")))
    others = [file for suffix in (".j2", ".html") for file in files(TEMPLATES, suffix)]
    others += [file for suffix in ("", ".toml", ".yml", ".md") for file in files(SETTINGS, suffix) if file.is_file()]
    for file in others:
        yield from ((file, *found) for found in prose_of_page(file.read_text(encoding="utf-8")))


def sentences(docstring: str) -> Iterator[str]:
    """Yields the sentences of a docstring. Code, tables and the names of arguments are left out."""
    paragraph: list[str] = []
    for line in [*docstring.splitlines(), ""]:
        starts = re.match(r"\s*(?:[-*] |\d+\. |[|#>`]|\w+(?:, \w+)*: |Args:|:\w+)", line)
        if starts or not line.strip() or re.match(r"\s{4,}\S.*(?:  #|[=(\[{].*[)\]}]$|  )", line):
            yield from _split(" ".join(paragraph))
            paragraph = []
        if line.strip() and not re.match(r"\s*[|`>]|\s{4,}\S.*(?:  |[=(\[{].*[)\]}]$)", line):
            paragraph.append(line[starts.end() :] if starts else line.strip())


def _split(paragraph: str) -> list[str]:
    plain = re.sub(r"`[^`]*`", "X", paragraph)
    return re.split(r"(?<=[.!?])\s+(?=[^a-z])|;\s", plain)


def words(sentence: str) -> int:
    """Returns the number of words, without symbols, shapes and numbers."""
    return len(re.findall(r"(?<!\S)[\"'(]*[A-Za-z][A-Za-z'-]+", re.sub(r"\[[^\]]*\]", "", sentence)))


def test_prose_has_no_home_made_terms() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {term!r} in {text.strip()!r}"
        for file, line, text in all_prose()
        for term in home_made(text)
        if not any(str(file).endswith(end) and part in text for end, part in ALLOWED)
    ]
    assert not found, "\n".join(found)


def test_every_exception_is_needed() -> None:
    lines = [(str(file), text) for file, _, text in all_prose() if home_made(text)]
    assert [one for one in ALLOWED if not any(file.endswith(one[0]) and one[1] in text for file, text in lines)] == []


@pytest.mark.parametrize("term", TERMS)
def test_each_term_is_found_in_its_home_made_sense_only(term) -> None:
    _, wrong, right = TERMS[term]
    assert PATTERNS[term].search(wrong)
    assert not PATTERNS[term].search(right)


def test_terms_are_found_in_docstrings_comments_messages_and_pages() -> None:
    source = '"""Mended."""\nx = 1  # it says so\n\n\ndef f():\n    raise ValueError(f"{x} is a whole number")\n'
    assert [term for _, text in prose_of_code(source) for term in home_made(text)] == [
        "says so",
        "whole number",
    ]  # `Mended.` has no space, so it is no prose
    page = "The run `goes on`.\n```\nthe run goes on\n```\nThe run goes on.\n"
    assert [(line, home_made(text)) for line, text in prose_of_page(page) if home_made(text)] == [(5, ["goes on"])]


def undocumented(path: Path) -> Iterator[str]:
    """Yields the module, and the public functions and classes at its top level, that have no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    if not ast.get_docstring(tree):
        yield name
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            is_hook = any("hookimpl" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not is_hook and not ast.get_docstring(node):
                yield f"{name} {node.name}"


def test_every_module_class_and_public_function_has_a_docstring(tmp_path) -> None:
    code = files(("toolkit", "probes", "plugins"), ".py")
    assert {one for path in code for one in undocumented(path)} == set(WITHOUT)
    (tmp_path / "plain.py").write_text("def f():\n    return 1\n\n\ndef _g():\n    return 2\n", encoding="utf-8")
    assert list(undocumented(tmp_path / "plain.py")) == ["plain.py", "plain.py f"]


def test_sentences_in_docstrings_are_short() -> None:
    long = [
        f"{file.relative_to(ROOT)}:{line}: {words(sentence)} words: {sentence}"
        for file in files(CODE, ".py")
        for line, text in docstrings(ast.parse(file.read_text(encoding="utf-8")))
        for sentence in sentences(text)
        if words(sentence) > LONGEST
    ]
    assert not long, "\n".join(long)


def test_sentences_on_pages_are_short() -> None:
    pages = {file: file.relative_to(ROOT).as_posix() for file in files(PAGES, ".md")}
    long = [
        f"{name}:{line}: {words(sentence)} words: {sentence}"
        for file, name in pages.items()
        if not name.startswith(LONG_PAGES)
        for line, sentence in sentences_of_page(file.read_text(encoding="utf-8"))
        if words(sentence) > LONGEST
    ]
    assert not long, "\n".join(long)
    long = "word " * 26
    page = f"Short.\nA {long}here.\n\n| {long} |\n\n- One [link]({long}).\n```\n{long}\n```\n"
    assert [(line, words(one)) for line, one in sentences_of_page(page) if words(one) > LONGEST] == [(0, 27)]


def test_a_long_sentence_is_found_and_code_is_not_counted() -> None:
    long = "Returns " + "one and " * 15 + "more."
    assert [words(sentence) for sentence in sentences(long)] == [32]
    assert max(map(words, sentences(f"Short.\n\n    x = f({'a, ' * 40}b)\n\nAlso short."))) <= 2
    assert list(sentences("Args:\n    one: The first.\n    two: The second; and more.")) == [
        "",
        "",
        "The first.",
        "The second",
        "and more.",
    ]
