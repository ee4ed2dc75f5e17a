"""Text as tokens: a file, a directory of files, wikitext-2, or the English help texts of Python itself."""

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
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"  # of the dataset on the hub, where it may change
UNKNOWN, END = "<unk>", "<eos>"  # as wikitext-2 writes them
WORD = re.compile(r"\w+|[^\w\s]")  # a word or a punctuation mark
PARTS = 10  # of each tenth of a text, the last tenth is held out
INSTEAD = "give --set corpus=PATH, a utf-8 text file or a folder of them"

Words = Sequence[str]


@dataclass(frozen=True)
class Corpus:
    """The training part and the held-out part of a text, int64 [token] each. `words[token]` is a token's word."""

    words: tuple[str, ...]
    train: Tensor
    held_out: Tensor


def load_corpus(name: str, limit: int, length: int) -> Corpus:
    """Returns the corpus `name` with a vocabulary of at most `limit` words.

    The vocabulary is that of the training part: the unknown word, then the most frequent words. All other words become
    the unknown word. Raises UsageError if a part has fewer than `length` tokens.
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


def stretches(tokens: Tensor, length: int, n: int, generator: torch.Generator) -> Tensor:
    """Returns n stretches of `tokens` [token] with random starts, [n, length]."""
    starts = torch.randint(len(tokens) - length + 1, (n, 1), generator=generator)
    return tokens[starts + torch.arange(length)]


def vocabulary(words: Iterable[str], limit: int) -> tuple[str, ...]:
    """Returns the unknown word and the `limit` - 1 most frequent others, by falling frequency, then by alphabet."""
    counts = Counter(words)
    counts.pop(UNKNOWN, None)  # wikitext-2 has it in its text
    return (UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))[: limit - 1])


def encode(words: Words, tokens: dict[str, int]) -> Tensor:
    """Returns the tokens of `words`, int64 [token]; the unknown word is token 0."""
    return torch.tensor([tokens.get(word, 0) for word in words])


def split(words: Words) -> tuple[list[str], list[str]]:
    """Returns the words to train on and the held-out words: the last tenth of each tenth of the text.

    So both parts resemble the whole text, even if the end of a file or the last files are about something else.
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
    """Returns the words of Python's help texts, or of the file or directory `name`."""
    words = WORD.findall(python_prose() if name == PYTHON else read_text(Path(name)))
    if not words:
        raise UsageError(f"corpus {name} is empty: there is no word in it; {INSTEAD}")
    return words


def python_prose() -> str:
    """Returns the topics of Python's language reference (`help("...")`), each paragraph once: topics share sections."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise EnvironmentFault(f"this Python came without its help texts (pydoc_data); {INSTEAD}") from None
    paragraphs = (paragraph for _, topic in sorted(topics.items()) for paragraph in topic.split("\n\n"))
    return "\n\n".join(dict.fromkeys(map(_without_rules, paragraphs)))


def _without_rules(paragraph: str) -> str:
    """Returns `paragraph` without the lines that only underline a heading or frame a table."""
    return "\n".join(line for line in paragraph.splitlines() if re.search(r"\w", line))


def read_text(path: Path) -> str:
    """Returns the text of a file, or of all files below a directory, sorted by name and without hidden ones."""
    if path.is_dir():
        inside = (file for file in sorted(path.rglob("*")) if file.is_file())
        files = [file for file in inside if not any(p.startswith(".") for p in file.relative_to(path).parts)]
        if not files:
            raise UsageError(f"corpus {path} is a folder without files; {INSTEAD}")
        return "\n\n".join(map(_read_file, files))
    if not path.exists():
        raise UsageError(f"corpus {path} does not exist; {INSTEAD}, or corpus={PYTHON} or corpus={WIKITEXT}")
    return _read_file(path)


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
    """Returns wikitext-2's training and validation words; each line ends in <eos>, so 33278 words are different."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(f"corpus {WIKITEXT} needs the package datasets: pip install datasets; or {INSTEAD}") from None
    try:
        with _quiet("huggingface_hub"):  # it logs each of its attempts
            parts = load_dataset("Salesforce/wikitext", "wikitext-2-v1", revision=REVISION)
    except (OSError, ValueError) as error:  # no network; or offline, with other parts of the dataset cached
        reason = " ".join(str(error).split())[:150]
        raise EnvironmentFault(
            f"corpus {WIKITEXT} could not be downloaded ({reason}); try again with a network, or {INSTEAD}"
        ) from None
    train, held_out = (
        [word for line in parts[part]["text"] for word in (*line.split(), END)] for part in ("train", "validation")
    )
    return train, held_out


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Hides the warnings of the logger `name` inside the block."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
