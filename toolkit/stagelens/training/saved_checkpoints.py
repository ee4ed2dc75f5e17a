"""A series of saved models, named by step, as a timeline: what `stagelens probe` does."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stagelens.base import EnvironmentFault, UsageError, generator, parse_json, read_text, safe_name
from stagelens.host import Host, make_host
from stagelens.recording import Recorder
from stagelens.runs import FILE, Manifest, Run, Store, check_size, runs_folder, this_process, versions
from stagelens.training.writer import Page, Progress, Writer, graceful, throttled, writing

CONFIG = "config.json"
ENDINGS = (".safetensors", ".pt", ".pth", ".bin")
NUMBER = re.compile(r"\d+")
COUNTS = ("n_layers", "num_experts")  # of a config; each one has tensors of its own
PARTS = ("embed.", "pos_embed.", "blocks.", "ln_final.", "unembed.")  # of a HookedTransformer
CONSTANTS = (".mask", ".IGNORE", ".rotary_sin", ".rotary_cos")  # which some versions save with the weights
SEQUENCES = 16  # in the batch of random tokens, where none is given
RANDOM_SEED = 0  # of those tokens


@dataclass
class Series:
    """Files of one training by step, and what looks odd about them."""

    files: dict[int, Path]
    warnings: list[str] = field(default_factory=list)
    batch: str = ""  # the file that the batch to measure on comes from


def find_series(places: Sequence[Path], *, every: int = 1, first: int = 0, last: int | None = None) -> Series:
    """The checkpoints in `places` (files, or folders of them), by the last number in each name."""
    found: dict[int, Path] = {}
    order: list[int] = []
    for place in places:
        for path in _files(place):
            step = _step(path)
            if step in found:
                raise UsageError(f"{found[step]} and {path} are both of step {step}; leave one of them out")
            found[step] = path
            order.append(step)
    if not found:
        raise UsageError(f"no checkpoints in {', '.join(map(str, places))}; expected files such as 100.safetensors")
    series = Series({step: found[step] for step in sorted(found) if step >= first and (last is None or step <= last)})
    if len(places) > 1 and order != sorted(order):
        series.warnings.append("the checkpoints were given out of order; they are read by step")
    series.warnings += _gaps(series.files)
    series.files = dict(list(series.files.items())[::every])
    if not series.files:
        raise UsageError(f"no checkpoint between the steps {first} and {last}; there are {min(found)} to {max(found)}")
    return series


def probe_series(
    series: Series,
    *,
    probes: Sequence[str] | None = None,
    batch: Tensor | None = None,
    batch_name: str = "the given batch",
    runs: str | Path | None = None,
    name: str | None = None,
    host: Host | None = None,
    progress: Progress | None = None,
    page: Page | None = None,
) -> Run:
    """Loads one checkpoint after the other into one model, measures each, and leaves a run to look at.

    `batch` [sequence, position] are the tokens to measure on, and `batch_name` says where they come from. Without a
    batch the probes see random tokens of the model's vocabulary; the loss and every reading that is computed from
    next-token losses are then skipped, because nothing predicts random tokens.
    """
    host = host or make_host()
    first = next(iter(series.files.values()))
    model = build(_config_beside(first), first)
    folder = _new_folder(runs_folder(runs), name or f"probe-{_title(first)}")
    recorder = Recorder(
        model,
        probes,
        _random_tokens(model) if batch is None else batch,
        loss=None if batch is None else next_token_loss,
        random_batch=batch is None,
        host=host,
        strict=True,
    )
    measured_on = batch_name if batch is not None else f"random tokens, seed {RANDOM_SEED}"
    manifest = _manifest(series, recorder, measured_on)
    with writing(folder, manifest, host) as writer:
        with writer.recording() as store:
            _measure_all(series, recorder, writer, store, progress)
        if page is not None:
            writer.finish(page)
    return writer.run


def _measure_all(series: Series, recorder: Recorder, writer: Writer, store: Store, progress: Progress | None) -> None:
    """Measures every checkpoint of the series with its weights in the recorder's model. A signal stops in between."""
    manifest, report = writer.manifest, throttled(progress, len(series.files))
    before: tuple[str, Path] | None = None
    with graceful() as stop:
        for index, (step, path) in enumerate(series.files.items()):
            digest = fill(recorder.context.model, path)
            if before is not None and before[0] == digest:
                series.warnings.append(f"{before[1]} and {path} hold identical weights")
            before = (digest, path)
            readings = recorder.measure(step)
            store.add(recorder.measurements[-1])
            manifest.step, manifest.warnings = step, series.warnings
            manifest.skipped, manifest.problems = dict(recorder.skipped), dict(recorder.problems)
            writer.tell(step, readings)
            report(index + 1, None)
            if stop.is_set():
                break
    writer.status = "finished" if step == manifest.steps else "interrupted"


def build(config: Path, checkpoint: Path) -> Any:
    """The model that `config` describes: TransformerLens' own config, or the arguments of `build_transformer`.

    It is sketched first, with sizes and no memory, and held against the weights: what a config asks for may be legal
    and yet take hours to build.
    """
    from stagelens.models import from_config

    try:
        values = parse_json(read_text(config))
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"{config} cannot be read ({' '.join(str(error).split())}); restore it") from None
    if not isinstance(values, dict):
        raise UsageError(f"{config} is not the config of a HookedTransformer; {checkpoint} needs one beside it")
    weights = load_weights(checkpoint)
    for key in COUNTS:
        if isinstance(values.get(key), int) and values[key] > len(weights):
            much = f"{key} = {str(values[key])[:20]}"
            raise UsageError(f"{config} says {much}, but {checkpoint} has only {len(weights)} tensors; restore it")
    try:
        sketch = from_config(values, device="meta")
    except UsageError as error:
        raise UsageError(f"{config}: {error}") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:150]
        raise UsageError(
            f"{config} is not the config of a HookedTransformer ({reason}); save model.cfg.to_dict()"
        ) from None
    if what := misfit(weights, sketch):
        raise UsageError(f"{config} does not fit {checkpoint}: there {what}; save the config of that model")
    return from_config(values)


