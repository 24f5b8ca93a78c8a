"""`break_symmetry`: fixed weights are constants in every respect, at every stage of the pipeline."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import pocketbayes as pb
from pocketbayes import nets
from pocketbayes.artifact import decode, inspect, mean_weights
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.structure import MAP, Constant, Heavy, Light, Random, Values, Zero, order_biases

SCHEMES = [Light(), Heavy(), Random(like=Heavy(), seed=3)]
VALUES: list[Values] = [Zero(), Constant(0.7, seed=5), Constant(0.7, trained=True), MAP()]


def small(
    widths: tuple[int, ...] = (4, 6, 5, 2), prior: object = pb.ZeroMean(0.8), **options: object
) -> nn.Module:
    torch.manual_seed(0)
    model = nets.mlp(widths, nn.Tanh).double()
    return pb.bayesianize(model, prior=prior, sigma=pb.Relative(0.2, floor=0.05), **options)  # type: ignore[arg-type]


def light(inputs: int, outputs: int, layer: int) -> np.ndarray:
    """The mask by its definition, entry by entry, in torch's layout [out, in]."""
    m = min(inputs, outputs)
    mask = np.zeros((outputs, inputs), bool)
    for r in range(m - 1):
        row = m - 1 - r if layer % 2 else r
        mask[outputs - m + r + 1, row] = True
    return mask


def weights_seen(model: nn.Module, seed: int) -> dict[str, Tensor]:
    with torch.no_grad(), pb.one_draw(model, seed):
        return {s.path: getattr(s.owner, s.name).clone() for s in stochastic_weights(model)}


@pytest.mark.parametrize("values", VALUES, ids=repr)
@pytest.mark.parametrize("scheme", SCHEMES, ids=repr)
def test_fixed_weights_never_move_and_free_ones_do(scheme: pb.structure.Scheme, values: Values) -> None:
    model = small()
    means = {s.path: s.moments.mu.detach().numpy() for s in stochastic_weights(model)}
    report = pb.break_symmetry(model, scheme, values)
    first, second = weights_seen(model, 1), weights_seen(model, 2)
    assert report.count > 0
    for layer, site in enumerate(stochastic_weights(model)):
        shape = means[site.path].shape
        mask = scheme.mask(layer, pb.structure.Weight(site.path, shape))
        a, b = first[site.path].numpy(), second[site.path].numpy()
        assert (a[mask] == b[mask]).all()
        assert (a[~mask] != b[~mask]).all()
        assert report.fixed.get(site.path, 0) == mask.sum()
        if isinstance(values, Zero):
            assert (a[mask] == 0).all()
        elif isinstance(values, Constant):
            assert (np.abs(a[mask]) == 0.7).all()
        else:
            assert (a[mask] == means[site.path][mask]).all()


def test_light_masks_of_a_model_are_those_of_the_definition() -> None:
    widths = (4, 6, 5, 2)  # wide, narrow and narrower layers, even and odd
    model = small(widths)
    pb.break_symmetry(model, Light())
    for layer, site in enumerate(stochastic_weights(model)):
        assert site.weight.fixed is not None
        expected = light(widths[layer], widths[layer + 1], layer)
        assert (site.weight.fixed.mask.numpy() == expected).all()


@pytest.mark.parametrize("prior", [pb.ZeroMean(0.8), pb.Pretrained(0.3)], ids=repr)
@pytest.mark.parametrize("values", VALUES, ids=repr)
def test_the_kl_is_that_of_the_free_weights_alone(values: Values, prior: pb.ZeroMean) -> None:
    model = small(prior=prior)
    whole = {s.path: (s.moments, s.weight.prior_mu, s.weight.prior_sigma) for s in stochastic_weights(model)}
    pb.break_symmetry(model, Heavy(), values)
    expected = 0.0
    for layer, (path, (q, m, s)) in enumerate(whole.items()):
        free = ~torch.from_numpy(Heavy().mask(layer, pb.structure.Weight(path, tuple(q.mu.shape))))
        m = torch.zeros_like(q.mu) if m is None else m
        terms = kl_divergence(Normal(q.mu, q.sigma), Normal(m, torch.full_like(m, s)))
        expected += terms[free].sum().item()
    assert pb.kl_divergence(model).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("values", VALUES, ids=repr)
