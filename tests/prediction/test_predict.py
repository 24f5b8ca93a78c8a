from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes import nets
from pocketbayes.likelihood import Categorical, Homoscedastic
from pocketbayes.prediction import fold
from pocketbayes.prediction.ensemble import Ensemble


def resnet() -> nn.Module:
    model = nets.resnet20()
    for module in model.modules():  # norms as after training, not the identity
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    return pb.bayesianize(model)


def by_hand(model: nn.Module, x: Tensor, samples: int, seed: int) -> Tensor:
    """[S, N, C] probabilities, one forward pass of the converted model for each draw."""
    model.eval()
    out = []
    with torch.no_grad():
        for s in range(samples):
            with pb.one_draw(model, seed, s):
                out.append(model(x).double().softmax(-1))
    return torch.stack(out)


def test_a_prediction_is_the_mean_over_draws_of_probabilities() -> None:
    model, x = pb.bayesianize(nets.mlp([4, 8, 3]), sigma=pb.Absolute(0.5)), torch.randn(7, 4)
    draws = by_hand(model, x, 30, seed=5)
    p = pb.predict(model, x, seed=5, draws=True)
    torch.testing.assert_close(p.probs, draws.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(p.draws, draws, rtol=1e-4, atol=1e-6)
    total = torch.distributions.Categorical(probs=draws.mean(0)).entropy()
    aleatoric = torch.distributions.Categorical(probs=draws).entropy().mean(0)
    torch.testing.assert_close(p.entropy, total, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(p.aleatoric, aleatoric, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(p.epistemic, total - aleatoric, rtol=1e-4, atol=1e-5)
    assert (p.epistemic > 0).all()
    assert torch.equal(p.labels, p.probs.argmax(1))


@pytest.mark.parametrize("modes", [1, 2])
def test_what_is_linear_in_the_noise_cancels_in_a_pair_of_draws(modes: int) -> None:
    torch.manual_seed(0)
    model = pb.bayesianize([nets.mlp([4, 16, 3]) for _ in range(modes)], sigma=pb.Absolute(0.03))
    x = torch.randn(20, 4)
    draws = torch.stack(
        [pb.predict(model, x, samples=4 * modes, seed=s, draws=True).draws for s in range(60)]
    )
    pairs, others = draws[:, : 2 * modes], torch.cat([draws[:, :modes], draws[:, 2 * modes : 3 * modes]], 1)
    mirrored, independent = (d.mean(1).var(0).mean() for d in (pairs, others))
    assert mirrored < 0.05 * independent
    spread = sum(draws[:, m].var(0).mean() for m in range(modes)) / modes
    assert 0.7 < 2 * modes * independent / spread < 1.4  # as of draws that know nothing of each other


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_fast_path_of_a_resnet_is_the_slow_one(batch: int) -> None:
    """Folded norms, channels-last, vmap at the smallest batches: all against plain forward passes."""
    model, x = resnet(), torch.randn(batch, 3, 32, 32)
    expected = by_hand(model, x, 4, seed=1)
    p = pb.predict(model, x, samples=4, seed=1, draws=True)
    torch.testing.assert_close(p.draws, expected, rtol=1e-3, atol=1e-5)


def test_predictions_do_not_depend_on_the_batch_size() -> None:
    model, x = resnet(), torch.randn(6, 3, 32, 32)
    results = [pb.predict(model, x, samples=3, batch_size=size).probs for size in (1, 2, 4, 6)]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-5)


def test_draws_beyond_the_memory_bound_are_made_again_and_the_same() -> None:
    model, x = pb.bayesianize(nets.mlp([4, 8, 3])), torch.randn(9, 4)
    small = Ensemble(model, samples=5, max_bytes=2 * 4 * 56)
    assert torch.equal(
        pb.predict(model, x, samples=5, batch_size=3, max_bytes=0).probs,
        pb.predict(model, x, samples=5, batch_size=3).probs,
    )
    list(small.outputs(x))
    assert len(small._members[0]._sets) == 2  # a set is 4 * 8 + 8 * 3 floats


def test_prediction_leaves_the_model_and_the_generators_alone() -> None:
    model, x = resnet().train(), torch.randn(2, 3, 32, 32)
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    pb.predict(model, x, samples=2)
    assert model.training
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())


def test_norms_are_folded_into_the_layers_before_them() -> None:
    plain = pb.to_deterministic(resnet()).eval()
    x = torch.randn(2, 3, 32, 32)
    expected = plain(x)
    traced = fold.trace(plain)
    assert traced is not None
    folded = fold.fold_norms(traced, set())
    norms = [
        n
        for n in traced.graph.nodes
        if n.op == "call_module" and isinstance(traced.get_submodule(n.target), nn.BatchNorm2d)
    ]
    assert not norms
    assert len(folded) == 19  # all convolutions; the linear layer has no norm
    torch.testing.assert_close(traced(x), expected, rtol=1e-4, atol=1e-5)


def test_what_no_random_weight_touches_is_computed_once() -> None:
    calls: list[int] = []
    body = nn.Linear(4, 8)
    body.register_forward_hook(lambda module, args, output: calls.append(len(output)))
    model = pb.bayesianize(nn.Sequential(body, nn.ReLU(), nn.Linear(8, 3)), where="2.*")
    ensemble = Ensemble(model, samples=10)
    list(ensemble.outputs(torch.randn(5, 4)))
    calls.clear()
    assert len(list(ensemble.outputs(torch.randn(6, 4)))) == 10
    assert calls == [6]


def test_a_stochastic_norm_is_not_folded() -> None:
    model = pb.bayesianize(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten()), norms=True, biases=True
    )
    x = torch.randn(5, 2, 6, 6)
    torch.testing.assert_close(
        pb.predict(model, x, samples=3, draws=True).draws, by_hand(model, x, 3, 0), rtol=1e-4, atol=1e-6
    )


