"""Numbers that README and docs quote are those of the last benchmarks and verifications, and of their own tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import claims_tables
import verdicts

# page, the sentence with its number, the benchmark and the row that it comes from
QUOTED = [
    (
        "README.md",
        r"a whole run takes ([\d.]+) times as long as a bare PyTorch loop",
        "running",
        "time: a run / a bare loop",
    ),
    ("README.md", r"the default probes take (\d+)% of it", "probes", "fraction of a run of 2,000 steps, as timed"),
    (
        "plugins/stagelens_markov/README.md",
        r"A training step is ([\d.]+) times as fast at the paper's size",
        "markov",
        "paper: direct einsum / lookups, per training step",
    ),
    (
        "plugins/stagelens_markov/README.md",
        r"and ([\d.]+) times at the\nquick size",
        "markov",
        "quick: direct einsum / lookups, per training step",
    ),
]


@pytest.mark.parametrize(("page", "sentence", "benchmark", "row"), QUOTED)
def test_a_quoted_number_is_the_measured_one(page, sentence, benchmark, row):
    quoted = re.search(sentence, text_of(page))
    assert quoted, f"{page} does not say {sentence!r}"
    rows = json.loads(text_of(f"benchmarks/results/{benchmark}.json"))["rows"]
    (found,) = [one["found"] for one in rows if one["what"] == row]
    digits = len(quoted[1].partition(".")[2])
    assert float(quoted[1]) == round(found * (100 if "%" in sentence else 1), digits)


def test_the_readme_says_what_a_measurement_costs():
    rows = json.loads(text_of("benchmarks/results/probes.json"))["rows"]
    passes = [row["found"] for row in rows if row["unit"] == "forward passes"]
    said = f"A measurement takes\n  {min(passes):.1f} to {max(passes):.1f} forward passes, most in the smallest models"
    assert said in text_of("README.md") and passes[0] == max(passes)  # the first row is the smallest model


def test_readme_and_docs_count_the_claims():
    assert claims_tables.counts() == text_of("README.md"), "run python docs/claims_tables.py"
    count = sum(len(verdicts.load(plugin, "quick")) for plugin in verdicts.PAPERS)
    assert f"each of the {count} claims" in text_of("docs/index.md")


NO_MEASUREMENTS = (
    r"0\.\.1, 1\.\.2, \.\.\.",
    "95% confidence intervals",
    r"(Zhang|Yüksel|anonymous|Wang|Zucchet)[^|]*? 20\d\d, ",
    "GPT-2",
    r"3\.9 is the tested version\. With 4, which",
    "rank 0 measures",
    r"Python 3\.11 or newer",
)
OF_THE_CLAIMS = (r"\d+ of \d+ hold", r"there are \d+, which took \d+ minutes of one core")
OF_THE_PROBES = (r"[\d.]+ to [\d.]+ forward passes",)


def test_every_number_in_the_text_of_the_readme_is_checked():
    text = prose_of("README.md")
    sentences = [sentence for page, sentence, *_ in QUOTED if page == "README.md"]
    for pattern in (*sentences, *OF_THE_CLAIMS, *OF_THE_PROBES, *NO_MEASUREMENTS):
        text, count = re.subn(pattern, "", text)
        assert count, f"README.md has no {pattern!r} any more"
    assert re.findall(r"[^\n]*\d[^\n]*", text) == []


def test_the_readme_names_the_versions_of_the_project():
    assert 'requires-python = ">=3.11"' in text_of("pyproject.toml")
    assert re.search(r"^transformer-lens==3\.9\b", text_of("constraints.txt"), re.MULTILINE)


# Decimal numbers in the text of a paper's page that no claim measures. Each is next to how it was found.
FOUND_OTHERWISE = {
    "markov": ["8.2", "28.9", "9.63", "9.86"],  # seconds of a training step; numbers measured apart, with their command
    "recall": [
        *("0.65", "0.642"),  # the bet of a transformer, and its formula
        *(".729", ".632", ".454", ".628", ".352", ".713", ".629", ".376", ".23"),  # the table of levels, seeds 0 to 2
        *("1.321", "1.081", ".520", "1.367", "1.116", "1.320", "1.096", ".593", "1.311", "1.093", ".540", ".34"),
        *(".002", ".004", ".006", ".366", ".756", "1.074", "0.5201", "0.5199"),
    ],
    "rich": ["3.11", "1.29", "3.64", "3.80", "4.90", "2.01"],
    "emergence": ["2.1", "363.6", "362.1", "185.5"],
    "linear-icl": ["0.197"],  # a rate, from the settings
}


@pytest.mark.parametrize("plugin", verdicts.PAPERS)
def test_decimal_numbers_of_a_papers_page_are_those_of_its_verdicts(plugin):
    """Rounded to the digits of the page, some number of this paper's claims, of any budget, is the same."""
    found = [n for budget in verdicts.BUDGETS for one in verdicts.load(plugin, budget).values() for n in numbers(one)]
    page = f"plugins/stagelens_{verdicts.PAPERS[plugin]}/README.md"
    text = re.sub(r"<!-- claims.*?end of claims -->|\[arXiv:[\d.]*|section [\d.]+", "", prose_of(page), flags=re.DOTALL)
    written = re.findall(r"(?<![\w.,^])(\d*\.\d+)(%?)(?!\w)", text)
    wrong = {number for number, percent in written if not occurs(number, 100 if percent else 1, found)}
    assert wrong <= set(FOUND_OTHERWISE[plugin])
    assert set(FOUND_OTHERWISE[plugin]) <= {number for number, _ in written}


