from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pocketbayes import data
from pocketbayes.data import formats
from pocketbayes.data.download import Remote
from pocketbayes.data.public import PUBLIC, REMOTES


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """From now on that file of the folder is the published one."""

    def replace(folder: Path, key: str) -> None:
        content = (folder / key).read_bytes()
        remote = Remote([], len(content), hashlib.sha256(content).hexdigest())
        monkeypatch.setitem(REMOTES, key, remote)

    return replace


Publish = Callable[[Path, str], None]


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def pixels(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8)


def test_fashion_mnist_is_found_unpacked_where_torchvision_leaves_it(tmp_path: Path) -> None:
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(idx(pixels(4, 28, 28)))
    (raw / "train-labels-idx1-ubyte").write_bytes(idx(np.array([9, 0, 1, 2], np.uint8)))
    fashion = data.load("fashion_mnist", tmp_path, download=False)
    assert fashion.classes is not None
    assert fashion.classes[fashion.y[0]] == "ankle boot"


@pytest.mark.parametrize(
    "content", [b"\x00\x00\x08\x02\x00\x00", idx(pixels(3, 4, 4))[:-1], b"PK\x03\x04", b""]
)
def test_a_damaged_idx_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "a.gz").write_bytes(gzip.compress(content)[:-3])
    with pytest.raises(ValueError, match=r"cut short|not an idx file"):
        formats.read_idx(tmp_path / "a")
    with pytest.raises(ValueError, match="not a whole gzip file"):
        formats.read_idx(tmp_path / "a.gz")


def archive(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_cifar_archives_are_read_without_unpacking_them(tmp_path: Path, publish: Publish) -> None:
    images = pixels(20, 3, 32, 32)
    labels = np.arange(20, dtype=np.uint8)
    batch = np.concatenate([labels[:, None] % 10, images.reshape(20, -1)], 1).tobytes()
    members = {f"cifar-10-batches-bin/data_batch_{i}.bin": batch for i in range(1, 6)}
    archive(tmp_path / "cifar-10-binary.tar.gz", members | {"cifar-10-batches-bin/test_batch.bin": batch})
    publish(tmp_path, "cifar-10-binary.tar.gz")
    train, test = (data.load("cifar10", tmp_path, split) for split in ("train", "test"))
    assert len(train) == 100
    assert torch.equal(test.x, torch.from_numpy(images))
    assert test.y.tolist() == (labels % 10).tolist()
    assert test.classes is not None
    assert test.classes[3] == "cat"
    fine = np.concatenate([labels[:, None], 99 - labels[:, None], images.reshape(20, -1)], 1).tobytes()
    archive(tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-binary/test.bin": fine})
    publish(tmp_path, "cifar-100-binary.tar.gz")
    hundred = data.load("cifar100", tmp_path, "test")
    assert hundred.y.tolist() == (99 - labels).tolist()  # the fine label, not the coarse one before it
    assert torch.equal(hundred.x, test.x)
    assert hundred.num_outputs == 100
    assert sorted(set(PUBLIC["cifar100"]["classes"])) == PUBLIC["cifar100"]["classes"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "cifar-10-binary.tar.gz",
        "cifar-100-binary.tar.gz",
    ]


def test_a_cifar_folder_is_read_and_a_damaged_one_refused(tmp_path: Path, publish: Publish) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    (folder / "test_batch.bin").write_bytes(bytes([7, *[1] * 3072]))
    assert data.load("cifar10", tmp_path, "test").y.tolist() == [7]
    (folder / "test_batch.bin").write_bytes(bytes(3072))
    with pytest.raises(ValueError, match="not a multiple of the record of 3073"):
        data.load("cifar10", tmp_path, "test")
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(b"not an archive")
    with pytest.raises(ValueError, match="not the published file"):
        data.load("cifar100", tmp_path)
    publish(tmp_path, "cifar-100-binary.tar.gz")
    with pytest.raises(ValueError, match="not a whole tar archive"):
        data.load("cifar100", tmp_path)
    archive(tmp_path / "cifar-100-binary.tar.gz", {"cifar-100-python/train": b"pickle"})
    publish(tmp_path, "cifar-100-binary.tar.gz")
    with pytest.raises(ValueError, match="binary version"):
        data.load("cifar100", tmp_path)


def test_svhn_calls_zero_ten(tmp_path: Path, publish: Publish) -> None:
    from scipy.io import savemat

    images = pixels(3, 32, 32, 3)
    (tmp_path / "svhn").mkdir()
    savemat(
        tmp_path / "svhn" / "test_32x32.mat",
        {"X": images.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [9]])},
    )
    publish(tmp_path, "svhn/test_32x32.mat")
    svhn = data.load("svhn", tmp_path, "test", download=False)
    assert svhn.y.tolist() == [0, 1, 9]
    assert torch.equal(svhn.x, torch.from_numpy(images).permute(0, 3, 1, 2))
    (tmp_path / "svhn" / "test_32x32.mat").write_bytes(b"x" * 300)
    publish(tmp_path, "svhn/test_32x32.mat")
    with pytest.raises(ValueError, match=r"not a \.mat file"):
        data.load("svhn", tmp_path, "test")


