from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pocketbayes as pb
from pocketbayes.training import compiled
from pocketbayes.training.compiled import CompiledForward, compiling_pays


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Traced and differentiated as a whole, but not made into machine code, which takes a minute."""
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    compiled._compiled.cache_clear()
    yield
    compiled._compiled.cache_clear()
    torch.compiler.reset()


class Tied(nn.Module):
    """One matrix at two places, and a norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)).relu())


def networks(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "modes":
        return pb.bayesianize(pb.Modes([Tied(), Tied()]))
    return pb.bayesianize(Tied()) if kind == "tied" else Tied()


def passed(model: nn.Module, forward: nn.Module | CompiledForward, mode: int) -> list[Tensor]:
    """Outputs, gradients and statistics of a pass in training, in draw 3."""
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    model.train()
    if isinstance(model, pb.Modes):
        with model.using(mode), pb.one_draw(model, seed=3):
            (y := forward(x)).square().sum().backward()
    else:  # a plain network has no draws, and takes no notice
        with pb.one_draw(model, seed=3):
            (y := forward(x)).square().sum().backward()
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
    return [y.detach(), *gradients, *model.buffers()]


@pytest.mark.parametrize("kind", ["plain", "tied", "modes"])
@pytest.mark.parametrize("mode", [0, 1])
def test_a_compiled_pass_is_that_of_the_model_in_the_same_draw(kind: str, mode: int) -> None:
    model = networks(kind)
    twin = copy.deepcopy(model)
    found, expected = passed(twin, CompiledForward(twin), mode), passed(model, model, mode)
    assert any(bool(t.abs().sum() > 0) for t in expected[1:])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_the_compiled_pass_follows_the_model_into_evaluation_mode_and_as_it_is_trained() -> None:
    model, x = networks("plain"), torch.randn(8, 4)
    forward = CompiledForward(model.eval())
    torch.testing.assert_close(forward(x), model(x))
    with torch.no_grad():
        model.first.weight.mul_(2.0)
    torch.testing.assert_close(forward(x), model(x))


def test_only_batches_of_the_usual_size_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def watched(*args: object) -> object:
        seen.append(len(args[2][0]))  # type: ignore[index]
        return compiled._run(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_compiled", lambda: watched)
        fit_tied()
    assert seen == [8, 8]


def fit_tied() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randint(4, (20,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    pb.fit(networks("tied"), loader, epochs=1, compiled=True, progress=False)


class Killed(Exception):
    pass


def test_a_compiled_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    loader = [(x[:16], x[:16].argmax(1)), (x[16:], x[16:].argmax(1))]

    def run(name: str, kill_after: int | None = None) -> list[Tensor]:
        model, steps = networks("tied"), iter(range(100))

        def on_step(_: float) -> None:
            if next(steps) == kill_after:
                raise Killed

        pb.fit(
            model,
            loader,
            epochs=3,
            autocast=torch.bfloat16,
            compiled=True,
            checkpoint=tmp_path / name,
            checkpoint_seconds=0.0,
            on_step=on_step,
            progress=False,
        )
        return [*model.parameters(), *model.buffers()]

    whole = run("whole")
    with pytest.raises(Killed):
        run("parts", kill_after=3)
    for a, b in zip(run("parts"), whole, strict=True):
        assert torch.equal(a, b)


def test_teachers_answer_compiled_as_they_do_otherwise() -> None:
    batches = [(torch.randn(8, 4), torch.randint(4, (8,)))]
    teachers = [networks("plain"), networks("tied")]
    ((_, plain),) = pb.Distilled(batches, teachers)
    ((_, quick),) = pb.Distilled(batches, teachers, compiled=True)
    torch.testing.assert_close(quick, plain)


def test_a_file_is_made_in_bfloat16_within_its_budget(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    loader = [(x, (x[:, 0] > 0).long())] * 4
    net = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
    pb.fit_map(net, loader, epochs=5, lr=0.01, progress=False)
    plan = pb.Plan(epochs=1, finetune_epochs=0, bfloat16=True, distillation=0.5, samples=2, components=4)
    path = tmp_path / "net.pocket"
    report = pb.compress(
        net, loader, path=path, max_bytes=1600, plan=plan, validation_loader=loader, graph=False
    )
    assert path.stat().st_size <= 1600
    assert report.stages[-2].metrics["accuracy"] > 0.9


@pytest.mark.parametrize("feature", ["_is_amx_tile_supported", "_is_avx512_bf16_supported"])
def test_compiling_pays_in_long_training_on_a_processor_that_is_fast_at_it(
    monkeypatch: pytest.MonkeyPatch, feature: str
) -> None:
    """An epoch of these two batches takes 3 * 2 * (2 * 1000 * 30 * 40) operations, and twice as many of two modes."""
    loader = [(torch.randn(1000, 30), torch.zeros(1000).long())] * 2
    model, steps = nn.Linear(30, 40), 2 * 1000 * 30 * 40
    fast = {"found": True}
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: fast["found"] and name == feature)
    monkeypatch.setattr(compiled.shutil, "which", lambda _: "a compiler")
    monkeypatch.setattr(compiled, "WORTH", 3 * steps * 10)
    before = torch.get_rng_state()
    assert [compiling_pays(model, loader, epochs) for epochs in (4, 5)] == [False, True]
    assert torch.equal(torch.get_rng_state(), before)
    modes = pb.Modes([model, nn.Linear(30, 40)])
    assert [compiling_pays(modes, loader, epochs) for epochs in (2, 3)] == [False, True]
    fast["found"] = False
    assert not compiling_pays(model, loader, 5)


def test_processes_in_parallel_are_told_to_leave_it_out() -> None:
    class Fake(nn.parallel.DistributedDataParallel):
        def __init__(self) -> None:
            nn.Module.__init__(self)

    with pytest.raises(ValueError, match="Leave compiled= out"):
        CompiledForward(Fake())
