"""Networks by name, weights into them, a user's own data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn

from cli_runs import complaint
from pocketbayes import nets
from pocketbayes.artifact.plain_weights import load_weights
from pocketbayes.cli.datasets import Data
from pocketbayes.cli.network import builder
from pocketbayes.cli.options import TrainingData
from pocketbayes.data import DataSet, Scaling
from pocketbayes.data.scaling import measured_scaling
from pocketbayes.data.splits import splits_from
from pocketbayes.prediction.scaling_check import scaling_warning


def tiny() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))


def images(channels: int, size: int, classes: int) -> DataSet:
    x = torch.zeros(classes, channels, size, size, dtype=torch.uint8)
    names = tuple(map(str, range(classes)))
    scaling = Scaling(torch.zeros(channels), torch.ones(channels), 255.0)
    return DataSet(name="none", x=x, y=torch.arange(classes), classes=names, scaling=scaling)


@pytest.mark.parametrize(
    ("spec", "data"),
    [
        ("digits_net", images(1, 8, 7)),
        ("lenet", images(3, 32, 5)),
        ("resnet20", images(1, 32, 4)),
        ("mlp:5,4", images(2, 3, 6)),
        ("mlp", images(2, 3, 6)),
    ],
)
def test_networks_by_name_fit_the_data(spec: str, data: DataSet) -> None:
    function = builder(spec)
    network = function(**nets.taken(function, nets.facts_of(data.shape, data.num_outputs))).eval()
    assert network(data.inputs()).shape == (len(data), len(data.classes or ()))


@pytest.mark.parametrize("wrapping", ["bare", "state_dict", "module", "both", "safetensors", "compiled"])
def test_weights_are_found_in_their_usual_wrappings(wrapping: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    source, target = tiny(), tiny()
    state = dict(source.state_dict())
    path = tmp_path / ("w.safetensors" if wrapping == "safetensors" else "w.pt")
    prefixed = {f"module.{k}": v for k, v in state.items()}
    content = {
        "bare": state,
        "state_dict": {"state_dict": state, "epoch": 3, "optimizer": {"lr": 0.1}},
        "module": prefixed,
        "both": {"epoch": 1, "model": {"state_dict": prefixed}},
        "compiled": {f"_orig_mod.module.{k}": v for k, v in state.items()},
    }
    if wrapping == "safetensors":
        save_file(state, path)
    elif wrapping == "compiled":
        torch.save({f"_orig_mod.{k}": v for k, v in state.items()}, path)
    else:
        torch.save(content[wrapping], path)
    load_weights(target, path)
    for name, value in target.state_dict().items():
        assert torch.equal(value, state[name])


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    state = dict(tiny().state_dict())
    del state["0.bias"]
    state |= {"0.weight": torch.zeros(4, 3), "head.weight": torch.zeros(1)}
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ValueError) as error:
        load_weights(tiny(), tmp_path / "w.safetensors")
    message = str(error.value)
    for part in ("missing: 0.bias", "not in the network: head.weight", "0.weight is 4x3 in the file, 2x3"):
        assert part in message


def test_a_long_list_of_missing_tensors_is_cut(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"missing: conv1\.weight, bn1\.weight, bn1\.bias and \d+ more"):
        load_weights(nets.resnet20(), tmp_path / "w.safetensors")


class Danger:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('executed')",))


def test_nothing_in_a_weights_file_is_executed(tmp_path: Path) -> None:
    torch.save({"w": Danger()}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match="weights_only"):
        load_weights(tiny(), tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--net lennet --data digits --weights plain.safetensors", 2, "nearest is 'lenet'"),
        ("--net mlp:4,x --data digits --weights plain.safetensors", 2, "mlp:64,64"),
        ("--net nowhere.nets:net --data digits --weights plain.safetensors", 1, "no module 'nowhere'"),
        ("--net shopnets:nett --data digits --weights plain.safetensors", 1, "no 'nett'"),
        ("--net shopnets:value --data digits --weights plain.safetensors", 1, "no function"),
        ("--net shopnets:broken --data digits --weights plain.safetensors", 1, "no such layer"),
        ("--net shopnets:no_network --data digits --weights plain.safetensors", 1, "not an nn.Module"),
        ("--net faulty:net --data digits --weights plain.safetensors", 1, "importing faulty failed"),
        ("--net needy:net --data digits --weights plain.safetensors", 1, "needs absent_package"),
        ("--net shopnets:sized --data digits --weights plain.safetensors", 1, "does not fit"),
        ("--net shopnets:net --data digits --weights none.safetensors", 1, "none.safetensors"),
        ("--net shopnets:net --data digits --weights broken.safetensors", 1, "not a safetensors file"),
        ("--net shopnets:net --data digits --weights broken.pt", 1, "weights_only=True"),
        ("--net shopnets:net --data digitz --weights plain.safetensors", 1, "Did you mean digits?"),
        ("--net shopnets:net --data none.npz --weights plain.safetensors", 1, "none.npz"),
        ("--net shopnets:net --data shopnets:nonsense --weights plain.safetensors", 1, "(train, test)"),
        ("--net shopnets:net --data shopnets:absent --weights plain.safetensors", 1, "no 'absent'"),
        ("--net shopnets:net --data digits --weights plain.safetensors --mean 0.1", 2, "--std"),
        ("--net shopnets:net --data digits --weights plain.safetensors --mean 0.1 --std x", 2, "--std x"),
        ("--net shopnets:net --data digits --weights plain.safetensors --mean 1,2 --std 1,2", 1, "2 means"),
        ("--net mlp:8 --data shopnets:line --weights line.safetensors --augment", 2, "--augment"),
        ("--net shopnets:net --data digits --weights plain.safetensors --out nowhere/small", 1, "nowhere"),
        (
            "--net shopnets:net --data digits --weights plain.safetensors --out folder.pocket",
            1,
            "is a folder",
        ),
        ("--net shopnets:net --data digits --weights plain.safetensors --max-bytes 50", 1, "cannot be met"),
    ],
)
def test_a_call_that_cannot_work_is_one_line_and_leaves_no_file(
    options: str, code: int, message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "faulty.py").write_text("1 / 0\n")
    (here / "needy.py").write_text("import absent_package\n")
    (here / "broken.safetensors").write_bytes(b"not tensors at all")
    (here / "broken.pt").write_bytes(b"neither")
    (here / "folder.pocket").mkdir()
    chosen = options if "--out" in options else f"{options} --out made"
    budget = "" if "--max-bytes" in options else " --max-bytes 3000"
    assert message in complaint(f"compress {chosen}{budget} --epochs 1", code, capsys)
    assert not [path for path in here.glob("**/*") if path.name.startswith("made.") and path.is_file()]


# --- a user's own data -----------------------------------------------------------------------------------------


class Pairs(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((2,), float(index)), index % 3


def test_arrays_dicts_and_torch_data_sets_are_the_same_data() -> None:
    x, y = np.repeat(np.arange(6.0), 2).reshape(6, 2), np.arange(6) % 3
    forms = [
        ((x, y), (x, y)),
        {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "classes": ["0", "1", "2"]},
        (Pairs(), Pairs()),
    ]
    for form in forms:
        train, test = map(DataSet.of, splits_from("f", form))
        assert train.classes == test.classes == ("0", "1", "2")
        assert torch.equal(train.inputs().double(), torch.from_numpy(x))  # as it is
        assert torch.equal(test.targets(), torch.from_numpy(y))


def test_bytes_of_a_users_function_are_standardised() -> None:
    x = torch.randint(0, 256, (50, 3, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    train, _ = splits_from("f", ((x, torch.arange(50) % 2), (x, torch.arange(50) % 2)))
    seen = DataSet.of(train).inputs().double()
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        seen.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64), atol=1e-5, rtol=0
    )


def test_given_means_and_deviations_replace_the_measured_ones() -> None:
    data = Data("digits", TrainingData(data="digits", mean=[0.5], std=[0.25])).train
    expected = (data.x.float() / 16 - 0.5) / 0.25
    torch.testing.assert_close(data.inputs(), expected)


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_weights_that_know_inputs_as_they_are_are_noticed(shift: float) -> None:
    """A network fitted to inputs as they are, and one fitted to what the commands make of them."""
    x, y = load_digits(return_X_y=True)
    x = x / 16 + shift
    raw = DataSet(
        name="pixels",
        x=torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8),
        y=torch.tensor(y),
        classes=tuple("0123456789"),
        scaling=measured_scaling(x.reshape(-1, 1, 8, 8)),
    )
    scaled = raw.inputs().reshape(-1, 64).numpy()
    for known, noticed in ((x, shift > 0), (scaled, False)):
        fitted = LogisticRegression(max_iter=500).fit(known, y)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        with torch.no_grad():
            net[1].weight.copy_(torch.tensor(fitted.coef_))
            net[1].bias.copy_(torch.tensor(fitted.intercept_))
        assert ("--mean 0 --std 1" in scaling_warning(net, raw)) == noticed
