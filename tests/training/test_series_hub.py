"""Revisions on the hub become a timeline: from a cache laid out like the hub's, and from a server like it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

import stagelens as sl
from kit.saved_models import as_pickled, save_series, save_tokenizer

REPO = "lab/tiny"
PROBES = ["attention_sparsity", "induction"]


def commit_of(revision: str) -> str:
    return hashlib.sha1(revision.encode()).hexdigest()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def put_in_cache(cache: Path, folder: Path, revision: str) -> None:
    """Writes the files of `folder` as `huggingface_hub` stores them: blobs, links to them in snapshots, and refs."""
    root, commit = cache / "models--lab--tiny", commit_of(revision)
    for name in ("blobs", "refs", f"snapshots/{commit}"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(commit)
    for file in folder.iterdir():
        blob = root / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (root / "snapshots" / commit / file.name).symlink_to(Path("../../blobs") / blob.name)


def test_cached_revisions_give_the_numbers_of_the_same_files_in_a_directory(tmp_path, cache, cli) -> None:
    saved = save_series(tmp_path / "saved", "neox", steps=(0, 1, 512), name="step")
    as_pickled(saved / "step1")
    for step in (0, 1, 512):
        put_in_cache(cache, saved / f"step{step}", f"step{step}")
    here = sl.probe_checkpoints(saved, probes=PROBES, report=False)
    words = ["--hub", REPO, "--revisions", "step512,step0,step1", "--probes", ",".join(PROBES)]
    answer = cli("probe", *words, "--json")
    assert answer.code == 0, answer.err
    run = sl.load("probe-tiny")
    assert run.timeline.steps.tolist() == [0, 1, 512] and not run.warnings
    for name in here.timeline:
        np.testing.assert_array_equal(run.timeline.series(name), here.timeline.series(name))
    assert run.command == f"stagelens probe --hub {REPO} --revisions step0,step1,step512 --probes {','.join(PROBES)}"


def test_a_revision_that_is_missing_without_a_network_is_one_line(tmp_path, cache, cli) -> None:
    answer = cli("probe", "--hub", REPO, "--revisions", "step0")
    assert answer.code == 2
    assert "lab/tiny@step0 cannot be loaded: it is not in the cache, and the hub cannot be reached" in answer.complaint
    assert not (tmp_path / "runs").exists()
    saved = save_series(tmp_path / "saved", steps=(0,), name="step")
    put_in_cache(cache, saved / "step0", "step0")
    answer = cli("probe", "--hub", REPO, "--revisions", "step0,step7", "--probes", "attention_sparsity")
    assert answer.code == 1 and "lab/tiny@step7 cannot be loaded" in answer.err
    assert sl.load("probe-tiny").timeline.steps.tolist() == [0]


@pytest.mark.parametrize("words", [("--hub", "a/b/c"), ("--hub", REPO, "--revisions", "main,final")])
def test_a_wrong_repository_or_revision_is_one_line(cache, cli, words) -> None:
    answer = cli("probe", *words)
    assert answer.code == 2 and ("a/b/c" in answer.complaint or "revision 'main' has no step" in answer.complaint)


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does, from directories by revision."""

    revisions: dict[str, Path]
    fetched: list[str]

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:4] == ["api", "models", *REPO.split("/")]:
            return self.describe(parts[4], parts[5])
        revision, name = parts[3], "/".join(parts[4:])
        file = self.folder(revision) / name
        if not file.is_file():
            return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        if body:
            self.fetched.append(f"{revision[:3]} {name}")
        etag = f'"{hashlib.sha256(file.read_bytes()).hexdigest()}"'
        return self.reply(200, file.read_bytes(), {"X-Repo-Commit": self.commit(revision), "ETag": etag}, body)

    def describe(self, what: str, revision: str) -> None:
        if revision not in [*self.revisions, *map(commit_of, self.revisions)]:
            return self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
        files = sorted(self.folder(revision).iterdir())
        tree = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": commit_of(f.name)} for f in files]
        about = {"id": REPO, "sha": self.commit(revision), "siblings": [{"rfilename": f.name} for f in files]}
        return self.reply(200, json.dumps(tree if what == "tree" else about).encode(), {})

    def commit(self, revision: str) -> str:
        return commit_of(revision) if revision in self.revisions else revision

    def folder(self, revision: str) -> Path:
        return {**self.revisions, **{commit_of(name): at for name, at in self.revisions.items()}}[revision]

    def reply(self, code: int, content: bytes, headers: dict[str, str], body: bool = True) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Iterator[type[Hub]]:
    Hub.revisions, Hub.fetched = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    files = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    yield Hub
    server.shutdown()
    server.server_close()


def test_config_tokenizer_and_one_format_of_weights_are_downloaded_once(tmp_path, hub) -> None:
    saved = save_series(tmp_path / "saved", steps=(0, 1), name="step")
    for step in (0, 1):
        folder = saved / f"step{step}"
        save_tokenizer(folder)
        (folder / "README.md").write_text("about")
        (folder / "optimizer.pt").write_bytes(b"large")
        (folder / "pytorch_model.bin").write_bytes(b"the same weights in another format")
        hub.revisions[f"step{step}"] = folder
    (saved / "step1" / "pytorch_model.bin").unlink()
    as_pickled(saved / "step1")
    (tmp_path / "text.txt").write_text("the cat sat on a mat " * 10)
    options = {"probes": PROBES, "text": tmp_path / "text.txt", "length": 6, "runs": tmp_path / "runs", "report": False}
    run = sl.probe_checkpoints(hub=REPO, revisions=["step0", "step1"], **options)
    assert run.status == "finished" and run.timeline.steps.tolist() == [0, 1]
    first, second = (commit_of(name)[:3] for name in ("step0", "step1"))
    files = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
    assert set(hub.fetched) == {
        *(f"{first} {name}" for name in files),
        f"{second} pytorch_model.bin",
    }
    assert len(set(hub.fetched)) == len(hub.fetched)
    here = sl.probe_checkpoints(saved, **options)
    for name in here.timeline:
        np.testing.assert_array_equal(run.timeline.series(name), here.timeline.series(name))
    with pytest.raises(sl.StagelensError, match="lab/tiny@step9 cannot be loaded: the repository has no revision"):
        sl.probe_checkpoints(hub=REPO, revisions=["step9"], **options)