def test_gradients_exist_for_free_weights_and_a_trained_constant_only(values: Values) -> None:
    model = small()
    before = sum(p.numel() for p in model.parameters())
    report = pb.break_symmetry(model, Light(), values)
    after = sum(p.numel() for p in model.parameters())
    trained = isinstance(values, Constant) and values.trained
    assert after == before - 2 * report.count + trained  # a mean and a rho less for each
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(2, (8,))
    pb.nelbo(model, (x, y), num_data=8).loss.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())


def test_a_trained_constant_is_trained_and_a_given_one_is_not() -> None:
    x = torch.randn(32, 4, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    for trained in (True, False):
        model = small()
        pb.break_symmetry(model, Heavy(), Constant(0.7, trained=trained))
        cs = [s.weight.fixed.c for s in stochastic_weights(model) if s.weight.fixed is not None]
        assert all(c is cs[0] for c in cs) == trained or not trained  # one for the network
        pb.fit(model, [(x, y)], epochs=20, lr=1e-2, progress=False)
        moved = abs(cs[0].item() - 0.7) > 1e-3
        assert moved == trained


def test_the_gradient_of_the_constant_equals_finite_differences() -> None:
    model = small()
    pb.break_symmetry(model, Light(), Constant(0.7, trained=True))
    x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(2, (8,))
    c = next(s.weight.fixed.c for s in stochastic_weights(model) if s.weight.fixed is not None)

    def loss() -> Tensor:
        with pb.one_draw(model, 7):
            return nn.functional.cross_entropy(model(x), y)

    loss().backward()
    step = 1e-6
    with torch.no_grad():
        c += step
        up = loss()
        c -= 2 * step
        down = loss()
    assert c.grad.item() == pytest.approx(float((up - down) / (2 * step)), rel=1e-6)


def test_the_report_counts_what_remains() -> None:
    model = pb.bayesianize(nets.mlp((1, 50, 50, 1), nn.Tanh))
    report = pb.break_symmetry(model, Light(), odd=True)
    log_factorial = math.lgamma(51) / math.log(10)
    assert report.before.log10_permutations == pytest.approx(2 * log_factorial)
    assert report.after.log10_permutations == pytest.approx(math.lgamma(50) / math.log(10))  # 49!
    assert report.before.log10_flips == pytest.approx(100 * math.log10(2))
    assert "49 of 2,600" in str(report) or f"{report.count:,} of 2,600 weights fixed" in str(report)


def test_a_residual_network_loses_all_its_permutations() -> None:
    model = pb.bayesianize(nets.resnet20())
    report = pb.break_symmetry(model, Light(), MAP())
    assert report.before.log10_permutations == pytest.approx(475.59, abs=0.005)
    assert report.after.permutations == 1
    x = torch.randn(2, 3, 32, 32)
    assert torch.isfinite(model(x)).all()


# --- the rest of the pipeline -------------------------------------------------------------------------------------


def shared_by_rate(model: nn.Module) -> None:
    pb.share(model, pb.Rate(lambda_=0.5, components=4, outlier_bits=8.0))


def shared_as_in_the_paper(model: nn.Module) -> None:
    outliers = pb.sharing.Outliers(
        mean=pb.sharing.AbsoluteMean(0.35), fisher_fraction=None, smallest_cluster=2
    )
    pb.share(model, pb.Paper(components=4, outliers=outliers, merge=None, beyond=1.0))


STAGES: dict[str, Callable[[nn.Module], None]] = {
    "private": lambda model: None,
    "rate": shared_by_rate,
    "paper": shared_as_in_the_paper,
}


@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("values", VALUES, ids=repr)
@pytest.mark.parametrize("noise", [pb.noise.Gaussian(), pb.noise.TwoPoint()], ids=repr)
def test_a_file_gives_the_same_network_back(
    tmp_path: Path, values: Values, stage: Callable[[nn.Module], None], noise: pb.noise.Noise
) -> None:
    model = small(prior=pb.Pretrained(0.3), noise=noise)
    pb.break_symmetry(model, Heavy(), values)
    stage(model)
    pb.save(model, tmp_path / "a.pocket", precision=pb.artifact.FLOAT32, priors=True)
    loaded = pb.load(tmp_path / "a.pocket", nets.mlp((4, 6, 5, 2), nn.Tanh).double())
    for path, value in weights_seen(model, 4).items():
        torch.testing.assert_close(
            weights_seen(loaded, 4)[path], value, rtol=1e-4, atol=1e-5
        )  # alphas are in steps
    for ours, theirs in zip(stochastic_weights(model), stochastic_weights(loaded), strict=True):
        assert ours.weight.fixed is not None and theirs.weight.fixed is not None
        assert torch.equal(ours.weight.fixed.mask, theirs.weight.fixed.mask)
    assert pb.kl_divergence(loaded).item() == pytest.approx(pb.kl_divergence(model).item(), rel=1e-4)
    # and once more: what was loaded is saved to the same bytes
    pb.save(loaded, tmp_path / "b.pocket", precision=pb.artifact.FLOAT32, priors=True)
    assert (tmp_path / "a.pocket").read_bytes() == (tmp_path / "b.pocket").read_bytes()
    trained = [p for p in loaded.parameters() if p.ndim == 0]
    assert len(trained) == (isinstance(values, Constant) and values.trained)


@pytest.mark.parametrize("values", VALUES[:3], ids=repr)
def test_fixed_weights_take_no_bits_beyond_their_rule(tmp_path: Path, values: Values) -> None:
    """Half as many weights, half the bytes of means and sigmas; the sections of masks and constants stay empty."""
    model = small((40, 40, 40, 2))
    whole = pb.save(model, tmp_path / "whole.pocket")
    report = pb.break_symmetry(model, Heavy(), values)
    broken = pb.save(model, tmp_path / "broken.pocket")
    assert broken.sections.get("MASK", 0) + broken.sections.get("FIXD", 0) <= 2 * len("MASK")  # empty streams
    assert whole.sections["NORM"] - broken.sections["NORM"] == 4 * report.count  # 16 + 16 bits each
    assert broken.sections["HEAD"] - whole.sections["HEAD"] < 120
    summary = inspect(tmp_path / "broken.pocket")
    assert sum(t.fixed for t in summary.tensors) == report.count


@pytest.mark.parametrize("values", VALUES, ids=repr)
def test_a_reader_without_torch_sees_the_same_means(tmp_path: Path, values: Values) -> None:
    model = small()
    pb.break_symmetry(model, Light(), values)
    pb.save(model, tmp_path / "a.pocket", precision=pb.artifact.FLOAT32)
    dense = mean_weights(decode(tmp_path / "a.pocket"))
    for site in stochastic_weights(model):
        with torch.no_grad(), pb.mean_weights(model):
            expected = getattr(site.owner, site.name).numpy()
        np.testing.assert_allclose(dense[site.path], expected, rtol=1e-6, atol=1e-7)


def test_sharing_labels_free_weights_only() -> None:
    model = small()
    report = pb.break_symmetry(model, Heavy())
    shared = pb.share(model, pb.Rate(lambda_=0.5, components=4))
    assert shared.weights == report.weights - report.count


def test_compress_takes_a_symmetry_broken_posterior(tmp_path: Path) -> None:
    torch.manual_seed(1)
    x = torch.randn(200, 4)
    y = (x[:, :2].sum(1) > 0).long()
    model = pb.bayesianize(nets.mlp((4, 16, 16, 2), nn.Tanh), sigma=pb.Absolute(0.05))
    pb.break_symmetry(model, Heavy(), Constant(0.5, trained=True))
    pb.fit(model, [(x, y)], epochs=30, lr=1e-2, temperature=0.01, progress=False)
    plan = pb.Plan(epochs=2, finetune_epochs=1, components=8)
    report = pb.compress(
        model, [(x, y)], path=tmp_path / "a.pocket", max_bytes=900, plan=plan, graph=False, progress=False
    )
    assert report.bytes <= 900
    loaded = pb.load(tmp_path / "a.pocket", nets.mlp((4, 16, 16, 2), nn.Tanh))
    assert pb.evaluate(loaded, [(x, y)]).accuracy > 0.8


def test_prediction_export_copies_and_the_way_back_see_the_constants() -> None:
    model = small()
    pb.break_symmetry(model, Heavy(), Constant(0.7))
    x = torch.randn(5, 4, dtype=torch.float64)
    plain = pb.to_deterministic(model)
    assert not stochastic_weights(plain)
    weight = plain.get_parameter(stochastic_weights(model)[1].path)
    mask = Heavy().mask(1, pb.structure.Weight("w", tuple(weight.shape)))
    assert (weight.detach().abs().numpy()[mask] == 0.7).all()
    assert pb.predict(model, x, samples=4).probs.shape == (5, 2)
    torch.export.export(model, (x,))
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(weights_seen(twin, 3)["0.weight"], weights_seen(model, 3)["0.weight"])


def test_a_plain_checkpoint_sets_the_free_means() -> None:
    torch.manual_seed(3)
    plain = nets.mlp((4, 6, 5, 2), nn.Tanh).double()
    model = small()
    pb.break_symmetry(model, Light(), Zero())
    model.load_state_dict(plain.state_dict())
    with torch.no_grad(), pb.mean_weights(model):
        seen = {s.path: getattr(s.owner, s.name) for s in stochastic_weights(model)}
    for layer, (path, value) in enumerate(seen.items()):
        mask = torch.from_numpy(Light().mask(layer, pb.structure.Weight(path, tuple(value.shape))))
        assert torch.equal(value, torch.where(mask, 0.0, plain.get_parameter(path).detach()))


def test_a_state_dict_carries_its_mask() -> None:
    one, other = small(), small()
    pb.break_symmetry(one, Random(like=Heavy(), seed=1))
    pb.break_symmetry(other, Random(like=Heavy(), seed=2))
    other.load_state_dict(one.state_dict())
    for path, value in weights_seen(one, 5).items():
        assert torch.equal(value, weights_seen(other, 5)[path])


def test_the_mode_under_a_mask_is_found_by_fit_map() -> None:
    x = torch.randn(64, 4, dtype=torch.float64)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = small()
    pb.break_symmetry(model, Heavy(), Zero())
    before = pb.evaluate(pb.to_deterministic(model), [(x, y)]).nll
    pb.fit_map(model, [(x, y)], epochs=200, lr=2e-2, progress=False)
    plain = pb.to_deterministic(model)
    assert pb.evaluate(plain, [(x, y)]).nll < before - 0.1
    for layer, site in enumerate(stochastic_weights(model)):
        weight = plain.get_parameter(site.path).detach()
        mask = Heavy().mask(layer, pb.structure.Weight(site.path, tuple(weight.shape)))
        assert (weight.numpy()[mask] == 0).all()


def test_tied_layers_share_one_mask() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (
                nn.Linear(3, 5),
                nn.Linear(5, 5),
                nn.Linear(5, 5),
                nn.Linear(5, 2),
            )
            self.c.weight = self.b.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.d(torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))))

    model = pb.bayesianize(Tied())
    pb.break_symmetry(model, Light())
    with torch.no_grad(), pb.one_draw(model, 1):
        assert torch.equal(model.b.weight, model.c.weight)