def test_regression_gives_mean_and_both_variances() -> None:
    model, x = pb.bayesianize(nets.mlp([3, 5, 1]), sigma=pb.Absolute(0.3)), torch.randn(6, 3)
    with torch.no_grad():
        draws = []
        for s in range(20):
            with pb.one_draw(model, 2, s):
                draws.append(model(x).double())
    means = torch.stack(draws)
    p = pb.predict(model, x, samples=20, seed=2, likelihood=Homoscedastic(0.4))
    torch.testing.assert_close(p.mean, means.mean(0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(p.epistemic_var, means.var(0, correction=0), rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(p.var, p.epistemic_var + 0.16, rtol=1e-4, atol=1e-6)
    y = torch.randn(6, 1)
    scores = pb.evaluate(model, [(x, y)], samples=20, seed=2, likelihood=Homoscedastic(0.4))
    mixture = (
        torch.distributions.Normal(means, 0.4).log_prob(y.double())[..., 0].logsumexp(0)
        - torch.tensor(20.0).log()
    )
    assert scores.nll == pytest.approx(-mixture.mean().item(), rel=1e-4)
    assert scores.rmse == pytest.approx((means.mean(0) - y).square().mean().sqrt().item(), rel=1e-4)


def test_any_other_likelihood_gets_the_outputs_themselves() -> None:
    from pocketbayes.likelihood import Custom

    model, x = pb.bayesianize(nets.mlp([3, 5, 2])), torch.randn(6, 3)
    own = Custom(lambda output, target: (output - target).square().sum(-1))
    assert pb.predict(model, x, samples=4, likelihood=own).shape == (4, 6, 2)
    assert pb.evaluate(model, [(x, torch.zeros(6, 2))], samples=4, likelihood=own).nll > 0


def test_classes_at_every_position_and_ignored_labels() -> None:
    model = pb.bayesianize(nn.Linear(4, 3))
    x, y = torch.randn(2, 5, 4), torch.randint(3, (2, 5))
    y[0, :3] = -100
    likelihood = Categorical(class_dim=-1)
    assert pb.predict(model, x, likelihood=likelihood).probs.shape == (10, 3)
    scores = pb.evaluate(model, [(x, y)], likelihood=likelihood)
    kept = pb.evaluate(model, [(x.flatten(0, 1)[3:], y.flatten()[3:])])
    assert scores.nll == pytest.approx(kept.nll, rel=1e-5)


def test_foreign_inputs_are_told_apart() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.randint(2, (200,), generator=g)
    x = (2.0 * y - 1)[:, None] * torch.tensor([[2.0, 0.0]]) + 0.3 * torch.randn(200, 2, generator=g)
    data = DataLoader(TensorDataset(x, y), 50)
    model = pb.bayesianize(nets.mlp([2, 16, 2]))
    pb.fit(model, data, epochs=20, lr=2e-2, temperature=0.1)
    foreign = 0.2 * torch.randn(100, 2, generator=g)
    scores = pb.evaluate(model, data, ood=[foreign[:50], foreign[50:]])
    assert scores.accuracy > 0.98
    assert scores.auroc > 0.9
    assert scores.fpr95 < 0.5
    assert "auroc" in str(scores)


def test_a_deterministic_model_is_evaluated_in_one_pass() -> None:
    model, x = nets.mlp([4, 8, 3]), torch.randn(9, 4)
    assert torch.allclose(pb.predict(model, x).probs, model(x).double().softmax(-1), atol=1e-6)
    assert pb.predict(model, x).epistemic.abs().max() < 1e-9


def test_tuple_and_dict_inputs_reach_the_model() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(a + b)

    model, a, b = pb.bayesianize(Two()), torch.randn(5, 4), torch.randn(5, 4)
    expected = pb.predict(model, (a, b)).probs
    assert torch.allclose(pb.predict(model, {"a": a, "b": b}, batch_size=2).probs, expected, atol=1e-6)


BAD = {
    "nothing": (lambda m: pb.predict(m, torch.empty(0, 4)), "at least one example"),
    "NaN": (lambda m: pb.predict(m, torch.tensor([[0.0, 1.0, torch.nan, 0.0]])), "example 0"),
    "no draws": (lambda m: pb.predict(m, torch.ones(1, 4), samples=0), "samples"),
    "an empty loader": (lambda m: pb.evaluate(m, []), "empty"),
    "labels out of range": (lambda m: pb.evaluate(m, [(torch.ones(2, 4), torch.tensor([0, 5]))]), "5"),
    "a likelihood that gives the mean alone": (
        lambda m: pb.evaluate(
            m, [(torch.ones(2, 4), torch.ones(2, 3))], likelihood=nn.functional.mse_loss, samples=2
        ),
        "1 value for 2 examples",
    ),
    "an unknown metric": (
        lambda m: pb.evaluate(m, [(torch.ones(2, 4), torch.tensor([0, 1]))]).nothing,
        "no metric",
    ),
}


@pytest.mark.parametrize(("attempt", "message"), BAD.values(), ids=BAD)
def test_bad_input_gets_an_error_that_teaches(attempt, message: str) -> None:
    with pytest.raises((ValueError, AttributeError), match=message):
        attempt(pb.bayesianize(nets.mlp([4, 8, 3])))


# --- networks whose code stands in the way of speed ------------------------------------------------------------------


class LeNet(nn.Module):
    """`view` of what a convolution returns: only where channels come first in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().view(len(x), -1))


class Standardised(nn.Conv2d):
    """A layer that has a `view` of its own weight."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.view(len(self.weight), -1)
        return nn.functional.conv2d(
            x, ((flat - flat.mean(1, keepdim=True)) / flat.std()).view_as(self.weight)
        )


class InPlace(nn.Module):
    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first.requires_grad_(not fixed)

    def forward(self, x: Tensor) -> Tensor:
        x -= 1.0
        x = self.first(x)
        return x.add_(self.last(x))


HARD = {
    "a view of activations": (LeNet, (3, 8, 8)),
    "a view of a weight": (
        lambda: nn.Sequential(Standardised(3, 6, 3), nn.Flatten(), nn.Linear(216, 3)),
        (3, 8, 8),
    ),
    "a norm over another axis": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(5), nn.Flatten(), nn.Linear(40, 3)),
        (5, 4),
    ),
    "inputs overwritten": (lambda: InPlace(False), (4,)),
    "inputs overwritten, and what is computed once": (lambda: InPlace(True), (4,)),
}


@pytest.mark.parametrize(("make", "shape"), HARD.values(), ids=HARD)
@pytest.mark.parametrize("batch", [2, 5])
def test_no_code_is_too_odd_to_predict_with(make, shape: tuple[int, ...], batch: int) -> None:
    model, x = pb.bayesianize(make(), sigma=pb.Absolute(0.3)), torch.randn(batch, *shape)
    given, seen = x.clone(), []
    with torch.no_grad():
        for s in range(4):
            with pb.one_draw(model.eval(), 1, s):
                seen.append(model(x.clone()).double().softmax(-1))
    p = pb.predict(model, x, samples=4, seed=1, draws=True)
    torch.testing.assert_close(p.draws, torch.stack(seen), rtol=1e-4, atol=1e-6)
    assert torch.equal(x, given)


def test_a_deterministic_network_is_run_as_it_is() -> None:
    plain, x = LeNet(), torch.randn(5, 3, 8, 8)
    torch.testing.assert_close(pb.predict(plain, x).probs, plain(x).double().softmax(1))


def test_a_real_error_of_the_network_is_shown_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        pb.predict(pb.bayesianize(LeNet()), torch.randn(2, 3, 9, 9))


def test_any_function_of_output_and_target_judges() -> None:
    model, batches = pb.bayesianize(nets.mlp([4, 8, 1])), [(torch.randn(20, 4), torch.randn(20, 1))]
    by_function = pb.evaluate(model, batches, likelihood=lambda out, y: 0.5 * (y - out).square().sum(1))
    expected = pb.evaluate(model, batches, likelihood=Homoscedastic(1.0)).nll - 0.5 * math.log(2 * math.pi)
    assert by_function.nll == pytest.approx(expected, abs=1e-6)
    assert (
        pb.calibrate(model, batches, likelihood=lambda out, y: (y - out).abs().sum(1), samples=2).factor > 0
    )


@pytest.mark.parametrize("labels", [{}, {"labels": torch.zeros(6, dtype=torch.long)}], ids=["none", "labels"])
def test_foreign_inputs_may_come_as_dicts(labels: dict[str, Tensor]) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nets.mlp([4, 8, 3])

        def forward(self, pixels: Tensor) -> Tensor:
            return self.net(pixels)

    model, x, far = pb.bayesianize(Named()), torch.randn(6, 4), torch.randn(6, 4)
    inside = [{"pixels": x, "labels": torch.zeros(6, dtype=torch.long)}]
    found = pb.evaluate(model, inside, ood=[{"pixels": far, **labels}])
    entropy = [pb.predict(model, {"pixels": t}).entropy for t in (x, far)]
    assert found["auroc"] == pytest.approx(pb.metrics.auroc(*entropy))
