"""Revisions of a repository on the Hugging Face hub as checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagelens.base import UsageError

CONFIG_AND_TOKENIZER = (
    *("config.json", "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("spiece.model", "sentencepiece.bpe.model"),
)
FORMATS = (  # of weights; the first one that the repository has is downloaded
    ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model-*.bin", "pytorch_model.bin.index.json"),
)


@dataclass(frozen=True)
class Revision:
    """A branch, tag or commit `name` of the repository `repo`."""

    repo: str
    name: str

    def __str__(self) -> str:
        return f"{self.repo}@{self.name}"


def download(revision: Revision) -> Path:
    """Returns the directory with config, tokenizer and weights of `revision`, in the hub's own cache.

    Files that are in the cache are not downloaded again. Without a network the cache alone is used.
    """
    for weights in FORMATS:
        folder = _snapshot(revision, [*CONFIG_AND_TOKENIZER, *weights])
        if any(path for pattern in weights for path in folder.glob(pattern)):
            return folder
    raise UsageError(
        f"no weights of {revision} were found on the hub or in its cache: expected model.safetensors or "
        "pytorch_model.bin, or shards of them; check the revision and the network"
    )


def _snapshot(revision: Revision, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download, utils
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    bars: Any = utils  # which declares no names
    shown = not bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        return Path(snapshot_download(revision.repo, revision=revision.name, allow_patterns=patterns))
    except RevisionNotFoundError:
        reason = f"the repository has no revision {revision.name!r}; its page on the hub lists them"
    except GatedRepoError:
        reason = "access to the repository is restricted; log in with `hf auth login`"
    except RepositoryNotFoundError:
        reason = "there is no such public repository; check the name, or log in with `hf auth login`"
    except HFValidationError as error:
        reason = f"{' '.join(str(error).split())[:120]}"
    except LocalEntryNotFoundError:
        reason = "it is not in the cache, and the hub cannot be reached; check the network, or give a directory instead"
    except Exception as error:  # of the network
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}; check the network"
    finally:
        if shown:
            bars.enable_progress_bars()
    raise UsageError(f"{revision} cannot be loaded: {reason}")