def test_only_the_published_file_of_svhn_reaches_scipy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reader is written in C, and a mutant of a .mat file once crashed it."""
    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: pytest.fail("read before it was checked"))
    (tmp_path / "svhn").mkdir()
    for place in ("svhn/test_32x32.mat", "test_32x32.mat"):
        (tmp_path / place).write_bytes(b"MATLAB 5.0 MAT-file")
        with pytest.raises(ValueError, match="not the published file"):
            data.load("svhn", tmp_path, "test")
        (tmp_path / place).unlink()


def test_an_npz_of_images_is_read_channels_last_and_scaled_by_its_training_split(tmp_path: Path) -> None:
    arrays = {"x_train": pixels(50, 6, 5, 3), "y_train": np.arange(50, dtype=np.uint8)[:, None] % 4}
    np.savez(tmp_path / "own.npz", **arrays, x_test=pixels(10, 6, 5, 3) // 2, y_test=np.zeros(10, np.int32))
    train, test = (data.load("own.npz", tmp_path, split) for split in ("train", "test"))
    assert train.shape == (3, 6, 5)
    assert torch.equal(train.x[7, 2], torch.from_numpy(arrays["x_train"][7, :, :, 2]))
    assert train.classes == test.classes == ("0", "1", "2", "3")
    torch.testing.assert_close(train.inputs().mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(train.inputs().std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert test.inputs().mean() < -0.5
    mean, std = (torch.from_numpy(t).view(-1, 1, 1) for t in (test.scaling.mean, test.scaling.std))
    torch.testing.assert_close(255 * (test.inputs() * std + mean), test.x.float(), atol=1e-3, rtol=0)


def test_a_named_set_is_read_from_an_npz_of_its_name_and_the_scaling_can_be_replaced(tmp_path: Path) -> None:
    x, y = pixels(10, 28, 28), np.arange(10)
    np.savez(tmp_path / "fashion_mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    own = data.Scaling(torch.tensor([0.5]), torch.tensor([0.25]), 255.0)
    fashion = data.load("fashion-mnist", tmp_path, "test", scaling=own)
    expected = (torch.from_numpy(x)[:, None].float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(fashion.inputs(), expected)
    assert fashion.classes is not None
    assert fashion.classes[1] == "trouser"
    np.savez(tmp_path / "fashion_mnist.npz", x_train=x / 255, y_train=y, x_test=x / 255, y_test=y)
    with pytest.raises(ValueError, match="expected uint8 images"):
        data.load("fashion-mnist", tmp_path)


def test_images_without_labels_carry_minus_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "ood.npz", x=pixels(10, 32, 32, 3))
    ood = data.load(tmp_path / "ood.npz", split="test")
    assert len(ood) == 10
    assert ood.y.tolist() == [-1] * 10


def test_regression_is_standardised_by_the_training_rows_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(5, 3, (200, 4)), rng.normal(-20, 7, (200, 2))
    x[:, 3] = 8.0
    np.savez(tmp_path / "r.npz", x=x, y=y)
    np.savetxt(tmp_path / "r.csv", np.c_[x, y], delimiter=";", header="a;b;c;d;e;f", comments="", fmt="%.17g")
    for source in ("r.npz", "r.csv"):
        train, test = (data.load(tmp_path / source, split=s, csv_targets=2) for s in ("train", "test"))
        assert (len(train), len(test), train.num_outputs, train.classes) == (160, 40, 2, None)
        torch.testing.assert_close(train.targets().mean(0), torch.zeros(2), atol=1e-5, rtol=0)
        torch.testing.assert_close(train.inputs()[:, :3].std(0, correction=0), torch.ones(3))
        assert train.inputs()[:, 3].abs().max() < 1e-5  # a constant column
        assert train.target_scaling is not None
        torch.testing.assert_close(torch.from_numpy(test.scaling.mean), train.x.mean(0))
        mean, std = train.target_scaling.mean, train.target_scaling.std
        torch.testing.assert_close(test.targets() * torch.from_numpy(std) + torch.from_numpy(mean), test.y)
        rows = {tuple(row) for row in torch.cat([train.y, test.y]).tolist()}
        assert rows == {tuple(row) for row in y.astype(np.float32).tolist()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,x\n", "'x' to float64 at row 1, column 2"),
        ("1,2\n3,nan\n", "data row 2, column 2 is nan"),
        ("1,2\n3\n", "number of columns changed"),
        ("1\n2\n", "1 columns cannot hold 1 targets"),
    ],
)
def test_a_bad_csv_file_is_refused_with_the_place(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path / "bad.csv")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros(3)}, r"no x_train.*\['images'\]"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(4)}, "3 inputs and 4 targets"),
        ({"x": np.array([[0.0], [np.inf]]), "y": np.zeros(2)}, "x has a value that is not finite in row 1"),
        ({"x": np.zeros((3, 3, 8, 8), np.uint8), "y": np.zeros(3)}, r"\[N, H, W, C\]"),
        ({"x": np.zeros((3, 2)), "y": np.zeros((3, 2), int)}, r"labels must be \[N\]"),
        ({"x": np.array([{}, {}]), "y": np.zeros(2)}, "not an npz file of plain arrays"),
    ],
)
def test_a_bad_npz_file_is_refused(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path / "bad.npz")


def test_a_file_that_only_claims_to_be_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"hello")
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    for name in ("a.npz", "b.npz"):
        with pytest.raises(ValueError, match="not an npz file"):
            data.load(tmp_path / name)


def save_image(path: Path, values: np.ndarray) -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(values).save(path)


@pytest.mark.parametrize(("width", "height"), [(6_001, 4_000), (1, 65_537)])
def test_a_picture_too_large_for_memory_is_refused_before_it_is_unfolded(
    width: int, height: int, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("1", (width, height)).save(tmp_path / "large.png")
    with pytest.raises(ValueError, match="24,000,000 in all and 65,536 a side"):
        formats.open_image(tmp_path / "large.png")


def test_a_folder_of_images_is_read_class_by_class(tmp_path: Path) -> None:
    colour, grey = pixels(6, 8, 8, 3), pixels(4, 8, 8)
    for i in range(6):
        save_image(tmp_path / "photos" / "cat" / f"{i}.png", colour[i])
    for i in range(4):
        save_image(tmp_path / "photos" / "dog" / f"{i}.png", grey[i])
    (tmp_path / "photos" / "cat" / "notes.txt").write_text("not an image")
    train, test = (data.load(tmp_path / "photos", split=split) for split in ("train", "test"))
    assert train.classes == ("cat", "dog")
    assert (len(train), len(test)) == (8, 2)
    assert test.y.tolist() == [0, 1]
    assert train.shape == (3, 8, 8)
    cats = torch.cat([train.x[train.y == 0], test.x[test.y == 0]]).flatten(1)
    assert {tuple(row) for row in cats.tolist()} == {
        tuple(row) for row in colour.transpose(0, 3, 1, 2).reshape(6, -1).tolist()
    }
    assert data.load(tmp_path / "photos", image_size=(4, 6)).shape == (3, 4, 6)
    save_image(tmp_path / "photos" / "dog" / "big.png", pixels(1, 9, 8)[0])
    with pytest.raises(ValueError, match=r"big\.png is 9 x 8.*image_size"):
        data.load(tmp_path / "photos")
    (tmp_path / "photos" / "dog" / "big.png").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"big\.png: not an image"):
        data.load(tmp_path / "photos")


def test_a_divided_folder_of_images_keeps_its_split(tmp_path: Path) -> None:
    for split, n in (("train", 3), ("test", 2)):
        for i in range(n):
            save_image(tmp_path / split / "only" / f"{i}.png", pixels(n, 4, 4)[i])
    assert len(data.load(tmp_path)) == 3
    assert len(data.load(tmp_path, split="test")) == 2
    with pytest.raises(ValueError, match="no folders of images"):
        data.load(tmp_path / "train" / "only")


def test_digits_come_whole_in_two_disjoint_stratified_splits() -> None:
    from sklearn.datasets import load_digits

    train, test = (data.load("digits", split=split) for split in ("train", "test"))
    assert (len(train), len(test), train.shape, train.num_outputs) == (1438, 359, (1, 8, 8), 10)
    everything = torch.cat([train.x, test.x]).flatten(1).tolist()
    assert sorted(everything) == sorted(load_digits().data.astype(int).tolist())
    shares = test.y.bincount() / (train.y.bincount() + test.y.bincount())
    assert (shares - 0.2).abs().max() < 0.006  # one image in 180
    assert train.inputs().mean().abs() < 0.01
    assert abs(train.inputs().std() - 1) < 0.01


def test_diabetes_is_a_regression() -> None:
    diabetes = data.load("diabetes")
    assert (len(diabetes), diabetes.shape, diabetes.num_outputs, diabetes.classes) == (354, (10,), 1, None)


def test_the_folder_is_the_argument_or_the_environment_or_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POCKETBAYES_DATA", str(tmp_path / "env"))
    assert data.data_folder(tmp_path) == tmp_path
    assert data.data_folder() == tmp_path / "env"
    monkeypatch.delenv("POCKETBAYES_DATA")
    assert data.data_folder() == Path.home() / ".cache" / "pocketbayes"


def test_unknown_names_and_splits_are_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Did you mean cifar10\?"):
        data.load("cifr10", tmp_path)
    with pytest.raises(FileNotFoundError, match="by name: digits, diabetes, mnist"):
        data.load("/no/such/thing", tmp_path)
    with pytest.raises(ValueError, match="hold_out"):
        data.load("digits", split="validation")