# --- ordered biases -------------------------------------------------------------------------------------------------


def test_ordered_biases_ascend_in_every_draw(tmp_path: Path) -> None:
    model = nets.mlp((3, 7, 6, 2), nn.Tanh)
    assert order_biases(model) == ["0.bias", "2.bias"]
    pb.bayesianize(model, biases=True, sigma=pb.Absolute(0.5))
    for seed in range(5):
        with torch.no_grad(), pb.one_draw(model, seed):
            assert (model[0].bias.diff() >= 0).all()
            assert (model[2].bias.diff() >= 0).all()
            assert not (seed == 0 and (model[4].bias.diff() == 0).any())
    pb.save(model, tmp_path / "a.pocket", precision=pb.artifact.FLOAT32)
    fresh = nets.mlp((3, 7, 6, 2), nn.Tanh)
    order_biases(fresh)
    pb.load(tmp_path / "a.pocket", fresh)
    x = torch.randn(4, 3)
    with torch.no_grad(), pb.one_draw(model, 9):
        expected = model(x)
    with torch.no_grad(), pb.one_draw(fresh, 9):
        torch.testing.assert_close(fresh(x), expected, rtol=1e-4, atol=1e-5)


def test_swapped_neurons_differ_once_biases_are_ordered() -> None:
    """The permutation that leaves a plain network as it is, weights and biases together, changes an ordered one."""
    torch.manual_seed(0)
    x, order = torch.randn(6, 3), torch.tensor([1, 0, 2, 3])
    for ordered in (False, True):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        if ordered:
            order_biases(model)
        before = model(x)
        bias = model[0].parametrizations.bias.original if ordered else model[0].bias
        with torch.no_grad():
            model[0].weight.copy_(model[0].weight[order])
            bias.copy_(bias[order])
            model[2].weight.copy_(model[2].weight[:, order])
        assert torch.allclose(model(x), before, atol=1e-6) != ordered


