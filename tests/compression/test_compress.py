"""The whole pipeline on a small network."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes import artifact, nets
from pocketbayes.artifact import decode, encode, mean_weights
from pocketbayes.artifact.portable import portable
from pocketbayes.artifact.to_pocket import to_pocket
from pocketbayes.compression.compress import _DEFLATED, _RESERVED
from pocketbayes.compression.stages import CompressionReport
from pocketbayes.compression.steering import Steering
from pocketbayes.prediction.scales import Scale, Scales
from pocketbayes.runs import memory
from pocketbayes.training import loop


def blobs(n: int, seed: int) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    centres = torch.randn(4, 10, generator=torch.Generator().manual_seed(7))
    return TensorDataset(centres[y] + 0.5 * torch.randn(n, 10, generator=g), y)


def net() -> nn.Module:
    return nets.mlp([10, 48, 4])


TRAIN = DataLoader(blobs(512, 0), 64, shuffle=True)
VALIDATION = DataLoader(blobs(256, 1), 256)
PLAN = pb.Plan(epochs=4, finetune_epochs=1, temperature=0.01, tries=3)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(10):
            for x, y in TRAIN:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
    return model


def fp32_bytes(model: nn.Module) -> int:
    return 4 * sum(p.numel() for p in model.parameters())


def run(model: nn.Module, path: Path, **options) -> CompressionReport:
    settings = {"validation_loader": VALIDATION, "plan": PLAN, "progress": False, "graph": False, **options}
    return pb.compress(model, TRAIN, path=path / "model.pocket", **settings)


@pytest.mark.parametrize("share", [0.6, 0.35])
def test_the_file_keeps_the_budget_and_the_network_its_accuracy(
    trained: nn.Module, tmp_path: Path, share: float
) -> None:
    model, budget = copy.deepcopy(trained), int(share * fp32_bytes(trained))
    report = run(model, tmp_path, max_bytes=budget)
    assert report.bytes == (tmp_path / "model.pocket").stat().st_size
    assert 0.9 * budget < report.bytes <= budget
    loaded = pb.load(tmp_path / "model.pocket", net())
    before, after = pb.evaluate(trained, VALIDATION), pb.evaluate(loaded, VALIDATION)
    assert after.accuracy > before.accuracy - 0.03
    assert after.nll < before.nll + 0.1
    assert pb.evaluate(model, VALIDATION).nll == pytest.approx(after.nll, abs=0.01)  # in place, and on disk
    assert [s.name for s in report.stages] == ["start", "posterior", "sharing", "fine-tuning", "file"]
    assert "trainable scalars" in str(report)


def test_a_budget_of_loss_is_searched_for(trained: nn.Module, tmp_path: Path) -> None:
    model = copy.deepcopy(trained)
    report = run(model, tmp_path, max_accuracy_drop=0.05)
    start = report.stages[0].metrics["accuracy"]
    assert (
        pb.evaluate(pb.load(tmp_path / "model.pocket", net()), VALIDATION, samples=8).accuracy
        >= start - 0.055
    )
    assert sum(s.name.startswith("try") for s in report.stages) == 3
    assert report.bytes < 0.5 * fp32_bytes(trained)


def test_a_posterior_found_elsewhere_is_compressed_as_it_is(trained: nn.Module, tmp_path: Path) -> None:
    model = pb.bayesianize(copy.deepcopy(trained), sigma=pb.Absolute(0.02))
    assert run(model, tmp_path, max_bytes=1500).bytes <= 1500


def test_an_impossible_budget_names_the_smallest_reachable(trained: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be met.*takes \d+") as error:
        run(copy.deepcopy(trained), tmp_path, max_bytes=100)
    smallest = int(str(error.value).split("takes ")[1].split(" ")[0].replace(",", ""))
    assert run(copy.deepcopy(trained), tmp_path, max_bytes=smallest).bytes <= smallest


@pytest.mark.parametrize(("lr", "kept"), [(3e-4, True), (1.0, False)])
def test_fine_tuning_is_kept_where_validation_data_prefer_it(
    trained: nn.Module, tmp_path: Path, lr: float, kept: bool
) -> None:
    report = run(copy.deepcopy(trained), tmp_path, max_bytes=1600, plan=replace(PLAN, finetune_lr=lr))
    shared, tuned = (stage for stage in report.stages if stage.name in ("sharing", "fine-tuning"))
    assert ("taken back" not in tuned.note) == kept == (tuned.metrics != shared.metrics)
    assert tuned.metrics["nll"] <= shared.metrics["nll"]
    found = pb.evaluate(pb.load(tmp_path / "model.pocket", net()), VALIDATION, samples=PLAN.samples)
    assert found.nll == pytest.approx(tuned.metrics["nll"], abs=0.01)


@pytest.mark.parametrize(("lr", "kept"), [(1e-3, True), (0.1, False)])
def test_fine_tuning_never_exceeds_the_budget(tmp_path: Path, lr: float, kept: bool) -> None:
    """Labels in smooth kernels are coded by the means around them: their bytes change as the means move."""
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 64, 5), nn.Flatten(), nn.Linear(64 * 16, 4))
    with torch.no_grad():
        model[0].weight.copy_(0.02 * torch.randn(64, 8, 5, 5, generator=g).cumsum(-1).cumsum(-2))
        model[2].weight.zero_()
    images = TensorDataset(torch.randn(64, 8, 8, 8, generator=g), torch.randint(4, (64,), generator=g))
    plan = pb.Plan(epochs=1, finetune_epochs=8, lr=1e-4, finetune_lr=lr, temperature=0.01, renew_every=4)
    report = pb.compress(
        model,
        DataLoader(images, 16),
        path=tmp_path / "model.pocket",
        max_bytes=6000,
        plan=plan,
        graph=False,
        progress=False,
    )
    assert 5000 < report.bytes <= 6000
    tuned = next(stage for stage in report.stages if stage.name == "fine-tuning")
    assert (tuned.note == "") == kept, tuned.note


class Killed(Exception):
    pass


@pytest.mark.parametrize(("moment", "share"), [(3, 0.0), (12, 0.0), (25, 0.0), (36, 0.0), (20, 0.5)])
def test_an_interrupted_run_ends_with_the_same_bytes(
    trained: nn.Module, tmp_path: Path, moment: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while labels follow the weights (32 steps), or while the labels are fixed (the 8 after them).

    With distillation too, whose teacher is the network that the second call is given, not the half-trained one.
    """
    steps, take = 0, loop.TrainingRun.step

    def until(self: loop.TrainingRun) -> None:
        nonlocal steps
        steps += 1
        if steps == moment:
            raise Killed
        take(self)

    (tmp_path / "whole").mkdir()
    plan = replace(PLAN, distillation=share)
    run(copy.deepcopy(trained), tmp_path / "whole", max_bytes=1600, plan=plan)
    options = {"max_bytes": 1600, "plan": plan, "checkpoints": tmp_path / "checkpoints"}
    resumed = copy.deepcopy(trained)
    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingRun, "step", until)
        with pytest.raises(Killed):
            run(resumed, tmp_path, **options)
    assert str(resumed) == str(trained) and not resumed._forward_pre_hooks  # left as it came
    assert resumed.state_dict().keys() == trained.state_dict().keys()
    assert all(torch.equal(t, resumed.state_dict()[name]) for name, t in trained.state_dict().items())
    report = run(resumed, tmp_path, **options)
    assert report.bytes <= 1600
    files = [next(folder.glob("*.pocket")).read_bytes() for folder in (tmp_path, tmp_path / "whole")]
    assert files[0] == files[1]
    assert pb.evaluate(resumed, VALIDATION).accuracy > 0.9
    assert not list((tmp_path / "checkpoints").iterdir())  # the work is done: nothing is left