def occurs(number: str, scale: int, found: list[float]) -> bool:
    digits = len(number.partition(".")[2])
    return any(round(abs(one) * scale, digits) == float(number) for one in found)


def numbers(value: object) -> Iterator[float]:
    """The numbers in the checks of a claim, also those within texts."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, str):
        yield from map(float, re.findall(r"-?\d*\.?\d+(?:e-?\d+)?", value))
    elif isinstance(value, int | float):
        yield float(value)


def prose_of(path: str) -> str:
    """The text of a page without code, addresses and parentheses that hold one word."""
    text = re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
    return re.sub(r"\]\([^)]*\)|\([^)\s]*\)", "", re.sub(r"`[^`]*`", "", text))


def test_spare_heads_are_as_much_faster_as_the_table_says():
    page = text_of("docs/spare-heads.md")
    rows = re.findall(r"^\| (\d) \| (\d) \| [\d, ]+ \| ([\d., ]+) \|$", page, re.MULTILINE)
    times = {(heads, seed): [float(part) for part in row.split(",")] for heads, seed, row in rows}
    for feature, words in ((1, "feature 2 six to ten times sooner"), (2, "feature 3 six to seventeen times sooner")):
        ratios = sorted(times["3", seed][feature] / times["6", seed][feature] for seed in "012")
        named = {"six": 6, "ten": 10, "seventeen": 17}
        low, high = (named[word] for word in re.findall("|".join(named), words))
        assert words in page and (low, high) == (round(ratios[0]), round(ratios[-1])), ratios


def test_nothing_says_what_is_not_so():
    """Sentences that were wrong: each would mislead a reader who follows it."""
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    source = [*ROOT.glob("toolkit/**/*.py"), *ROOT.glob("plugins/**/*.py"), *ROOT.glob("docs/notebooks/*.ipynb")]
    wrong = {
        "'stagelens[": "the package is not on an index: pip would find nothing, or somebody else's",
        "pip install stagelens": "the package is not on an index",
        "--quiet stagelens": "the package is not on an index",
        "--probes head_ablation": "it replaces the default probes; +head_ablation adds to them",
        "Nothing is ever unpickled": "torch.load(weights_only=True) unpickles",
        "All plugins have the same files": "a plugin leaves out what it does not need",
        "seed0/wandb/": "a second run has another directory",
    }
    for path in [*pages, *source]:
        text = path.read_text(encoding="utf-8")
        for words, why in wrong.items():
            assert words not in text, f"{path}: {words!r}: {why}"


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
