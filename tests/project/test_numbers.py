"""Numbers that README and docs quote are those of the last benchmarks and verifications, and of their own tables."""

from __future__ import annotations

import json
import re

import pytest

from conftest import ROOT

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
        r"it is ([\d.]+) times as fast per training step at the paper's size",
        "markov",
        "paper: direct einsum / lookups, per training step",
    ),
    (
        "plugins/stagelens_markov/README.md",
        r"and ([\d.]+) times at the\nquick one",
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


def test_readme_and_docs_count_the_claims():
    results = [
        claim
        for name in ("markov", "linear-icl", "recall", "rich", "emergence")
        for claim in json.loads(text_of(f"docs/verified/{name}.json"))
    ]
    assert f"there are {len(results)}." in text_of("README.md")
    assert f"each of the {len(results)} claims" in text_of("docs/index.md")


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
