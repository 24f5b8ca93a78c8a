from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from pocketbayes import data
from pocketbayes.data import download
from pocketbayes.data.download import Remote, fetch
from pocketbayes.data.public import REMOTES
from pocketbayes.runs.resume import locked

CONTENT = np.random.default_rng(0).bytes(700_000)


def remote(url: str, content: bytes = CONTENT) -> Remote:
    return Remote([url], len(content), hashlib.sha256(content).hexdigest())


class Server(ThreadingHTTPServer):
    """Serves `files` on 127.0.0.1, with ranges or without, and can break off after `limit` bytes."""

    files: dict[str, bytes]
    asked: list[str | None]  # the Range header of each request
    ranges: bool = True
    limit: int | None = None
    lengths: bool = True
    daemon_threads = True

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        content = self.server.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if self.server.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : self.server.limit])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "TIMEOUT", 5.0)
    with Server(("127.0.0.1", 0), Handler) as running:
        running.files, running.asked = {"file.bin": CONTENT}, []
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(5)


def test_a_download_arrives_whole_and_is_not_repeated(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.bin"
    assert fetch(remote(server.url("file.bin")), path) == path
    fetch(remote(server.url("file.bin")), path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None]
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_a_broken_download_leaves_no_file_and_the_next_call_continues_it(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "file.bin"
    server.limit = 300_000
    with pytest.raises(FileNotFoundError, match="broke after 300,000 of 700,000 bytes"):
        fetch(remote(server.url("file.bin")), path)
    assert not path.exists()
    server.limit = None
    fetch(remote(server.url("file.bin")), path)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    Path(f"{path}.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    fetch(remote(server.url("file.bin")), path)
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_nothing_is_left(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    server.files["file.bin"] = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(FileNotFoundError, match=r"(?s)not the published file.*put it at .*file\.bin"):
        fetch(remote(server.url("file.bin")), path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_partial_file_is_found_out(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    Path(f"{path}.part").write_bytes(bytes(1000))
    with pytest.raises(FileNotFoundError, match="not the published file"):
        fetch(remote(server.url("file.bin")), path)
    fetch(remote(server.url("file.bin")), path)
    assert path.read_bytes() == CONTENT


def test_a_file_on_the_disk_is_checked_too(server: Server, tmp_path: Path) -> None:
    path, wanted = tmp_path / "file.bin", remote(server.url("file.bin"))
    path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"file\.bin: 700,000 bytes .* not the published file.*Remove it"):
        fetch(wanted, path)
    path.unlink()
    assert fetch(wanted, path).read_bytes() == CONTENT


def test_two_processes_do_not_download_to_one_folder(server: Server, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ValueError, match="another run is at work in this folder"):
        fetch(remote(server.url("file.bin")), tmp_path / "file.bin")
    assert not list(tmp_path.iterdir())


def test_a_page_of_another_length_is_refused_before_it_is_saved(server: Server, tmp_path: Path) -> None:
    server.files["file.bin"] = b"<html>please log in</html>"
    with pytest.raises(FileNotFoundError, match="offers 26 bytes, the published file has 700,000"):
        fetch(remote(server.url("file.bin")), tmp_path / "file.bin")


def test_a_server_that_sends_too_much_is_cut_off(server: Server, tmp_path: Path) -> None:
    server.files["file.bin"], server.lengths = CONTENT * 8, False
    with pytest.raises(FileNotFoundError, match=r"[789]\d\d,\d\d\d bytes .* not the published file"):
        fetch(remote(server.url("file.bin")), tmp_path / "file.bin")
    assert list(tmp_path.iterdir()) == []


def test_the_second_address_serves_when_the_first_does_not(server: Server, tmp_path: Path) -> None:
    wanted = remote("")._replace(urls=[server.url("absent"), server.url("file.bin")])
    assert fetch(wanted, tmp_path / "file.bin").read_bytes() == CONTENT


def test_without_a_server_the_error_says_what_to_put_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    nobody = "http://127.0.0.1:9/cifar-10-binary.tar.gz"
    monkeypatch.setitem(REMOTES, "cifar-10-binary.tar.gz", remote(nobody))
    with pytest.raises(FileNotFoundError) as caught:
        data.load("cifar10", tmp_path)
    for part in (nobody, "by hand", f"put it at {tmp_path / 'cifar-10-binary.tar.gz'}"):
        assert part in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"cifar-10-binary\.tar\.gz is missing\. Download it from"):
        data.load("cifar10", tmp_path, download=False)


def test_every_public_file_has_an_address_a_size_and_a_sha256() -> None:
    assert len(REMOTES) == 12
    for key, entry in REMOTES.items():
        assert all(url.startswith("http") and url.endswith(key.rsplit("/", 1)[-1]) for url in entry.urls)
        assert entry.size > 0
        assert len(bytes.fromhex(entry.sha256)) == 32


def test_mnist_is_downloaded_and_read_in_its_own_format(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = np.random.default_rng(1).integers(0, 256, (30, 28, 28), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 10
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        file = f"t10k-{kind}-ubyte.gz"
        server.files[file] = gzip.compress(
            bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()
        )
        monkeypatch.setitem(REMOTES, f"mnist/{file}", remote(server.url(file), server.files[file]))
    mnist = data.load("MNIST", tmp_path, "test")
    assert torch.equal(mnist.x, torch.from_numpy(images)[:, None])
    assert mnist.y.tolist() == labels.tolist()
    assert mnist.shape == (1, 28, 28)
    assert mnist.classes == tuple("0123456789")
    assert (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").exists()