def test_checkpoints_of_another_run_are_refused(
    trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: loop.TrainingRun) -> None:
        raise Killed

    options = {"max_bytes": 1600, "checkpoints": tmp_path / "checkpoints"}
    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingRun, "step", stop)
        for _ in range(2):  # the second goes on where the first was
            with pytest.raises(Killed):
                run(copy.deepcopy(trained), tmp_path, **options)
    other = copy.deepcopy(trained)
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1e-3
    with pytest.raises(pb.errors.ArtifactError, match=r"the network was .*, is"):
        run(other, tmp_path, **options)
    for changed, message in (
        ({"plan": replace(PLAN, temperature=0.1)}, "temperature was 0.01, is 0.1"),
        ({"max_bytes": 1700}, "max_bytes was 1600, is 1700"),
        ({"num_data": 100}, "number of data was 512, is 100"),
    ):
        with pytest.raises(pb.errors.ArtifactError, match=message):
            run(copy.deepcopy(trained), tmp_path, **{**options, **changed})
    note = tmp_path / "checkpoints" / "run.json"
    told = note.read_text()
    note.write_text(told[:-9])
    with pytest.raises(pb.errors.ArtifactError, match="damaged"):
        run(copy.deepcopy(trained), tmp_path, **options)
    note.write_text(told)
    assert run(copy.deepcopy(trained), tmp_path, **options).bytes <= 1600


