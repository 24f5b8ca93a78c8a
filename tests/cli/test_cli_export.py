"""`pocketbayes export`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import pocketbayes as pb
from cli_runs import complaint, result, run
from pocketbayes.artifact import decode
from pocketbayes.prediction.scales import scales_of

X = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def answers(file: str) -> np.ndarray:
    onnx.checker.check_model(onnx.load(file), full_check=True)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {session.get_inputs()[0].name: X.numpy()})[0]
    return found


def small(here: Path) -> torch.nn.Module:
    from shopnets import net

    return pb.load("small.pocket", net()).eval()


def test_the_means_are_exported_with_their_temperature(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = result("export small.pocket small.onnx", capsys)
    assert told["bytes"] == (here / "small.onnx").stat().st_size and told["draw"] is None
    model = small(here)
    with torch.no_grad(), pb.mean_weights(model):
        expected = model(X) / scales_of(model).mean.temperature
    np.testing.assert_allclose(answers("small.onnx"), expected.numpy(), atol=1e-5)


def test_a_draw_is_exported_as_predict_draws_it(here: Path) -> None:
    assert run("export small.pocket draw.onnx --seed 3 --draw 7") == 0
    model = small(here)
    with torch.no_grad(), pb.one_draw(model, 3, 7):
        expected = model(X)
    np.testing.assert_allclose(answers("draw.onnx"), expected.numpy(), atol=1e-5)


def test_an_onnx_model_takes_no_torch(here: Path) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from pocketbayes.cli import main\nmain(['export', 'small.pocket', 'small.onnx'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_file_without_a_graph_gets_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = decode("narrow.pocket")
    assert "the file has no graph" in complaint("export narrow.pocket narrow.onnx", 1, capsys)
    assert not (here / "narrow.onnx").exists()
    result("export narrow.pocket more.pocket", capsys)
    after = decode("more.pocket")
    assert after.metadata == before.metadata and after.graph and not before.graph
    assert run("export more.pocket narrow.onnx") == 0


def test_an_output_of_another_kind_is_a_wrong_call(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must end in .onnx or .pocket" in complaint("export small.pocket small.pt", 2, capsys)