# --- what can go wrong ----------------------------------------------------------------------------------------------


def test_errors_say_which_layer_and_leave_the_model_alone() -> None:
    with pytest.raises(ValueError, match="no stochastic weights"):
        pb.break_symmetry(nets.mlp((3, 4, 2)), Light())
    with pytest.raises(ValueError, match="a single layer has no hidden neurons"):
        pb.break_symmetry(pb.bayesianize(nn.Linear(3, 2)), Light())
    with pytest.raises(ValueError, match=r"fixes no entry of 0.weight \[1, 1\]"):
        pb.break_symmetry(pb.bayesianize(nets.mlp((1, 1, 1))), Light())
    part = pb.bayesianize(nets.mlp((3, 4, 2)), where="2.*")
    with pytest.raises(ValueError, match=r"0.weight: is deterministic"):
        pb.break_symmetry(part, Light())
    model = small()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"0.weight: MAP\(values=...\) has no entry"):
        pb.break_symmetry(model, Light(), MAP({}))
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    pb.break_symmetry(model, Light())
    with pytest.raises(ValueError, match=r"0.weight: some of its weights are fixed already"):
        pb.break_symmetry(model, Heavy())
    shared = small()
    pb.share(shared, pb.Rate(lambda_=0.5, components=4))
    with pytest.raises(ValueError, match="Break symmetries before sharing"):
        pb.break_symmetry(shared, Light())
    with pytest.raises(ValueError, match="has no biases to order"):
        order_biases(nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2)))


def test_what_became_of_the_weights_is_described() -> None:
    model = small()
    report = pb.break_symmetry(model, Light())
    text = str(pb.describe(model))
    assert "3 fixed (light)" in text
    assert f"{report.count} fixed" in text
    assert pb.describe(model).numbers("stochastic") == report.weights - report.count