def test_a_path_that_cannot_be_written_is_noticed_first(trained: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        run(copy.deepcopy(trained), tmp_path / "nowhere", max_bytes=1600)


def test_data_that_are_not_finite_are_named(trained: nn.Module, tmp_path: Path) -> None:
    x, y = blobs(64, 0).tensors
    x[3, 2] = torch.nan
    with pytest.raises(pb.errors.NonFiniteError, match="Fisher information: the loss of batch 0"):
        pb.compress(
            copy.deepcopy(trained), [(x, y)], path=tmp_path / "m.pocket", max_bytes=1600, progress=False
        )


def test_a_run_that_failed_does_not_block_its_correction(trained: nn.Module, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with pytest.raises(ValueError, match="cannot be met"):
        run(copy.deepcopy(trained), tmp_path, max_bytes="0.1KB", checkpoints=folder)
    wrong = [(torch.randn(8, 11), torch.zeros(8, dtype=torch.long))]
    for model in (trained, pb.bayesianize(copy.deepcopy(trained), sigma=pb.Absolute(0.02))):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            pb.compress(
                copy.deepcopy(model), wrong, path=tmp_path / "x.pocket", max_bytes=1600, checkpoints=folder
            )
    assert run(copy.deepcopy(trained), tmp_path, max_bytes="1.6KB", checkpoints=folder).bytes <= 1600


@pytest.mark.parametrize("deletions", [0, 1, 2])
def test_a_run_killed_while_it_cleans_up_leaves_nothing_to_another_network(
    trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    """Whatever was deleted before, the note of whose checkpoints they are is still there."""
    options = {"max_bytes": 1600, "plan": replace(PLAN, epochs=1, finetune_epochs=0)}
    options["checkpoints"] = tmp_path / "checkpoints"
    other, unlink, deleted = copy.deepcopy(trained), Path.unlink, []
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(-1)

    def dying(self: Path, missing_ok: bool = False) -> None:
        if self.parent.name == "checkpoints" and not self.name.startswith("."):
            if len(deleted) == deletions:
                raise Killed
            deleted.append(self)
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", dying)
    with pytest.raises(Killed):
        run(copy.deepcopy(trained), tmp_path, **options)
    monkeypatch.undo()
    assert len(deleted) == deletions
    if deletions < 2:  # a checkpoint is left
        with pytest.raises(pb.errors.ArtifactError, match="the network was"):
            run(copy.deepcopy(other), tmp_path, **options)
        return
    run(copy.deepcopy(other), tmp_path, **options)
    (tmp_path / "expected").mkdir()
    run(copy.deepcopy(other), tmp_path / "expected", **{**options, "checkpoints": None})
    files = [next(folder.glob("*.pocket")).read_bytes() for folder in (tmp_path, tmp_path / "expected")]
    assert files[0] == files[1]


BAD = {
    "bytes that are no size": ({"max_bytes": "some"}, "not a size"),
    "half a byte": ({"max_bytes": 1600.5}, "max_bytes must be a whole number"),
    "bytes that are NaN": ({"max_bytes": float("nan")}, "max_bytes must be a whole number"),
    "no bytes": ({"max_bytes": 0}, "max_bytes must be a whole number, at least 1"),
    "a loss that is NaN": ({"max_nll_rise": float("nan")}, "finite"),
    "no budget": ({}, "exactly one"),
    "two budgets": ({"max_bytes": 10, "max_nll_rise": 1.0}, "exactly one"),
    "a negative budget": ({"max_nll_rise": -1.0}, "positive"),
    "a loss without validation data": ({"max_nll_rise": 0.1, "validation_loader": None}, "validation"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD)
def test_bad_input_gets_an_error_and_the_model_is_left_as_it_was(
    trained: nn.Module, tmp_path: Path, options: dict, message: str
) -> None:
    model = copy.deepcopy(trained)
    with pytest.raises(ValueError, match=message):
        run(model, tmp_path, **options)
    assert set(model.state_dict()) == set(trained.state_dict())
    assert not list(tmp_path.iterdir())


def test_the_checkpoints_go_and_files_of_others_stay(trained: nn.Module, tmp_path: Path) -> None:
    mine = tmp_path / "weights.safetensors"
    mine.write_bytes(b"weights")
    run(copy.deepcopy(trained), tmp_path, max_bytes=1500, checkpoints=tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"weights.safetensors", "model.pocket"}
    assert mine.read_bytes() == b"weights"


def test_there_is_room_for_scales_that_are_known_at_the_end(trained: nn.Module) -> None:
    model = pb.bayesianize(copy.deepcopy(trained))

    def size(scales: Scales) -> int:
        return len(encode(to_pocket(model, metadata=scales.metadata())).data)

    temperatures = (0.25 + 4 * torch.rand(300, 2, generator=torch.Generator().manual_seed(0))).tolist()
    sizes = [size(Scales(*(Scale(float(f"{t:.4g}")) for t in pair))) for pair in temperatures]
    assert max(sizes) > size(_RESERVED)  # digits deflate to more or fewer bytes
    assert max(sizes) <= size(_RESERVED) + _DEFLATED


def test_norms_that_count_on_do_not_break_the_budget(tmp_path: Path) -> None:
    """The counter of batches takes more bytes in the file from some number on, and fine-tuning counts."""
    norms = [nn.BatchNorm1d(8) for _ in range(40)]
    model = nn.Sequential(nn.Linear(10, 64), nn.Linear(64, 8), *norms, nn.Linear(8, 4))
    for norm in norms:
        norm.num_batches_tracked.fill_(65_536 - PLAN.epochs * len(TRAIN) - 4)
        norm.running_var.fill_(1.01)  # a norm that has seen batches does not have a new one's statistics
    report = run(model, tmp_path, max_bytes=3200, validation_loader=None)  # fine-tuning is kept
    assert 3100 <= report.bytes <= 3200
    assert norms[0].num_batches_tracked >= 65_536


def test_the_file_holds_of_a_norm_its_scale_and_shift(tmp_path: Path) -> None:
    """And the model left in memory is that of the file."""

    def normed() -> nn.Sequential:
        return nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))

    model = normed()
    with torch.no_grad():
        for x, _ in TRAIN:
            model(3 * x + 1)
    before = model[1].running_mean.clone()
    run(model, tmp_path, max_bytes=2000)
    loaded = pb.load(tmp_path / "model.pocket", normed())
    assert before.abs().min() > 0
    for norm in (model[1], loaded[1]):
        assert norm.running_mean.eq(0).all() and norm.running_var.eq(1).all()
    held = artifact.inspect(tmp_path / "model.pocket").tensors
    assert {t.name for t in held if t.kind == "plain" and not t.bits} == {"1.running_mean", "1.running_var"}
    x = VALIDATION.dataset[:][0]
    answers = [pb.predict(m, x, samples=4).probs for m in (model, loaded)]
    assert torch.allclose(*answers, atol=0.01)


@pytest.mark.parametrize(("max_bytes", "off"), [(1100, 1.0), (1300, 1.0), (1300, 5.0), (1300, 0.2)])
def test_the_budget_is_used(
    trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int, off: float
) -> None:
    """Even where training ends at a lambda that is far off."""
    freeze = Steering.freeze

    def misled(self: Steering) -> float:
        self.assignment.rate = replace(self.assignment.rate, lambda_=off * self.assignment.rate.lambda_)
        return freeze(self)

    monkeypatch.setattr(Steering, "freeze", misled)
    report = run(copy.deepcopy(trained), tmp_path, max_bytes=max_bytes)
    assert 0.97 * max_bytes <= report.bytes <= max_bytes


NOT_A_PLAN = [
    *({name: value} for name in ("components", "tries", "samples") for value in (0, 1.5, float("nan"))),
    *(
        {name: value}
        for name in ("lr", "rho_lr", "finetune_lr")
        for value in (-1.0, float("nan"), float("inf"))
    ),
    *({name: value} for name in ("distillation", "anneal") for value in (-0.1, 1.1, float("nan"))),
    {"temperature": 0.0},
    {"temperature": float("nan")},
    {"noise_cost": 0.0},
    {"noise_cost": -0.1},
    {"epochs": -1},
    {"epochs": 1.5},
    {"finetune_epochs": -1},
    {"posterior_epochs": 0.5},
    {"fisher_batches": 0},
    {"seed": 0.5},
]


@pytest.mark.parametrize("wrong", NOT_A_PLAN, ids=str)
def test_a_plan_that_makes_no_sense_is_refused_by_name(wrong: dict) -> None:
    with pytest.raises(ValueError, match=f"compress: {next(iter(wrong))} "):
        pb.Plan(**wrong)


def test_few_data_are_trained_on_for_more_epochs() -> None:
    """Labels need steps to settle, however few the batches."""
    assert [pb.Plan().of_data(batches).epochs for batches in (1, 11, 100, 5000)] == [400, 37, 4, 4]
    assert [pb.Plan(epochs=epochs).of_data(11).epochs for epochs in (0, 2)] == [0, 2]


def test_a_loss_of_accuracy_is_for_classes(tmp_path: Path) -> None:
    batches = [(torch.randn(20, 3), torch.randn(20, 1))]
    options = {
        "validation_loader": batches,
        "likelihood": pb.likelihood.Homoscedastic(0.5),
        "max_accuracy_drop": 0.01,
    }
    with pytest.raises(ValueError, match="max_nll_rise"):
        pb.compress(nets.mlp([3, 8, 1]), batches, path=tmp_path / "x.pocket", progress=False, **options)


def test_a_compiled_network_is_compressed_as_the_one_inside(trained: nn.Module, tmp_path: Path) -> None:
    run(torch.compile(copy.deepcopy(trained), backend="eager"), tmp_path, max_bytes=1500)
    loaded = pb.load(tmp_path / "model.pocket", net())
    assert pb.evaluate(loaded, VALIDATION).accuracy > 0.9


def test_the_graph_counts_in_the_budget_and_runs(trained: nn.Module, tmp_path: Path) -> None:
    x = next(iter(TRAIN))[0]
    report = run(copy.deepcopy(trained), tmp_path, max_bytes=1900, graph=True)
    assert report.saved is not None and 0 < report.saved.sections["GRAF"] < 300 and not report.saved.no_graph
    assert report.bytes == (tmp_path / "model.pocket").stat().st_size <= 1900
    pocket = decode(tmp_path / "model.pocket")
    session = onnxruntime.InferenceSession(portable(pocket, mean_weights(pocket)))
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    loaded = pb.load(tmp_path / "model.pocket", net())
    with torch.no_grad(), pb.mean_weights(loaded.eval()):
        torch.testing.assert_close(torch.from_numpy(found), loaded(x), atol=1e-5, rtol=1e-5)


def test_a_network_that_cannot_be_exported_is_compressed_without_a_graph(
    trained: nn.Module, tmp_path: Path
) -> None:
    class Branching(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if float(x.sum()) < 1e9 else x

    with pytest.warns(UserWarning, match="The file will have no graph"):
        report = run(Branching(*copy.deepcopy(trained)), tmp_path, max_bytes=1900, graph=True)
    assert "no graph: " in str(report) and report.saved is not None and "GRAF" not in report.saved.sections


def test_the_graph_changes_nothing_but_the_room_for_labels(trained: nn.Module, tmp_path: Path) -> None:
    pockets, size = [], 1900
    for graph in (True, False):
        torch.manual_seed(0)
        report = run(copy.deepcopy(trained), tmp_path, max_bytes=size, graph=graph)
        assert report.saved is not None
        size -= report.saved.sections.get("GRAF", 0) + 16  # and its line in the table of sections
        pockets.append(decode(tmp_path / "model.pocket"))
    with_graph, without = pockets
    assert with_graph.graph and encode(replace(with_graph, graph=b"")).data == encode(without).data


# --- what cannot be done -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [[], None, DataLoader(blobs(8, 0), 64, drop_last=True)])
def test_without_data_it_says_how_few_are_enough(data: object, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"there are no data\. A few hundred inputs, labelled or not, are enough"
    ):
        pb.compress(net(), data, path=tmp_path / "a.pocket", max_bytes="2KB")  # type: ignore[arg-type]


def test_unlabelled_data_are_refused_where_labels_are_needed(tmp_path: Path) -> None:
    model, inputs = net(), [x for x, _ in TRAIN]
    before = copy.deepcopy(model.state_dict())
    for loader in (inputs, [(x,) for x in inputs]):
        with pytest.raises(
            ValueError, match=r"A batch must be \(x, y\).*Without labels work compress with Plan"
        ):
            pb.compress(
                model, loader, path=tmp_path / "a.pocket", max_bytes="2KB", num_data=512, progress=False
            )
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(("epochs", "each"), [(4, 44), (0, 28)])
def test_a_network_larger_than_memory_is_told_what_it_would_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: int, each: int
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable:    16 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    weights = sum(p.numel() for p in net().parameters())
    found = rf"compress: {weights} weights take at least 0\.0 GB \({each} bytes each\), and 0\.0 GB are free"
    with pytest.raises(MemoryError, match=found):
        pb.compress(net(), TRAIN, path=tmp_path / "a.pocket", max_bytes="2KB", plan=pb.Plan(epochs=epochs))
    meminfo.write_text("MemAvailable: 1000000 kB\n")
    memory.require_memory("compress", weights, each, "")


def test_fisher_information_that_cannot_be_is_refused() -> None:
    model = pb.bayesianize(net())
    fisher = {
        name: torch.ones_like(f) for name, f in pb.fisher_information(model, TRAIN, progress=False).items()
    }
    fisher["2.weight"][1, 2] = torch.nan
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"2\.weight: its Fisher information has NaN"):
        pb.laplace_sigma(model, fisher, 512)
    with pytest.raises(ValueError, match=r"2\.weight: its Fisher information has NaN"):
        pb.share(model, pb.Paper(components=8), fisher=fisher)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
