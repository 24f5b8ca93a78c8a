"""The Hub: what goes up comes down, by way of a folder and of a server that speaks its protocol."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from torch import nn

import pocketbayes as pb

CARD: dict[str, Any] = {
    "net": "mlp:8",
    "args": {"in_features": 2, "out_features": 3},
    "shape": [2],
    "classes": ["a", "b", "c"],
    "scale": [[0.0, 0.0], [1.0, 1.0], 1.0],
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Those answers of the Hub that a small repository needs, from memory."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[str, str, str | None]] = []  # method, path, authorisation

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._file(body=False)

    def do_GET(self) -> None:
        self._file(body=True)

    def do_POST(self) -> None:
        self._note()
        said = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            name = json.loads(said)["name"]
            self._json({"url": f"{self.server.url}/me/{name}", "name": f"me/{name}", "id": f"me/{name}"})
        elif self.path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = json.loads(said)["files"]
            self._json(
                {
                    "files": [
                        {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
                    ]
                }
            )
        else:
            for line in map(json.loads, said.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._json(
                {
                    "commitUrl": f"{self.server.url}/me/small/commit/{COMMIT}",
                    "commitOid": COMMIT,
                    "success": True,
                }
            )

    def _note(self) -> None:
        self.server.calls.append((self.command, self.path, self.headers.get("Authorization")))

    def _file(self, *, body: bool) -> None:
        self._note()
        found = self.server.files.get(self.path.rpartition("/")[2])
        if found is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha1(found).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        if body:
            self.wfile.write(found)

    def _json(self, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = pb.bayesianize(nn.Sequential(nn.Flatten(), *pb.nets.mlp([2, 8, 3])))
    pb.save(network, tmp_path / "small.pocket", metadata=CARD)
    return tmp_path / "small.pocket"


X = [[0.5, -1.0], [2.0, 0.0]]


def test_a_file_comes_back_from_the_hub_as_it_went_up(hub: Hub, path: Path) -> None:
    where = pb.push_to_hub(path, "me/small", scores={"accuracy": 0.9}, token="secret", endpoint=hub.url)
    assert where.endswith("me/small")
    assert hub.files["model.pocket"] == path.read_bytes()
    model = pb.from_pretrained("me/small", token="secret", endpoint=hub.url)
    assert torch.equal(model.predict(X).probs, pb.open(path).predict(X).probs)
    assert {authorisation for _, _, authorisation in hub.calls} == {"Bearer secret"}


def test_a_file_comes_back_from_a_folder_as_it_went_in(tmp_path: Path, path: Path) -> None:
    assert pb.push_to_hub(path, str(tmp_path / "folder")) == str(tmp_path / "folder")
    model = pb.from_pretrained(tmp_path / "folder")
    assert torch.equal(model.predict(X).probs, pb.open(path).predict(X).probs)


def test_the_card_is_one_that_the_hub_can_read(tmp_path: Path, path: Path) -> None:
    pb.push_to_hub(
        path, str(tmp_path), scores={"accuracy": 0.91, "nll": 0.3}, dataset="flowers: 1", text="Hello."
    )
    data = ModelCard.load(tmp_path / "README.md").data
    assert data.library_name == "pocketbayes"
    assert data.eval_results is not None
    found = {(r.dataset_name, r.metric_type): r.metric_value for r in data.eval_results}
    assert found == {("flowers: 1", "accuracy"): 0.91, ("flowers: 1", "nll"): 0.3}


def test_nothing_in_a_file_becomes_markdown_or_html(tmp_path: Path, path: Path) -> None:
    pocket = pb.artifact.decode(path)
    hostile = {**vars(pocket), "architecture": "<script>x</script>\n# [a](b)"}
    path.write_bytes(pb.artifact.encode(pb.artifact.Pocket(**hostile)).data)
    pb.push_to_hub(path, str(tmp_path))
    text = (tmp_path / "README.md").read_text()
    assert "<script>" not in text.replace("\\<", "")
    assert "\n# [a]" not in text


def test_a_repository_that_is_not_there_is_an_error_with_its_name(hub: Hub) -> None:
    with pytest.raises(FileNotFoundError, match=r"me/nowhere: .*model.pocket"):
        pb.from_pretrained("me/nowhere", endpoint=hub.url)


def test_what_is_no_pocket_file_is_not_sent(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "x.pocket").write_bytes(b"no")
    with pytest.raises(pb.errors.ArtifactError):
        pb.push_to_hub(tmp_path / "x.pocket", "me/small", endpoint=hub.url)
    assert not hub.calls
