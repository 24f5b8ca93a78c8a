"""Laws that every kind of stochastic weight obeys."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pocketbayes as pb
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.sharing.latent import Assignment, make_latent
from pocketbayes.sharing.outliers import AbsoluteMean, Outliers

DRAWS = 4000


def private() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return pb.bayesianize(model, sigma=pb.Relative(0.5, floor=0.5))


def by_rate() -> nn.Module:
    model = private()
    pb.share(model, pb.Rate(lambda_=0.5, components=8, outlier_bits=8.0))
    return model


def by_paper() -> nn.Module:
    """Outliers and blends among the weights."""
    model = private()
    outliers = Outliers(mean=AbsoluteMean(0.35), fisher_fraction=None, smallest_cluster=2)
    report = pb.share(model, pb.Paper(components=6, outliers=outliers, merge=None, beyond=1.0))
    assert report.outliers > 0
    assert report.blends > 0
    return model


def latent() -> nn.Module:
    model = private()
    make_latent(model, 8)
    Assignment(model, pb.Rate(lambda_=0.5, components=8)).renew()
    return model


def on_a_device() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return pb.bayesianize(model, sigma=pb.Relative(0.5, floor=0.5), noise=pb.noise.TwoPoint())


def partly_fixed() -> nn.Module:
    model = private()
    pb.break_symmetry(model, pb.structure.Light(), pb.structure.Constant(0.4, trained=True))
    return model


def fixed_and_shared() -> nn.Module:
    model = partly_fixed()
    pb.share(model, pb.Rate(lambda_=0.5, components=8, outlier_bits=8.0))
    return model


KINDS = {
    "private": private,
    "fixed": partly_fixed,
    "fixed and shared": fixed_and_shared,
    "rate": by_rate,
    "paper": by_paper,
    "latent": latent,
    "two-point noise": on_a_device,
}
every_kind = pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)


def draws_of_first(model: nn.Module, count: int) -> Tensor:
    """[count, *free weights]: each bare access is a draw."""
    site = stochastic_weights(model)[0]
    fixed = site.weight.fixed
    with torch.no_grad():
        drawn = torch.stack([getattr(site.owner, site.name) for _ in range(count)])
    return drawn if fixed is None else drawn[:, ~fixed.mask]


@every_kind
def test_draws_have_the_stated_mean_and_sigma(build) -> None:
    model = build()
    site = stochastic_weights(model)[0]
    w = draws_of_first(model, DRAWS)  # [S, *shape]
    mu, sigma = site.moments
    z_mean = (w.mean(0) - mu) / (sigma / DRAWS**0.5)
    z_var = (w.var(0) / sigma.square() - 1) / (2 / DRAWS) ** 0.5
    assert z_mean.abs().max() < 4.5
    assert z_var.abs().max() < 4.5
    assert (
        (w.mean(0) - mu) / (0.5 * sigma / DRAWS**0.5)
    ).square().mean() > 2  # the control: half the sigma fails


@every_kind
def test_weights_of_one_draw_are_independent(build) -> None:
    w = draws_of_first(build(), DRAWS).flatten(1)
    correlation = torch.corrcoef(w.T) - torch.eye(w.shape[1], dtype=w.dtype)
    assert correlation.abs().max() < 5 / DRAWS**0.5


@every_kind
def test_gradients_reach_every_trainable_number(build) -> None:
    model = build()
    model(torch.randn(4, 6, dtype=torch.double)).square().sum().backward()
    (0.01 * pb.kl_divergence(model)).backward()
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert trainable
    for name, parameter in trainable.items():
        assert parameter.grad is not None, name
        assert bool((parameter.grad != 0).any()), name


@every_kind
def test_the_kl_is_the_sum_over_independent_weights(build) -> None:
    model = build()
    expected = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(*site.moments),
            torch.distributions.Normal(torch.zeros_like(site.moments.mu), site.weight.prior_sigma),
        ).sum()
        for site in stochastic_weights(model)
    )
    torch.testing.assert_close(pb.kl_divergence(model), expected)


@every_kind
def test_a_seeded_draw_is_the_same_everywhere(build) -> None:
    model, x = build(), torch.randn(4, 6, dtype=torch.double)
    with pb.one_draw(model, 3):
        first, again = model(x), model(x)
    with pb.one_draw(copy.deepcopy(model), 4):
        pass
    torch.randn(7)  # the global generator plays no part
    with pb.one_draw(model, 3):
        assert torch.equal(first, model(x))
    assert torch.equal(first, again)
    with pb.one_draw(model, 4):
        assert not torch.equal(first, model(x))


@every_kind
def test_threads_do_not_see_each_others_draws(build) -> None:
    model, x = build(), torch.randn(4, 6, dtype=torch.double)
    inside, leave = threading.Event(), threading.Event()

    def hold_a_draw() -> None:
        with pb.one_draw(model, 1):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=hold_a_draw)
    thread.start()
    inside.wait(10)
    outputs = [model(x) for _ in range(3)]
    leave.set()
    thread.join()
    assert not torch.equal(outputs[0], outputs[1])
    with pb.one_draw(model, 1):
        assert all(not torch.equal(model(x), output) for output in outputs)


@every_kind
def test_an_exception_in_forward_closes_the_draw(build) -> None:
    model, x = build(), torch.randn(4, 6, dtype=torch.double)
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 7, dtype=torch.double))
    assert not torch.equal(model(x), model(x))


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.mode: bool | None = None  # no checkpointing, or use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        def block(t: Tensor) -> Tensor:
            return self.inner[1](self.inner[0](t))

        hidden = block(x) if self.mode is None else checkpoint(block, x, use_reentrant=self.mode)
        return self.inner[2](hidden) + self.inner[2](torch.sin(hidden))


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(calls: int, reentrant: bool) -> None:
    """Several forward passes, one backward pass: each recomputation sees the draw of its own forward pass."""
    plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    model = pb.bayesianize(Checkpointed(plain), sigma=pb.Absolute(0.5))
    x = torch.randn(4, 6, dtype=torch.double, requires_grad=True)

    def gradients(mode: bool | None) -> Tensor:
        model.mode = mode
        model.zero_grad()
        torch.random.default_generator.manual_seed(5)
        sum(model(x).square().sum() * (i + 1) for i in range(calls)).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    torch.testing.assert_close(gradients(reentrant), gradients(None))


@every_kind
def test_vmap_over_draws_draws_differently(build) -> None:
    model, x = build(), torch.randn(4, 6, dtype=torch.double)
    outputs = torch.vmap(lambda _: model(x), randomness="different")(torch.arange(2000))
    looped = torch.stack([model(x) for _ in range(2000)])
    error = (outputs.var(0) + looped.var(0)).div(2000).sqrt()
    assert ((outputs.mean(0) - looped.mean(0)) / error).abs().max() < 4.5
    assert (outputs.std(0) / looped.std(0) - 1).abs().max() < 0.15


@every_kind
def test_a_compiled_model_draws_and_can_be_still(build) -> None:
    model, x = build(), torch.randn(4, 6, dtype=torch.double)
    with pb.mean_weights(model):
        mean = model(x)
    torch._dynamo.reset()  # its limit on recompilation counts all models together
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert not torch.equal(compiled(x), compiled(x))
    with pb.mean_weights(compiled):
        torch.testing.assert_close(compiled(x), mean)
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


@every_kind
def test_an_exported_model_draws_and_has_the_right_mean(build) -> None:
    model, x = build(), torch.randn(4, 6, dtype=torch.double)
    program = torch.export.export(model, (x,)).module()
    with torch.no_grad():
        exported = torch.stack([program(x) for _ in range(2000)])
        eager = torch.stack([model(x) for _ in range(2000)])
    error = (exported.var(0) + eager.var(0)).div(2000).sqrt()
    assert ((exported.mean(0) - eager.mean(0)) / error).abs().max() < 4.5
    assert (exported.std(0) / eager.std(0) - 1).abs().max() < 0.15


@every_kind
def test_autocast_and_dtype_moves_work(build) -> None:
    model = build().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.randn(4, 6)).dtype == torch.bfloat16
    before = [site.weight.prior_sigma for site in stochastic_weights(model)]
    model.to(torch.bfloat16)
    assert model(torch.randn(4, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert [site.weight.prior_sigma for site in stochastic_weights(model)] == before  # not rounded


@every_kind
def test_gradient_accumulation_adds_up(build) -> None:
    model, x = build(), torch.randn(8, 6, dtype=torch.double)

    def gradient(*parts: Tensor) -> Tensor:
        model.zero_grad()
        for part in parts:
            with pb.one_draw(model, 2):
                model(part).square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])

    torch.testing.assert_close(gradient(x[:4], x[4:]), gradient(x))
