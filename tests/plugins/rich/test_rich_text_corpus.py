"""The corpus of rich/text: which files are read, how the text is split, and the error messages."""

from __future__ import annotations

import math
import sys
from collections import Counter
from types import ModuleType

import pytest
import torch

from stagelens.base.errors import EnvironmentFault, UsageError
from stagelens_rich.data import corpus
from stagelens_rich.data.corpus import load_corpus
from stagelens_rich.data.ngrams import ngram_losses

SENTENCE = "the cat sat on the mat, and the dog sat too.\n"


@pytest.fixture
def story(tmp_path):
    file = tmp_path / "story.txt"
    file.write_text(SENTENCE * 40, encoding="utf-8")
    return file


def test_words_and_marks_are_tokens(story):
    loaded = load_corpus(str(story), 100, 5)
    assert set(loaded.words) == {"<unk>", "the", "cat", "sat", "on", "mat", ",", "and", "dog", "too", "."}
    assert " ".join(loaded.words[i] for i in loaded.train[:13]) == "the cat sat on the mat , and the dog sat too ."


def test_the_vocabulary_is_by_falling_frequency_and_equals_by_alphabet():
    words = ["b", "<unk>", "c", "a", "c", "<unk>", "<unk>"]
    assert corpus.vocabulary(words, 100) == ("<unk>", "c", "a", "b")
    assert corpus.vocabulary(words, 3) == ("<unk>", "c", "a")


def test_words_beyond_the_limit_are_unknown(story):
    loaded = load_corpus(str(story), 3, 5)
    assert loaded.words == ("<unk>", "the", "sat")
    assert loaded.train[:13].tolist() == [1, 0, 2, 0, 1, 0, 0, 0, 1, 0, 2, 0, 0]


def test_the_last_tenth_of_each_tenth_is_held_out():
    words = [str(i) for i in range(1000)]
    train, held_out = corpus.split(words)
    assert held_out == [str(i) for i in range(1000) if i % 100 >= 90]
    assert sorted(train + held_out, key=int) == words


