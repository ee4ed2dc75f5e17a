"""Checkpoints in the layout of Hugging Face become a timeline."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import stagelens as sl
from kit.own_models import VOCAB, hugging_face, tokens_like_text
from kit.saved_models import WORDS, as_pickled, save_series, save_tokenizer
from stagelens.base.errors import EnvironmentFault, StagelensError, UsageError
from stagelens.training.saved_checkpoints.hugging_face import load_model
from stagelens.training.saved_checkpoints.series import find_series

PROBES = ["attention_sparsity", "induction"]
TEXT = " ".join(WORDS * 10)


def probed(saved: Path, tmp_path: Path, **options: object) -> sl.Run:
    options = {"probes": PROBES, "runs": tmp_path / "runs", "report": False} | options
    return sl.probe_checkpoints(saved, **options)


def changed(config: Path, **values: object) -> None:
    config.write_text(json.dumps(json.loads(config.read_text()) | values))


@pytest.mark.parametrize("kind", ["gpt2", "neox", "llama", "bert"])
def test_patterns_logits_and_loss_are_those_of_an_eager_model_in_transformers(kind, tmp_path) -> None:
    """The reference is `output_attentions=True` of the model that was saved, in float32."""
    tokens = tokens_like_text(4)
    for step in (0, 10):
        model = hugging_face(kind, "eager", seed=step)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(8.0 if parameter.ndim == 2 else 1.0)  # otherwise attention is almost uniform
        model.save_pretrained(tmp_path / "saved" / f"step{step}")
    run = probed(tmp_path / "saved", tmp_path, batch=tokens, probes=["attention_sparsity"])
    for index, step in enumerate((0, 10)):
        eager = type(model).from_pretrained(tmp_path / "saved" / f"step{step}", attn_implementation="eager").eval()
        with torch.no_grad():
            expected = eager(tokens, output_attentions=True)
        loaded, masked, unused = load_model(tmp_path / "saved" / f"step{step}", "it")
        assert masked == (kind == "bert") and not unused
        logits, cache = sl.watch(loaded, {"input_ids": tokens}).run_with_cache({"input_ids": tokens})
        torch.testing.assert_close(logits, expected.logits, atol=1e-6, rtol=1e-5)
        for layer, pattern in enumerate(expected.attentions):
            torch.testing.assert_close(cache[f"blocks.{layer}.attn.hook_pattern"], pattern, atol=1e-6, rtol=0)
            rows = pattern if kind == "bert" else pattern[:, :, 1:]  # a query that sees one key has no choice
            entropy = -(rows * rows.clamp_min(1e-30).log()).sum(-1).mean((0, 2))  # [head]
            read = run.timeline["attention_sparsity/entropy"].sel(layer=layer)[index]
            np.testing.assert_allclose(read, entropy.numpy(), rtol=1e-5)
        if kind == "bert":
            assert "loss" not in run.timeline
        else:
            by_hand = -expected.logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None]).mean()
            assert run.timeline.series("loss")[index] == pytest.approx(by_hand.item(), rel=1e-5)


def test_every_layout_gives_the_numbers_of_one_file_of_safetensors(tmp_path) -> None:
    """Shards with an index, `.bin`, `.bin` in shards, and a config in the directory above."""
    whole = probed(save_series(tmp_path / "whole"), tmp_path)
    other = tmp_path / "other"
    hugging_face("gpt2", seed=0).save_pretrained(other / "checkpoint-0", max_shard_size="20KB")
    assert len(list((other / "checkpoint-0").glob("model-*-of-*.safetensors"))) > 2
    save_series(other, steps=(10, 20))
    as_pickled(other / "checkpoint-10")
    weights = load_file(other / "checkpoint-20" / "model.safetensors")
    shards = {name: f"pytorch_model-{1 + (number % 2):05d}-of-00002.bin" for number, name in enumerate(weights)}
    for shard in set(shards.values()):
        torch.save({name: weights[name] for name in shards if shards[name] == shard}, other / "checkpoint-20" / shard)
    index = {"metadata": {}, "weight_map": shards}
    (other / "checkpoint-20" / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (other / "checkpoint-20" / "model.safetensors").unlink()
    (other / "checkpoint-20" / "config.json").rename(other / "config.json")
    run = probed(other, tmp_path)
    assert not run.warnings and run.status == "finished"
    for name in whole.timeline:
        np.testing.assert_array_equal(run.timeline.series(name), whole.timeline.series(name))


def test_the_directory_of_a_trainer_is_a_series_with_the_numbers_of_its_callback(tmp_path) -> None:
    """With optimizer, scheduler and random states next to the weights, and the last model above them."""
    from transformers import Trainer, TrainingArguments

    from stagelens.integrations.transformers import StagelensCallback

    tokens = tokens_like_text(8)
    data = [{"input_ids": row, "labels": row} for row in tokens_like_text(40, seed=1)]
    callback = StagelensCallback({"input_ids": tokens, "labels": tokens}, schedule=sl.Schedule(even=6), probes=PROBES)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "trained"),
        max_steps=6,
        save_steps=2,
        per_device_train_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=hugging_face("gpt2"), args=arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    trainer.save_model()
    run = probed(tmp_path / "trained", tmp_path, batch=tokens)
    assert run.timeline.steps.tolist() == [2, 4, 6]
    live = callback.recorder.timeline
    at = [live.steps.tolist().index(step) for step in (2, 4, 6)]
    for name in ("loss", "attention_sparsity/entropy", "induction/prefix_matching", "induction/copying"):
        np.testing.assert_array_equal(run.timeline.series(name), live.series(name)[at], err_msg=name)


def test_a_text_is_split_by_the_tokenizer_of_the_checkpoints(tmp_path) -> None:
    saved = save_series(tmp_path / "saved", steps=(0,))
    save_tokenizer(saved / "checkpoint-0")
    (tmp_path / "text.txt").write_text(TEXT)
    run = probed(saved, tmp_path, text=tmp_path / "text.txt", length=9, sequences=3)
    tokens = torch.arange(27).remainder(len(WORDS)).view(3, 9)
    other = probed(saved, tmp_path, batch=tokens)
    assert run.manifest.config["measured_on"] == f"{tmp_path / 'text.txt'}, 3 sequences of 9 tokens"
    for name in other.timeline:
        np.testing.assert_array_equal(run.timeline.series(name), other.timeline.series(name))
    run = probed(saved, tmp_path, text=tmp_path / "text.txt", length=40)
    assert run.manifest.config["measured_on"].endswith(f"{len(WORDS) * 10 // 40} sequences of 40 tokens")


def test_a_tokenizer_next_to_the_directories_is_found(tmp_path) -> None:
    saved = save_series(tmp_path / "saved", steps=(0,))
    save_tokenizer(saved)
    (tmp_path / "text.txt").write_text(TEXT)
    assert "loss" in probed(saved, tmp_path, text=tmp_path / "text.txt", length=9).timeline


def test_the_command_line_gives_what_python_gives_and_the_report_repeats_it(cli, tmp_path) -> None:
    saved = save_series(tmp_path / "saved", steps=(0, 10))
    save_tokenizer(saved)
    (tmp_path / "text.txt").write_text(TEXT)
    options = {"probes": ["induction"], "text": "text.txt", "length": 20, "sequences": 2}
    run = sl.probe_checkpoints("saved", name="python", **options)
    words = ["--probes", "induction", "--text", "text.txt", "--length", 20, "--sequences", 2, "--json"]
    answer = cli("probe", "saved", "--name", "line", *words)
    assert answer.code == 0, answer.err
    here = json.loads(json.dumps(run.summary(), default=float))
    different = {key for key in here if here[key] != answer.json[key]}
    assert different <= {"name", "run", "seconds", "created", "report", "figures", "process"}, different
    assert answer.json["final"] == here["final"] and answer.json["stages"] == here["stages"]
    for name in run.timeline:
        np.testing.assert_array_equal(sl.load("line").timeline.series(name), run.timeline.series(name))
    again = cli(*run.command.split()[1:], "--json")
    assert again.json["final"] == here["final"], again.err


def test_a_single_model_without_a_step_in_its_name_is_step_0(tmp_path) -> None:
    hugging_face("llama").save_pretrained(tmp_path / "my-model")
    assert probed(tmp_path / "my-model", tmp_path).timeline.steps.tolist() == [0]


def test_shells_may_give_directories_or_files(tmp_path) -> None:
    saved = save_series(tmp_path / "saved", steps=(5, 100, 20), name="step")
    folders = [saved / f"step{step}" for step in (100, 20, 5)]
    by_folder, by_file = find_series(folders), find_series([folder / "model.safetensors" for folder in folders])
    assert by_folder.files == by_file.files == find_series([saved]).files
    assert list(by_folder.files) == [5, 20, 100]
    assert by_folder.warnings[0] == "the checkpoints were given out of order; they are read by step"


def test_identical_neighbours_missing_steps_and_other_architectures_are_one_line_each(tmp_path) -> None:
    saved = save_series(tmp_path / "saved", steps=(0, 10, 20, 30, 50))
    hugging_face("gpt2", seed=10).save_pretrained(saved / "checkpoint-20")
    changed(saved / "checkpoint-30" / "config.json", n_head=2)  # every tensor has the same shape as before
    run = probed(saved, tmp_path)
    gap, same, other = run.warnings
    assert "missing between" in gap and "checkpoint-30" in gap and "checkpoint-50" in gap
    assert "checkpoint-10 and" in same and "checkpoint-20 hold identical weights" in same
    assert "checkpoint-30 is of another architecture than its series: n_heads is 2 and not 4" in other
    assert run.status == "interrupted" and run.timeline.steps.tolist() == [0, 10, 20, 50]


def test_tensors_that_the_model_does_not_have_are_reported_once(tmp_path) -> None:
    saved = save_series(tmp_path / "saved", kind="bert", steps=(0, 10))
    for step in (0, 10):
        file = saved / f"checkpoint-{step}" / "model.safetensors"
        save_file(load_file(file) | {"cls.seq_relationship.weight": torch.zeros(2, 2)}, file, {"format": "pt"})
    (warning,) = probed(saved, tmp_path).warnings
    assert "BertForMaskedLM does not have are ignored: 'cls.seq_relationship.weight'" in warning


def without(name):
    return lambda folder: (folder / name).unlink()


def lose_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.attn.c_attn.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def lose_a_shard(folder: Path) -> None:
    hugging_face("gpt2").save_pretrained(folder, max_shard_size="20KB")
    next(folder.glob("model-00002-*")).unlink()


def config(**values):
    return lambda folder: changed(folder / "config.json", **values)


class Evil:
    def __reduce__(self):
        return os.system, ("touch pwned",)


def pickle_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"size": torch.zeros(10**5), "transformer.wte.weight": Evil()}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        (without("model.safetensors"), UsageError, "checkpoint-0 has no weights: expected model.safetensors or"),
        (
            lose_a_tensor,
            UsageError,
            "lacks weights that its config.json describes: 'transformer.h.1.attn",
        ),
        (lose_a_shard, EnvironmentFault, "lacks 'model-00002-of-.*which model.safetensors.index.json lists"),
        (lambda f: (f / "model.safetensors").write_bytes(b"junk"), EnvironmentFault, "checkpoint-0 cannot be read"),
        (pickle_code, EnvironmentFault, "checkpoint-0 cannot be read"),
        (config(model_type="nothing"), EnvironmentFault, "checkpoint-0 cannot be read"),
        (config(auto_map={"AutoConfig": "evil.C"}, model_type="x"), EnvironmentFault, "checkpoint-0 cannot be read"),
        (
            config(model_type="t5", architectures=["T5ForConditionalGeneration"]),
            UsageError,
            "is a T5ForCon.*expected",
        ),
        (config(n_layer=10**9), UsageError, "says 1000000000 layers, but there are only 2. tensors"),
        (config(vocab_size=10**9), UsageError, r"describes 32,000,\d+,\d+ parameters, but the weights have"),
        (config(n_embd=48), EnvironmentFault, "checkpoint-0 cannot be read"),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_one_line_and_nothing_is_written(
    tmp_path, monkeypatch, damage, error, says
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = save_series(tmp_path / "saved", steps=(0,))
    damage(saved / "checkpoint-0")
    with pytest.raises(error, match=says) as caught:
        probed(saved, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists() and not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"text": "text.txt"}, "there is no tokenizer in .*checkpoint-0, which --text needs"),
        ({"text": "none.txt", "tokenizer": True}, "--text none.txt cannot be read"),
        ({"text": "binary.txt", "tokenizer": True}, "--text binary.txt cannot be read .it is not UTF-8"),
        ({"text": "text.txt", "tokenizer": True}, "text.txt has 5 tokens, and 1 x 64 = 64 are needed"),
        (
            {"text": "text.txt", "tokenizer": True, "length": 2, "sequences": 3},
            "has 5 tokens, and 3 x 2 = 6 are needed",
        ),
        ({"text": "text.txt", "batch": torch.zeros(2, 3).long()}, "--text and --batch both say what to measure on"),
        ({"batch": torch.zeros(2, 3)}, r"expected one tensor of tokens.*not torch.float32 \[2, 3\]"),
        ({"batch": torch.zeros(3).long()}, r"expected one tensor of tokens.*not torch.int64 \[3\]"),
        ({"batch": torch.full((2, 3), VOCAB)}, "token 20 is not in the model's vocabulary, 0 to 19"),
        ({"batch": torch.full((2, 3), -1)}, "token -1 is not in the model's vocabulary, 0 to 19"),
        ({"batch": torch.zeros(2, 65).long()}, "65 positions, but the model has 64"),
        ({"batch": torch.zeros(2, 3).long(), "length": 2}, "--sequences and --length are for --text"),
        ({"batch": "text.txt"}, "--batch text.txt cannot be read; give a file of safetensors or torch.save"),
        ({"length": 65}, "65 positions, but the model has 64"),
        ({"text": "text.txt", "tokenizer": "large", "length": 5}, "token 24 is not in the model's vocabulary, 0 to 19"),
        ({"revisions": ["step1"]}, "--revisions belongs to --hub"),
        ({"hub": "org/name"}, "give checkpoints, or a repository with --hub"),
        ({"first": 5}, "no checkpoint between the steps 5 and None"),
    ],
)
def test_a_mistake_in_what_to_measure_on_is_one_line_and_nothing_is_written(
    tmp_path, monkeypatch, options, says
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = save_series(tmp_path / "saved", steps=(0,))
    (tmp_path / "text.txt").write_text("the cat sat on a")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    if kind := options.get("tokenizer"):
        save_tokenizer(saved / "checkpoint-0", [f"x{i}" for i in range(20)] + WORDS if kind == "large" else WORDS)
    with pytest.raises(StagelensError, match=says) as caught:
        probed(saved, tmp_path, **{key: value for key, value in options.items() if key != "tokenizer"})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_directory_without_checkpoints_is_one_line(tmp_path) -> None:
    (tmp_path / "empty" / "step10").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"no checkpoints in .*empty; expected files such as 100.safetensors"):
        probed(tmp_path / "empty", tmp_path)