def fill(model: Any, path: Path) -> str:
    """Loads the weights in `path` into `model` and returns a digest of them."""
    weights = load_weights(path)
    if what := misfit(weights, model):
        raise UsageError(f"{path} is of another architecture than its series: {what}; probe it on its own")
    ours = model.state_dict()
    model.load_state_dict({name: value for name, value in weights.items() if name in ours}, strict=False)
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode() + parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def misfit(weights: Mapping[str, Tensor], model: Any) -> str:
    """The first of `weights` that is not as `model` has it; empty where all fit. What is no part of it may be there."""
    ours = model.state_dict()
    for name in sorted(weights.keys() & ours.keys()):
        if weights[name].shape != ours[name].shape:
            return f"{name!r} has another shape, {list(weights[name].shape)} and not {list(ours[name].shape)}"
    for name, _ in model.named_parameters():
        if name not in weights:
            return f"{name!r} is missing"
    for name in sorted(weights.keys() - ours.keys()):
        if name.startswith(PARTS) and not name.endswith(CONSTANTS):
            return f"{name!r} is one too many"
    return ""


def load_weights(path: Path) -> dict[str, Tensor]:
    """The state dict in `path`; pickled files are read with weights only, so that they run no code."""
    try:
        check_size(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:150]
        raise EnvironmentFault(f"checkpoint {path} cannot be read ({reason}); leave it out or restore it") from None
    for key in ("model", "state_dict", "model_state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise UsageError(f"{path} holds no state dict; expected names and tensors")
    return loaded


def load_batch(path: Path) -> Tensor:
    """Tokens [sequence, position] from a safetensors file with one whole-number tensor."""
    tensors = list(load_weights(path).values())
    if len(tensors) != 1 or tensors[0].ndim != 2 or tensors[0].is_floating_point():
        raise UsageError(f"{path}: expected one tensor of tokens, whole numbers of shape [sequence, position]")
    return tensors[0].long()


def next_token_loss(model: Any, tokens: Tensor) -> Tensor:
    logits = model(tokens)  # [batch, position, d_vocab]
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _files(place: Path) -> list[Path]:
    """Checkpoints at `place`; in a folder also those one folder deeper, as `checkpoint-100/model.safetensors`."""
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise UsageError(f"there is no checkpoint {place}; give files or a folder of them")
    here = [path for path in place.iterdir() if path.suffix in ENDINGS and NUMBER.search(path.stem)]
    deeper = [path for ending in ENDINGS for path in place.glob(f"*[0-9]/*{ending}")]
    return sorted(here or deeper, key=_step)


def _step(path: Path) -> int:
    """The last number in the file's name, else in its folder's."""
    for name in (path.stem, path.parent.name):
        if numbers := NUMBER.findall(name):
            return int(numbers[-1])
    raise UsageError(f"{path} has no step in its name; name checkpoints by step, such as 100.safetensors")


def _gaps(files: dict[int, Path]) -> list[str]:
    """Where steps are missing from a series that is otherwise evenly spaced."""
    differences = Counter(b - a for a, b in pairwise(files))
    if not differences:
        return []
    usual, times = differences.most_common(1)[0]
    if times < 2 or times * 2 < len(files):
        return []
    missing = [(a, b) for a, b in pairwise(files) if b - a > usual and (b - a) % usual == 0]
    return [f"steps seem to be missing between {files[a]} and {files[b]}" for a, b in missing]


def _config_beside(path: Path) -> Path:
    for folder in (path.parent, path.parent.parent):
        if (folder / CONFIG).is_file():
            return folder / CONFIG
    raise UsageError(f"{path} has no {CONFIG} beside it; save the model's config there (model.cfg.to_dict() as JSON)")


def _random_tokens(model: Any) -> Tensor:
    if not model.cfg.d_vocab:
        raise UsageError("the model takes continuous inputs; give the batch to measure on with --batch")
    shape = (SEQUENCES, min(int(model.cfg.n_ctx), 256))
    return torch.randint(int(model.cfg.d_vocab), shape, generator=generator(RANDOM_SEED, "probe"))


def _title(path: Path) -> str:
    folder = path.parent if NUMBER.search(path.stem) else path.parent.parent
    return re.sub(r"[^\w.-]", "-", folder.resolve().name) or "series"


def _new_folder(runs: Path, name: str) -> Path:
    folder, number = runs / safe_name(name), 2
    while (folder / FILE).exists():
        folder, number = runs / f"{name}-{number}", number + 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"cannot make {folder}: {error.strerror}; give another folder with --runs") from None
    return folder


def _manifest(series: Series, recorder: Recorder, measured_on: str) -> Manifest:
    steps = list(series.files)
    has_loss = recorder.context.loss_function is not None
    return Manifest(
        task="checkpoints",
        plugin="",
        preset="",
        config={
            "measured_on": measured_on,
            "files": [str(path) for path in series.files.values()],
            "batch": series.batch,
        },
        seed=0,
        kind="checkpoints",
        steps=steps[-1],
        metric="loss" if has_loss else "induction/prefix_matching",
        probes=list(recorder.probes),
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        versions=versions(),
        **this_process(),
    )