def test_a_folder_is_read_file_by_file_in_order_without_hidden_ones(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.md").write_text("second", encoding="utf-8")
    (tmp_path / "a.txt").write_text("first", encoding="utf-8-sig")  # with a byte order mark
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(b"\0\1")
    assert corpus.words_of(str(tmp_path)) == ["first", "second"]


def test_the_default_is_pythons_own_prose_the_same_each_time():
    one, again = (load_corpus("python", 1000, 65) for _ in range(2))
    assert one.words == again.words
    assert torch.equal(one.train, again.train) and torch.equal(one.held_out, again.held_out)
    assert len(one.words) == 1000 and len(one.train) > 40_000 and len(one.held_out) > 4_000
    assert "the" in one.words[:10] and (one.train == 0).float().mean() < 0.15


def test_no_paragraph_of_the_default_comes_twice():
    """Held-out text must not occur in the training part, although topics share whole sections."""
    counts = Counter(corpus.python_prose().split("\n\n"))
    assert max(counts.values()) == 1 and len(counts) > 1000


# -- mistakes ----------------------------------------------------------------------------------------------------------


def written(folder, data):
    (folder / "text.txt").write_bytes(data)
    return folder / "text.txt"


WRONG = {
    "empty": (lambda t: written(t, b""), "is empty: there is no word in it"),
    "blank": (lambda t: written(t, b" \n\t\n"), "is empty: there is no word in it"),
    "binary": (lambda t: written(t, b"PK\3\4\0\0words"), "is binary or utf-16, not utf-8 text"),
    "utf-16": (lambda t: written(t, "words".encode("utf-16")), "is binary or utf-16, not utf-8 text"),
    "latin-1": (lambda t: written(t, "caf\u00e9 noir".encode("latin-1")), "is not utf-8 text (byte 0xe9 at 3)"),
    "missing": (lambda t: t / "nothing.txt", "does not exist; give --set corpus=PATH"),
    "bare folder": (lambda t: t, "is a folder without files"),
    "short": (lambda t: written(t, b"far too short " * 30), "has 90 words to train on and 0 that are held out"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_bad_corpus_gets_one_line_and_leaves_no_run(cli, tmp_path_factory, mistake):
    make, message = WRONG[mistake]
    said = cli("run", "rich/text", "--set", f"corpus={make(tmp_path_factory.mktemp('corpus'))}", "--runs", "here")
    assert said.code == 2 and message in said.complaint
    assert cli("runs", "--runs", "here", "--json").json == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("vocab=1", "config key 'vocab': got 1, input should be greater than or equal to 2"),
        ("L=1", "config key 'L': got 1"),
        ("sigma_init=0", "config key 'sigma_init': got 0"),
        ("corpus=", "config key 'corpus'"),
        ("train_size=100", "the corpus is the training set; give train_size=0"),
        ("D=7", "n_heads = 2 does not divide d_model = 7"),
    ],
)
def test_a_bad_setting_gets_one_line(cli, setting, message):
    said = cli("run", "rich/text", "--set", setting)
    assert said.code == 2 and message in said.complaint


def test_a_folder_names_the_file_that_is_no_text(tmp_path):
    (tmp_path / "good.txt").write_text(SENTENCE, encoding="utf-8")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0")
    with pytest.raises(UsageError, match=r"image\.png is binary"):
        corpus.words_of(str(tmp_path))


# -- wikitext-2 --------------------------------------------------------------------------------------------------------


def test_wikitext_without_its_package_says_what_to_install(cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    said = cli("run", "rich/text", "--preset", "paper")
    assert said.code == 2 and "pip install datasets" in said.complaint


def test_wikitext_without_a_network_is_reported(monkeypatch, tmp_path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        EnvironmentFault, match=r"wikitext-2 could not be downloaded .*; try again with a network"
    ) as told:
        corpus.wikitext_2()
    assert "\n" not in str(told.value)


def test_wikitext_has_its_own_parts_ends_of_lines_and_unknown_words(monkeypatch):
    """Replaces the download: two lines as in wikitext-2."""
    parts = {"train": {"text": [" = Title = \n", "", " a <unk> b b \n"]}, "validation": {"text": [" b c \n"]}}
    package = ModuleType("datasets")
    known = ("Salesforce/wikitext", "wikitext-2-v1", corpus.REVISION)
    package.load_dataset = lambda name, part, revision: parts if (name, part, revision) == known else {}
    monkeypatch.setitem(sys.modules, "datasets", package)
    loaded = load_corpus("wikitext-2", 33278, 3)
    assert loaded.words == ("<unk>", "<eos>", "=", "b", "Title", "a")
    assert [loaded.words[i] for i in loaded.train] == [
        "=",
        "Title",
        "=",
        "<eos>",
        "<eos>",
        "a",
        "<unk>",
        "b",
        "b",
        "<eos>",
    ]
    assert [loaded.words[i] for i in loaded.held_out] == ["b", "<unk>", "<eos>"]


# -- n-grams -----------------------------------------------------------------------------------------------------------


def test_ngram_losses_are_those_computed_by_hand():
    """a b a b a c with a, b, c = 1, 2, 3; judged are the third and the fourth token of a b a b."""
    losses = ngram_losses(torch.tensor([1, 2, 1, 2, 1, 3]), torch.tensor([1, 2, 1, 2]), 4)
    a, b = 3.75 / 9, 2.75 / 9  # (count + 3 words / 4) / (6 tokens + 3 words)
    b_after_a, a_after_b = (2 + 2 * b) / 5, (2 + a) / 3  # after a: b, b, c; after b: a, a
    b_after_ba, a_after_ab = (1 + 2 * b_after_a) / 4, (2 + a_after_b) / 3  # after b a: b, c; after a b: a, a
    expected = {"unigram": (a, b), "bigram": (a_after_b, b_after_a), "trigram": (a_after_ab, b_after_ba)}
    assert losses == pytest.approx({n: -sum(map(math.log, p)) / 2 for n, p in expected.items()}, rel=1e-12)


@pytest.mark.parametrize("context", [(1, 2), (3, 1), (0, 3), (4, 4)])
def test_ngram_probabilities_add_up_to_one_after_any_context(context):
    train = torch.randint(4, (60,), generator=torch.Generator().manual_seed(0))  # token 4 never occurs
    found = [ngram_losses(train, torch.tensor([*context, x]), 5) for x in range(5)]
    for name in ("unigram", "bigram", "trigram"):
        assert sum(math.exp(-losses[name]) for losses in found) == pytest.approx(1, rel=1e-12)


def test_each_longer_context_helps_on_text_that_needs_it():
    """a b c a d e a f: what follows an a depends on the word before it."""
    cycle = torch.tensor([1, 2, 3, 1, 4, 5, 1, 6])
    losses = ngram_losses(cycle.repeat(100), cycle.repeat(10), 7)
    assert losses["bigram"] == pytest.approx(3 / 8 * math.log(3), abs=0.03)  # three words can follow an a
    assert losses["trigram"] < 0.03 and losses["unigram"] == pytest.approx(
        -sum(n / 8 * math.log(n / 8) for n in (3, 1, 1, 1, 1, 1)), abs=0.03
    )
