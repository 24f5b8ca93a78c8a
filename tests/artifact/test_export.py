from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.artifact import FLOAT32, decode, graph
from pocketbayes.artifact.dense import mean_weights, sample_weights
from pocketbayes.artifact.portable import portable
from pocketbayes.errors import ArtifactError
from pocketbayes.prediction.scales import Scale, Scales, give_scales


class Network(nn.Module):
    """A bit of everything: a norm with buffers, a tied weight, a constant in the code, a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.mix, self.back = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        self.back.weight = self.mix.weight
        self.register_buffer("steps", torch.linspace(-1, 1, 4), persistent=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        hidden = torch.tanh(self.mix(hidden)) + self.steps
        return {"hidden": hidden, "logits": self.back(self.mix(hidden))}


def network() -> nn.Module:
    torch.manual_seed(0)
    net = Network()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2)
    return net


def images(count: int) -> Tensor:
    return torch.randn(count, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def run(model: str | bytes, **inputs: Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {name: x.numpy() for name, x in inputs.items()})[0]  # type: ignore[no-any-return]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) if float(x.sum()) > 0 else self.down(x)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return pb.bayesianize(network(), sigma=pb.Absolute(0.1)).eval()


@pytest.fixture(scope="module")
def saved(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "net.pocket"
    pb.save(model, path, precision=FLOAT32, example=images(1))
    return path


def test_the_graph_of_a_file_runs_as_torch_does_for_any_number_of_inputs(
    model: nn.Module, saved: Path
) -> None:
    pocket, x = decode(saved), images(5)
    with torch.no_grad(), pb.mean_weights(model):
        means = model(x)["logits"].numpy()
    with torch.no_grad(), pb.one_draw(model, 3, 7):
        draw = model(x)["logits"].numpy()
    for weights, expected in ((mean_weights(pocket), means), (sample_weights(pocket, 3, 7), draw)):
        for count in (1, 2, 5):
            found = run(portable(pocket, weights), x=x[:count])
            np.testing.assert_allclose(found, expected[:count], atol=1e-5)
    assert np.abs(means - draw).max() > 1e-2


def test_the_graph_reads_tensors_of_the_file_and_holds_no_others(saved: Path) -> None:
    found = graph.read(decode(saved))
    names = {"conv.weight", "mix.weight", "mix.bias"}
    names |= {f"norm.{part}" for part in ("weight", "bias", "running_mean", "running_var")}
    assert set(found.tensors.values()) == names  # `back.weight` is `mix.weight`
    assert found.inputs == [("x", "float32", (None, 2, 6, 6))]
    assert [(port.dtype, port.shape) for port in found.outputs] == [("float32", (None, 4))]
    theirs = onnx.load_from_string(found.model).graph
    assert "BatchNormalization" in [node.op_type for node in theirs.node]
    assert sum(len(t.raw_data) for t in theirs.initializer) < 64  # `steps` and axes


def test_the_graph_is_the_same_bytes_for_the_same_network(saved: Path, tmp_path: Path) -> None:
    other = pb.bayesianize(Network(), sigma=pb.Absolute(0.3))
    pb.save(other, tmp_path / "other.pocket", example=images(4))
    assert decode(tmp_path / "other.pocket").graph == decode(saved).graph


def test_a_graph_is_added_to_a_file_and_all_else_stays(saved: Path, model: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "plain.pocket"
    without = pb.save(model, path, precision=FLOAT32, metadata={"note": 1})
    sizes = pb.add_graph(path, Network(), images(2)).sections
    assert {**sizes, "GRAF": 0, "frame": 0} == {**without.sections, "GRAF": 0, "frame": 0}
    assert decode(path).graph == decode(saved).graph and decode(path).metadata == {"note": 1}
    loaded = pb.load(path, Network())
    assert torch.equal(
        loaded.mix.parametrizations.weight.original, model.mix.parametrizations.weight.original
    )


def test_a_graph_of_another_architecture_is_not_added(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(ArtifactError, match="another architecture"):
        pb.add_graph(saved, nn.Linear(4, 2), torch.ones(1, 4))
    assert saved.read_bytes() == before


def test_a_network_that_cannot_be_exported_is_saved_without_a_graph(tmp_path: Path) -> None:
    branches = pb.bayesianize(Branches())
    with pytest.warns(UserWarning, match="The file will have no graph: .*data-dependent") as warned:
        saved = pb.save(branches, tmp_path / "b.pocket", example=torch.ones(1, 4))
    assert "\n" not in str(warned[0].message) and str(warned[0].message).endswith(saved.no_graph)
    assert f"no graph: {saved.no_graph}" in str(saved) and "GRAF" not in saved.sections
    pb.load(tmp_path / "b.pocket", Branches())
    with pytest.raises(ArtifactError, match="data-dependent"):
        pb.add_graph(tmp_path / "b.pocket", Branches(), torch.ones(1, 4))


def test_without_the_exporters_packages_a_file_is_saved_without_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pocketbayes.artifact.to_graph.NEEDED", ("onnx", "no_such_package"))
    with pytest.warns(UserWarning, match=r"needs no_such_package: pip install 'pocketbayes\[export\]'"):
        pb.save(pb.bayesianize(nn.Linear(4, 2)), tmp_path / "x.pocket", example=torch.ones(1, 4))


def test_exporting_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = pb.bayesianize(network()).train()
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    pb.to_onnx(model, tmp_path / "x.onnx", example=images(2))
    assert torch.equal(torch.rand(2), expected) and model.training
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("options", "temperature"), [({}, 2.5), ({"seed": 3, "number": 7}, 1.0)])
def test_an_onnx_file_answers_as_the_means_with_their_temperature_or_as_a_draw(
    model: nn.Module, tmp_path: Path, options: dict[str, Any], temperature: float
) -> None:
    model, path, x = copy.deepcopy(model), tmp_path / "net.onnx", images(3)
    give_scales(model, Scales(mean=Scale(2.5)))
    assert pb.to_onnx(model, path, example=x, **options) == path
    whole = onnx.load(path)
    onnx.checker.check_model(whole, full_check=True)
    assert [value.name for value in whole.graph.output] == ["output"]
    assert {"conv.weight", "mix.weight"} < {tensor.name for tensor in whole.graph.initializer}
    with torch.no_grad(), pb.one_draw(model, 3, 7) if options else pb.mean_weights(model):
        expected = model(x)["logits"] / temperature
    np.testing.assert_allclose(run(str(path), x=x), expected.numpy(), atol=1e-5)


def test_a_temperature_must_be_positive(saved: Path) -> None:
    pocket = decode(saved)
    with pytest.raises(ValueError, match="logit_temperature must be positive, got 0"):
        portable(pocket, mean_weights(pocket), logit_temperature=0.0)


@pytest.mark.slow
def test_the_graph_of_resnet20_takes_less_than_a_kilobyte(tmp_path: Path) -> None:
    saved = pb.save(
        pb.bayesianize(pb.nets.resnet20()), tmp_path / "r.pocket", example=torch.randn(1, 3, 32, 32)
    )
    assert 0 < saved.sections["GRAF"] < 1000
