"""A file's graph in ONNX Runtime answers as its network does in torch."""

from __future__ import annotations

import resource
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import pocketbayes as pb
from pocketbayes.artifact import decode, encode
from pocketbayes.errors import ArtifactError
from pocketbayes.runtime import networks
from runtime_files import CASES, inputs, make, mlp, parts_of


def assert_same(found: Any, expected: Any, atol: float = 1e-4) -> None:
    ours, theirs = parts_of(found), parts_of(expected)
    assert list(ours) == list(theirs)
    for part, values in theirs.items():
        np.testing.assert_allclose(ours[part], values, rtol=0, atol=atol, err_msg=part)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runtime") / "laplace.pocket"
    make("laplace", path)
    return path


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_torch(name: str, tmp_path: Path) -> None:
    in_torch, x = make(name, tmp_path / "a.pocket"), inputs(name, 40)
    in_onnx = pb.open(tmp_path / "a.pocket", runtime="onnx")
    assert_same(in_onnx.predict(x, seed=5), in_torch.predict(x, seed=5))
    assert_same(in_onnx.predict(x, samples="mean"), in_torch.predict(x, samples="mean"))
    other = parts_of(in_onnx.predict(x, seed=6))
    first = next(iter(other))
    assert np.abs(other[first] - parts_of(in_torch.predict(x, seed=5))[first]).max() > 1e-3


def test_as_many_draws_as_needed_are_those_of_torch(file: Path) -> None:
    in_torch, x = pb.open(file, mlp()), inputs("laplace", 40)
    expected = in_torch.predict(x, samples="auto", tolerance=0.05)
    found = pb.runtime.open(file).predict(x, samples="auto", tolerance=0.05)
    assert_same(found, expected)
    assert len(set(found.passes.tolist())) > 1


def test_scores_are_those_of_torch(file: Path) -> None:
    x, y = inputs("laplace", 40), np.arange(40) % 3
    expected = pb.open(file, mlp()).evaluate(torch.from_numpy(x), torch.from_numpy(y), ood=x + 3)
    assert pb.runtime.open(file).evaluate(x, y, ood=x + 3) == pytest.approx(expected, abs=1e-4)


def test_one_input_is_answered_like_the_same_among_many(file: Path) -> None:
    model, x = pb.runtime.open(file, batch_size=7), inputs("laplace", 20)
    whole = model.predict(x)
    np.testing.assert_allclose(model.predict(x[3]).probs, whole.probs[3:4], atol=1e-6)
    assert whole.probs.dtype == np.float64 and isinstance(whole.sure, np.ndarray)


