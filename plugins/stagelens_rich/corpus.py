"""Text as tokens: a file, a folder of files, wikitext-2, or the English prose that Python itself carries."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stagelens.base import EnvironmentFault, UsageError

PYTHON, WIKITEXT = "python", "wikitext-2"
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"  # of the dataset on the hub: what is there may change
UNKNOWN, END = "<unk>", "<eos>"  # as they are written in wikitext-2
WORD = re.compile(r"\w+|[^\w\s]")  # a word, or a mark of punctuation
PARTS = 10  # of each tenth of a text, the last tenth is held out
INSTEAD = "give --set corpus=PATH, a utf-8 text file or a folder of them"

Words = Sequence[str]


@dataclass(frozen=True)
class Corpus:
    """A text as tokens, int64 [token]: what is trained on, and what is held out. `words[token]` is a token's word."""

    words: tuple[str, ...]
    train: Tensor
    held_out: Tensor


def load_corpus(name: str, limit: int, length: int) -> Corpus:
    """The corpus `name` with a vocabulary of at most `limit` words, long enough for contexts of `length` tokens.

    The vocabulary is that of the training part: the unknown word, then the most frequent ones. A word beyond the limit,
    or in the held-out part alone, is the unknown word.
    """
    train, held_out = wikitext_2() if name == WIKITEXT else split(words_of(name))
    if min(len(train), len(held_out)) < length:
        raise UsageError(
            f"corpus {name} has {len(train)} words to train on and {len(held_out)} that are held out; "
            f"a context and its next word take {length} of each: give a longer text or a smaller L"
        )
    words = vocabulary(train, limit)
    tokens = {word: token for token, word in enumerate(words)}
    return Corpus(words, encode(train, tokens), encode(held_out, tokens))


def vocabulary(words: Iterable[str], limit: int) -> tuple[str, ...]:
    """The unknown word and the `limit` - 1 most frequent others, the more frequent first, equals by alphabet."""
    counts = Counter(words)
    counts.pop(UNKNOWN, None)  # wikitext-2 has it in its text
    return (UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))[: limit - 1])


def encode(words: Words, tokens: dict[str, int]) -> Tensor:
    """Tokens, int64 [token]; the unknown word is token 0."""
    return torch.tensor([tokens.get(word, 0) for word in words])


def split(words: Words) -> tuple[list[str], list[str]]:
    """Words to train on, and those held out: the last tenth of each tenth of the text, so that both are like the whole.

    A file's end, or a folder's last files, may be about something else.
    """
    train: list[str] = []
    held_out: list[str] = []
    for part in range(PARTS):
        piece = words[part * len(words) // PARTS : (part + 1) * len(words) // PARTS]
        cut = len(piece) - len(piece) // PARTS
        train += piece[:cut]
        held_out += piece[cut:]
    return train, held_out


def words_of(name: str) -> list[str]:
    """The words of Python's prose, or of the file or folder `name`."""
    words = WORD.findall(python_prose() if name == PYTHON else read_text(Path(name)))
    if not words:
        raise UsageError(f"corpus {name} is empty: there is no word in it; {INSTEAD}")
    return words


def python_prose() -> str:
    """The topics of Python's language reference (`help("...")`), each paragraph once: topics share whole sections."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise EnvironmentFault(f"this Python came without its help texts (pydoc_data); {INSTEAD}") from None
    paragraphs = (paragraph for _, topic in sorted(topics.items()) for paragraph in topic.split("\n\n"))
    return "\n\n".join(dict.fromkeys(map(_without_rules, paragraphs)))


def _without_rules(paragraph: str) -> str:
    """`paragraph` without the lines that only underline a heading or frame a table."""
    return "\n".join(line for line in paragraph.splitlines() if re.search(r"\w", line))


def read_text(place: Path) -> str:
    """The text of a file, or of all files in a folder and its folders, by name; hidden ones are left out."""
    if place.is_dir():
        inside = (path for path in sorted(place.rglob("*")) if path.is_file())
        files = [path for path in inside if not any(p.startswith(".") for p in path.relative_to(place).parts)]
        if not files:
            raise UsageError(f"corpus {place} is a folder without files; {INSTEAD}")
        return "\n\n".join(map(_read_file, files))
    if not place.exists():
        raise UsageError(f"corpus {place} does not exist; {INSTEAD}, or corpus={PYTHON} or corpus={WIKITEXT}")
    return _read_file(place)


def _read_file(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"corpus {file} cannot be read ({error.strerror}); {INSTEAD}") from None
    if b"\0" in data:
        raise UsageError(f"corpus {file} is binary or utf-16, not utf-8 text; leave it out or save it as utf-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"byte 0x{data[error.start]:02x} at {error.start}"
        raise UsageError(f"corpus {file} is not utf-8 text ({where}); leave it out or save it as utf-8") from None


def wikitext_2() -> tuple[list[str], list[str]]:
    """wikitext-2's own training and validation words; each line ends in <eos>, which makes 33278 different ones."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(
            f"corpus {WIKITEXT} needs the package datasets: pip install 'stagelens[text]'; or {INSTEAD}"
        ) from None
    try:
        with _quiet("huggingface_hub"):  # it tells of each of its attempts
            parts = load_dataset("Salesforce/wikitext", "wikitext-2-v1", revision=REVISION)
    except (OSError, ValueError) as error:  # no network, or offline; offline with other parts of the dataset kept
        reason = " ".join(str(error).split())[:150]
        raise EnvironmentFault(
            f"corpus {WIKITEXT} could not be downloaded ({reason}); try where there is a network, or {INSTEAD}"
        ) from None
    train, held_out = (
        [word for line in parts[part]["text"] for word in (*line.split(), END)] for part in ("train", "validation")
    )
    return train, held_out


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without the warnings of the logger `name`."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
