"""Checkpoints in the layout of Hugging Face: directories with config.json and weights, for `from_pretrained`."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stagelens.base import EnvironmentFault, StagelensError, UsageError, parse_json, read_text
from stagelens.runs import check_size
from stagelens.training.saved_checkpoints.hub import Revision, download
from stagelens.training.saved_checkpoints.weights import unreadable

CONFIG = "config.json"
WEIGHTS = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin")


class HuggingFace:
    """Loads causal and masked language models in float32, a new model for each checkpoint."""

    def __init__(self, first: Path | Revision) -> None:
        self._first = first
        self.warnings: list[str] = []
        self.masked = False

    def load(self, source: Path | Revision) -> Any:
        """Returns the model at `source`. Release the one before it first: then one is in memory at a time."""
        folder = _folder(source)
        model, self.masked, unused = load_model(folder, str(source))
        if unused:
            self.warnings.append(f"tensors that {type(model).__name__} does not have are ignored: {listed(unused)}")
        return model

    def release(self, model: Any) -> None:
        """Frees the weights now. Hooks refer to the model in cycles, so Python would free them later."""
        model.to("meta")

    def limits(self, model: Any) -> tuple[int | None, int | None]:
        """Returns the number of tokens in the vocabulary, and of positions; None if the config does not have it."""
        config = model.config.get_text_config()
        return getattr(config, "vocab_size", None), getattr(config, "max_position_embeddings", None)

    def batch(self, tokens: Tensor, random: bool) -> tuple[Any, Any]:
        """Returns the keyword arguments of the model. With `labels` it computes the next-token loss itself."""
        batch = {"input_ids": tokens}
        return (batch if random or self.masked else batch | {"labels": tokens}), None

    def tokenizer_folders(self) -> list[Path]:
        """Returns the directories that may contain a tokenizer."""
        folder = _folder(self._first)
        return [folder, folder.parent]


def is_hugging_face(folder: Path) -> bool:
    """True if the directory has a config of Hugging Face, or weights and such a config in the directory above."""
    if (folder / CONFIG).is_file():
        return _model_type(folder / CONFIG) != ""
    above = folder.parent / CONFIG
    return any((folder / name).is_file() for name in WEIGHTS) and above.is_file() and _model_type(above) != ""


def load_model(folder: Path, name: str) -> tuple[Any, bool, list[str]]:
    """Returns the model in `folder`, whether it is a masked language model, and names of tensors that it ignores.

    `name` is what errors call the checkpoint.
    """
    import transformers

    files = weight_files(folder)
    with _quiet(), _failing_as(name):
        for file in files:
            check_size(file)
        beside = folder if (folder / CONFIG).is_file() else folder.parent
        own: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        config = transformers.AutoConfig.from_pretrained(beside, **own)  # nosec B615  # local files only
        masked = _is_masked(config, name)
        kind: Any = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
        _check_described(config, kind, files, name)
        model, info = kind.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            **own,
        )
    if missing := sorted(info["missing_keys"]):
        raise UsageError(f"{name} lacks weights that its {CONFIG} describes: {listed(missing)}; restore it")
    model.config.use_cache = False  # keys and values of earlier tokens, which nothing here reads
    return model.eval(), masked, sorted(info["unexpected_keys"])


def weight_files(folder: Path) -> list[Path]:
    """Returns the files of weights in `folder`: safetensors if there are any, else pickled ones, with all shards."""
    for name in WEIGHTS:
        if not (folder / name).is_file():
            continue
        if not name.endswith(".json"):
            return [folder / name]
        try:
            shards = sorted(set(parse_json(read_text(folder / name))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise unreadable(folder / name, error) from None
        if absent := [shard for shard in shards if not (folder / str(shard)).is_file()]:
            raise EnvironmentFault(f"{folder} lacks {listed(absent)}, which {name} lists; leave it out or restore it")
        return [folder / shard for shard in shards]
    raise UsageError(
        f"{folder} has no weights: expected model.safetensors or pytorch_model.bin, or shards of them with an index"
    )


def load_tokenizer(folders: Sequence[Path]) -> Any:
    """Returns the tokenizer in the first of `folders` that has one."""
    from transformers import AutoTokenizer

    files = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model")
    for folder in folders:
        if any((folder / name).is_file() for name in files):
            try:
                with _quiet():
                    return AutoTokenizer.from_pretrained(  # nosec B615  # local files only
                        folder, local_files_only=True, trust_remote_code=False
                    )
            except Exception as error:
                raise unreadable(f"tokenizer in {folder}", error) from None
    raise UsageError(
        f"there is no tokenizer in {folders[0]}, which --text needs: save it there with "
        "tokenizer.save_pretrained(), or give tokens with --batch"
    )


def listed(names: Sequence[str], most: int = 3) -> str:
    """Returns the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(str(name)) for name in names[:most]) + more


def _folder(source: Path | Revision) -> Path:
    return download(source) if isinstance(source, Revision) else source


def _model_type(config: Path) -> str:
    try:
        values = parse_json(read_text(config))
    except (OSError, ValueError):
        return ""
    found = values.get("model_type") if isinstance(values, dict) else None
    return found if isinstance(found, str) else ""


def _is_masked(config: Any, name: str) -> bool:
    """Decides by the class that the config names, else by its model type."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED,
    )

    named = (getattr(config, "architectures", None) or [""])[0]
    if named in CAUSAL.values() and named not in MASKED.values():
        return False
    if config.model_type in MASKED:
        return True
    if config.model_type in CAUSAL:
        return False
    raise UsageError(
        f"{name} is a {named or config.model_type}; expected a causal or masked language model, such as GPT2LMHeadModel"
    )


def _check_described(config: Any, kind: Any, files: Sequence[Path], name: str) -> None:
    """Refuses a config that describes far more than the files have, before anything of that size is built."""
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0) or 0
    tensors, n_bytes = sum(map(_tensors_in, files)), sum(file.stat().st_size for file in files)
    if layers > tensors:
        raise UsageError(f"{CONFIG} of {name} says {layers} layers, but there are only {tensors} tensors; restore it")
    with torch.device("meta"):
        described = sum(parameter.numel() for parameter in kind.from_config(config).parameters())
    if described > n_bytes:
        raise UsageError(
            f"{CONFIG} of {name} describes {described:,} parameters, but the weights have {n_bytes:,} bytes; restore it"
        )


def _tensors_in(file: Path) -> int:
    if file.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(file, framework="pt") as opened:
            return len(opened.keys())
    with zipfile.ZipFile(file) as archive:
        return len(archive.namelist())


@contextmanager
def _failing_as(name: str) -> Iterator[None]:
    """Turns what a library raises about a checkpoint into one line."""
    try:
        yield
    except StagelensError:
        raise
    except Exception as error:
        raise unreadable(name, error) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the log, the progress bars and the warnings of transformers."""
    from transformers.utils import logging as log

    logging: Any = log  # some of its functions have no types
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