def test_threads_and_a_small_memory_change_nothing(file: Path) -> None:
    x = inputs("laplace", 20)
    expected = pb.runtime.open(file).predict(x)
    model = pb.runtime.open(file, threads=2, max_bytes=0)
    np.testing.assert_array_equal(model.predict(x).probs, expected.probs)
    assert not model.networks._kept
    found: list[Any] = []
    users = [threading.Thread(target=lambda: found.append(model.predict(x).probs)) for _ in range(3)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert len(found) == 3 and all(np.array_equal(one, expected.probs) for one in found)


def test_drawn_networks_are_kept_within_the_memory_given(file: Path) -> None:
    x, size = inputs("laplace", 2), 2 * 4 * (8 * 32 + 32 * 32 + 32 * 3 + 32 + 32 + 3) + networks.OVERHEAD
    model = pb.runtime.open(file, max_bytes=5 * size)
    model.predict(x, samples=9)
    assert len(model.networks._kept) == 5
    model.predict(x, samples=3, seed=1)  # those of another seed make room
    assert {known.seed for known in model.networks._kept} == {1}


# --- bad input ---------------------------------------------------------------------------------------------------


def test_inputs_of_another_shape_or_kind_are_named(file: Path) -> None:
    model = pb.runtime.open(file)
    with pytest.raises(ValueError, match=r"shape \(4, 7\); the network takes inputs of shape \(8,\)"):
        model.predict(np.zeros((4, 7), np.float32))
    with pytest.raises(ValueError, match="NaN or infinity, first in example 1"):
        model.predict(np.array([[0.0] * 8, [np.nan] * 8]))
    with pytest.raises(ValueError, match="at least one example"):
        model.predict(np.zeros((0, 8), np.float32))
    with pytest.raises(ValueError, match="could not convert string to float"):
        model.predict(np.full((2, 8), "a"))


def changed(file: Path, target: Path, **changes: Any) -> Path:
    target.write_bytes(encode(replace(decode(file), **changes)).data)
    return target


def test_a_file_without_a_graph_says_how_to_add_one(file: Path, tmp_path: Path) -> None:
    path = changed(file, tmp_path / "plain.pocket", graph=b"")
    with pytest.raises(
        ArtifactError, match=r"plain\.pocket: the file has no graph\. .* pb\.add_graph, or `pocket"
    ):
        pb.runtime.open(path)


def test_a_graph_of_other_inputs_than_the_card_says_is_refused(file: Path, tmp_path: Path) -> None:
    path = changed(file, tmp_path / "x.pocket", metadata={**decode(file).metadata, "shape": [9]})
    with pytest.raises(ArtifactError, match=r"takes float32 of shape \(None, 8\), not .* of \(9,\)"):
        pb.runtime.open(path)


def test_a_graph_of_another_network_does_not_fit_the_tensors(file: Path, tmp_path: Path) -> None:
    make("regression", tmp_path / "other.pocket")
    wide = pb.bayesianize(pb.nets.mlp([8, 5, 3]))
    pb.save(wide, tmp_path / "wide.pocket", example=torch.zeros(2, 8), metadata=decode(file).metadata)
    path = changed(file, tmp_path / "x.pocket", graph=decode(tmp_path / "wide.pocket").graph)
    with pytest.raises(ArtifactError, match="the graph"):
        pb.runtime.open(path).predict(inputs("laplace", 2))


def test_a_graph_that_asks_for_too_much_at_run_time_ends_in_an_error(file: Path, tmp_path: Path) -> None:
    """No constant asks for more than 2^28 elements, their product does."""
    from pocketbayes.artifact import graph, protobuf

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    pocket = decode(file)
    model = protobuf.read(graph.read(pocket).model, graph.MODEL, "graph")
    main = model["graph"]
    last = main["output"][0]["name"]
    for name in ("0", "1"):  # [N, 3] repeated 2^28 times, twice
        main["node"].append({"op_type": "Tile", "input": [last, "times"], "output": [f"tiled{name}"]})
        last = f"tiled{name}"
    times = np.array([1 << 28, 1], np.int64)
    main["initializer"].append({"name": "times", "dims": (2,), "data_type": 7, "raw_data": times.tobytes()})
    main["output"][0]["name"] = last
    path = changed(file, tmp_path / "x.pocket", graph=graph.pack(model))
    with pytest.raises(ArtifactError, match="the graph cannot be run"):
        pb.runtime.open(path).predict(inputs("laplace", 2), samples=1)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert used < before + (1 << 30)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, r"needs onnxruntime, which is not installed. Run: pip install 'pocketbayes\[runtime\]'"),
        (
            SimpleNamespace(__version__="1.17.3"),
            r"1\.17\.3 is too old, 1\.22 is needed\. Run: pip install --upgrade onnxruntime",
        ),
    ],
)
def test_onnx_runtime_missing_or_too_old_is_one_line(
    found: Any, message: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", found)
    with pytest.raises(ImportError, match=message):
        pb.runtime.open(file)


@pytest.mark.parametrize(
    "options",
    [{"threads": 0}, {"batch_size": 0}, {"max_weights": 10}],
    ids=lambda options: next(iter(options)),
)
def test_senseless_options_are_refused(options: dict[str, int], file: Path) -> None:
    with pytest.raises(ValueError, match=r"at least 1|elements"):
        pb.runtime.open(file, **options)


def test_the_choice_of_runtime_is_checked(file: Path) -> None:
    with pytest.raises(ValueError, match='must be "torch" or "onnx"'):
        pb.open(file, runtime="jax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="net= is for torch"):
        pb.open(file, mlp(), runtime="onnx")


def test_a_session_takes_one_thread(file: Path) -> None:
    model = pb.runtime.open(file)
    options = model.networks._session(networks.WhichNetwork(0, 0)).get_session_options()
    assert isinstance(options, onnxruntime.SessionOptions)
    assert options.intra_op_num_threads == options.inter_op_num_threads == 1
