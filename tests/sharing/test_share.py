"""Sharing on whole models: what `share` leaves, and that it trains."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pocketbayes as pb
from pocketbayes import nets
from pocketbayes.posterior.laplace import enough_data
from pocketbayes.posterior.weights import sites, stochastic_weights
from pocketbayes.sharing.merge import Merge, RelativeDistance
from pocketbayes.sharing.outliers import AbsoluteMean, Outliers
from pocketbayes.sharing.shared import SharedWeight

NO_OUTLIERS = Outliers(mean=None, fisher_fraction=None, smallest_cluster=None)
SOME = Outliers(mean=AbsoluteMean(0.3), fisher_fraction=None, smallest_cluster=5)


def digits(n: int = 400) -> DataLoader:
    sklearn = pytest.importorskip("sklearn.datasets")
    x, y = sklearn.load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)
    return DataLoader(TensorDataset(x[:n], y[:n]), batch_size=64, shuffle=True)


def held_out() -> tuple[Tensor, Tensor]:
    x, y = digits(1797).dataset.tensors
    return x[1000:1400], y[1000:1400]


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        model = pb.bayesianize(nets.digits_net())
        pb.fit(model, digits(), epochs=8, lr=3e-3, temperature=0.01, progress=False)
    return model


def shared_by(model: nn.Module, how: pb.Paper | pb.Rate) -> nn.Module:
    twin = copy.deepcopy(model)
    pb.share(twin, how)
    return twin


def weights(model: nn.Module) -> list[SharedWeight]:
    return [site.weight for site in stochastic_weights(model)]


def nelbo(model: nn.Module, draws: int = 24) -> float:
    """The negative ELBO on held-out data, over seeded draws."""
    x, y = held_out()
    losses = []
    with torch.no_grad():
        for seed in range(draws):
            with pb.one_draw(model, seed):
                losses.append(pb.nelbo(model, (x, y), 400, temperature=0.01).loss)
    return torch.stack(losses).mean().item()


def test_one_component_for_each_distinct_point_changes_no_output() -> None:
    model = pb.bayesianize(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double())
    x = torch.randn(6, 4, dtype=torch.double)
    everything = pb.Paper(components=35, outliers=NO_OUTLIERS, merge=None, blend=None)
    shared = shared_by(model, everything)
    with pb.one_draw(model, 1), pb.one_draw(shared, 1):
        torch.testing.assert_close(shared(x), model(x), rtol=1e-6, atol=1e-8)
    assert pb.kl_divergence(shared).item() == pytest.approx(pb.kl_divergence(model).item(), rel=1e-6)


def test_shared_weights_hold_a_codebook_labels_and_outliers_and_nothing_else(trained: nn.Module) -> None:
    shared = shared_by(trained, pb.Paper(components=64, outliers=SOME))
    book = weights(shared)[0].codebook
    assert all(w.codebook is book for w in weights(shared))
    assert all(w.labels.dtype == torch.uint8 for w in weights(shared))
    outliers = sum(w.rho.numel() for w in weights(shared))
    biases = sum(p.numel() for n, p in shared.named_parameters() if n.endswith("bias"))
    assert sum(p.numel() for p in shared.parameters()) == 2 * book.components + 2 * outliers + biases


def test_a_plain_copy_of_shared_weights_can_be_converted_again(trained: nn.Module) -> None:
    """Also where no weight is an outlier, and the parameter that was is empty."""
    shared = shared_by(trained, pb.Rate(components=8, outlier_bits=None))
    plain = pb.to_deterministic(shared)
    assert all(parameter.requires_grad for parameter in plain.parameters())
    pb.bayesianize(plain)
    assert len(stochastic_weights(plain)) == len(weights(shared))
    frozen = copy.deepcopy(trained)
    first = next(iter(stochastic_weights(frozen)))
    first.original.requires_grad_(False)
    assert not pb.to_deterministic(frozen).get_parameter(first.path).requires_grad


def test_labels_name_each_weights_own_law(trained: nn.Module) -> None:
    shared = shared_by(trained, pb.Rate(lambda_=0.1))
    for before, after in zip(stochastic_weights(trained), stochastic_weights(shared), strict=True):
        gap = (after.moments.mu - before.moments.mu).square().mean() / before.moments.mu.square().mean()
        assert gap < 0.05
        k = after.weight.codebook.components
        inside = after.weight.labels != k
        expected = after.weight.codebook.mu[after.weight.labels[inside].long()]
        assert torch.equal(after.moments.mu.reshape(-1)[inside], expected)


@pytest.mark.parametrize(
    "how", [pb.Rate(lambda_=0.3), pb.Paper(components=48, outliers=SOME)], ids=["rate", "paper"]
)
def test_fine_tuning_lowers_the_held_out_nelbo_and_reaches_codebook_and_outliers(
    trained: nn.Module, how
) -> None:
    shared = shared_by(trained, how)
    before, codebook = nelbo(shared), weights(shared)[0].codebook.mu.detach().clone()
    x, y = held_out()
    with pb.one_draw(shared, 0):
        nn.functional.cross_entropy(shared(x), y).backward()  # the likelihood alone
    assert bool((weights(shared)[0].codebook.mu.grad != 0).any())
    assert bool((weights(shared)[0].codebook.rho.grad != 0).any())
    if isinstance(how, pb.Paper):
        outliers = [s for s in stochastic_weights(shared) if s.original.numel()]
        assert outliers
        assert all(bool((s.original.grad != 0).any()) for s in outliers)
    shared.zero_grad()
    pb.fit(shared, digits(), epochs=6, lr=1e-3, temperature=0.01, anneal=0.0, progress=False)
    assert not torch.equal(weights(shared)[0].codebook.mu, codebook)
    assert nelbo(shared) < before


def test_gathered_gradients_are_sums_over_members(trained: nn.Module) -> None:
    """The gradient at a component is the sum of those at its weights, by an independent loop."""
    shared = shared_by(trained, pb.Rate(lambda_=0.3, outlier_bits=None))
    site = stochastic_weights(shared)[1]
    upstream = torch.randn_like(site.moments.mu)
    (site.moments.mu * upstream).sum().backward()
    labels = site.weight.labels
    for k in range(0, site.weight.codebook.components, 7):
        expected = upstream.reshape(-1)[labels == k].double().sum()
        assert site.weight.codebook.mu.grad[k].item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)


def test_tied_draws_move_members_together_and_count_once() -> None:
    model = pb.bayesianize(nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20)).double())
    how = {"components": 5, "outliers": NO_OUTLIERS, "merge": None, "blend": None}
    tied, free = shared_by(model, pb.Paper(tied=True, **how)), shared_by(model, pb.Paper(**how))
    for twin, together in ((tied, True), (free, False)):
        site = stochastic_weights(twin)[0]
        w = getattr(site.owner, site.name).detach().reshape(-1)
        members = w[site.weight.labels == 0]
        assert (members.std() < 1e-12) == together
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(weights(tied)[0].codebook.mu, weights(tied)[0].codebook.values().sigma),
        torch.distributions.Normal(0.0, weights(tied)[0].prior_sigma),
    ).sum()
    torch.testing.assert_close(pb.kl_divergence(tied), expected)


def test_the_kl_with_prior_means_is_exact() -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10)).double()
    pb.bayesianize(model, prior=pb.Pretrained(0.3), sigma=pb.Relative(0.3))
    pb.share(model, pb.Paper(components=12, outliers=SOME, merge=None, beyond=1.0))
    expected = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(*site.moments), torch.distributions.Normal(site.weight.prior_mu, 0.3)
        ).sum()
        for site in stochastic_weights(model)
    )
    torch.testing.assert_close(pb.kl_divergence(model), expected)


def test_ties_stay_tied() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(30, 20), "b": nn.Linear(20, 30, bias=False)})
    model["b"].weight = model["a"].weight
    pb.bayesianize(model)
    pb.share(model, pb.Paper(components=8, outliers=SOME, merge=None))
    first, second = sites(model)
    assert first.weight is second.weight
    assert first.original is second.original
    with pb.one_draw(model, 0):
        assert torch.equal(model["a"].weight, model["b"].weight)


ABLATIONS = {
    "no outliers": pb.Paper(components=48, outliers=NO_OUTLIERS),
    "no blends": pb.Paper(components=48, outliers=SOME, blend=None),
    "neither": pb.Paper(components=48, outliers=NO_OUTLIERS, blend=None),
    "no merging": pb.Paper(components=48, outliers=SOME, merge=None),
    "merging": pb.Paper(components=48, outliers=SOME, merge=Merge(distance=RelativeDistance(2.0))),
}


def test_every_part_can_be_switched_off(trained: nn.Module) -> None:
    reports = {name: pb.share(copy.deepcopy(trained), how) for name, how in ABLATIONS.items()}
    assert reports["no outliers"].outliers == reports["neither"].outliers == 0
    assert reports["no blends"].blends == reports["neither"].blends == 0
    assert reports["no merging"].components == reports["no merging"].components_before_merging
    assert reports["merging"].components < reports["no merging"].components
    assert all("weights share" in str(report) for report in reports.values())


def test_more_outliers_at_a_lower_threshold(trained: nn.Module) -> None:
    counts = []
    for tau in (0.1, 0.2, 0.4):
        rules = Outliers(mean=AbsoluteMean(tau), fisher_fraction=None, smallest_cluster=None)
        counts.append(pb.share(copy.deepcopy(trained), pb.Paper(components=32, outliers=rules)).outliers)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_fisher_information_chooses_its_fraction_of_outliers(trained: nn.Module) -> None:
    g = pb.fisher_information(trained, digits(128), progress=False)
    rules = Outliers(mean=None, fisher_fraction=0.01, smallest_cluster=None)
    report = pb.share(copy.deepcopy(trained), pb.Paper(components=32, outliers=rules), fisher=g)
    assert 0.008 * report.weights < report.outliers <= 0.01 * report.weights


def test_it_is_the_fisher_information_of_logistic_regression() -> None:
    """For a linear model the per-example gradients are known: (p - y) x."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(4000, 3, generator=g), torch.randint(2, (4000,), generator=g)
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    single = pb.fisher_information(model, DataLoader(TensorDataset(x, y), 1), progress=False)["weight"]
    exact = 0.25 * x.square().mean(0).expand(2, 3)  # p = 1/2: (p - y)^2 = 1/4
    torch.testing.assert_close(single, exact, rtol=1e-4, atol=1e-5)
    batched = pb.fisher_information(model, DataLoader(TensorDataset(x, y), 8), progress=False)["weight"]
    assert (batched / exact - 1).abs().max() < 5 * (2 / 500) ** 0.5  # chi-square with 500 batches


def test_sampled_targets_give_the_fisher_information_where_labels_do_not() -> None:
    """E p (1 - p) x^2 in logistic regression, at weights that do not fit the labels; inputs alone are enough."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(1600, 3, generator=g), torch.randint(2, (1600,), generator=g)
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -0.5, 0.0], [-1.0, 0.5, 1.0]]))
        p = model(x).softmax(1)  # [N, 2]
    each = (p[:, :, None] * (1 - p[:, :, None])) * x[:, None, :].square()  # [N, 2, 3]
    exact, moments = each.mean(0), {"progress": False, "seed": 1}
    # One example a batch: the square is (y - p)^2 x^2, with variance known too.
    spread = (p * (1 - p) * (1 - 3 * p * (1 - p)))[:, :, None] * x[:, None, :] ** 4 - each.square()
    error = (spread.mean(0) / len(x)).sqrt()
    inputs = DataLoader(x, 1)
    single = pb.fisher_information(model, inputs, sampled=True, **moments)["weight"]
    assert ((single - exact) / error).abs().max() < 4
    labelled = DataLoader(TensorDataset(x, y), 1)
    assert torch.equal(pb.fisher_information(model, labelled, sampled=True, **moments)["weight"], single)
    control = pb.fisher_information(model, labelled, **moments)["weight"]
    assert ((control - exact) / error).abs().max() > 8
    batched = pb.fisher_information(model, DataLoader(x, 4), sampled=True, **moments)["weight"]
    assert (batched / exact - 1).abs().max() < 5 * (3 / 400) ** 0.5  # nearly chi-square, of 400 batches


def test_enough_data_weigh_so_much_beside_the_prior() -> None:
    fisher = {"a": torch.full((2, 3), 0.5), "b": torch.full((4, 1, 2), 0.25)}  # sums 3 and 2
    assert enough_data(fisher, 0.5, weight=10.0) == 10 * (4 * 14) / 5
    assert enough_data(fisher, pb.FanIn(1.0), weight=10.0) == round(10 * (3 * 6 + 2 * 8) / 5)
    assert enough_data({"a": torch.zeros(2)}, 1.0) == 1


@pytest.mark.parametrize("likelihood", [pb.likelihood.Homoscedastic(0.5), pb.likelihood.Heteroscedastic()])
def test_sampled_targets_of_a_regression_are_those_of_the_likelihood(likelihood) -> None:
    outputs = torch.tensor([[1.0, 0.3]]).expand(40_000, 2)
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        drawn = likelihood.sample(outputs)
    if isinstance(likelihood, pb.likelihood.Homoscedastic):
        mean, sigma = torch.tensor([1.0, 0.3]), torch.tensor([0.5, 0.5])
    else:
        mean, sigma = torch.tensor([1.0]), torch.tensor([0.3]).exp().add(1).log() + 1e-3
    assert drawn.shape == (40_000, len(mean))
    assert ((drawn.mean(0) - mean) / (sigma / 200)).abs().max() < 4
    assert ((drawn.std(0) / sigma - 1) * 80_000**0.5).abs().max() < 4


def test_a_function_draws_no_targets() -> None:
    with pytest.raises(ValueError, match="draws no targets"):
        pb.fisher_information(
            nn.Linear(2, 2), [torch.ones(3, 2)], likelihood=lambda f, y: f, sampled=True, progress=False
        )


BAD = {
    "a plain model": (lambda m: pb.share(nn.Linear(2, 2)), r"pb\.bayesianize"),
    "sharing twice": (lambda m: pb.share(shared_by(m, pb.Rate())), "shared already"),
    "more components than weights": (
        lambda m: pb.share(m, pb.Paper(components=10**6, outliers=SOME)),
        "fewer than",
    ),
    "all outliers": (
        lambda m: pb.share(m, pb.Paper(outliers=Outliers(mean=AbsoluteMean(1e-9), fisher_fraction=None))),
        "outliers",
    ),
    "no Fisher information": (lambda m: pb.share(m, pb.Paper(components=9)), "fisher"),
    "Fisher information of another model": (
        lambda m: pb.share(m, pb.Paper(components=9), fisher={}),
        "0.weight",
    ),
}


@pytest.mark.parametrize(("attempt", "message"), BAD.values(), ids=BAD)
def test_bad_input_gets_an_error_and_the_model_is_left_as_it_was(
    trained: nn.Module, attempt, message: str
) -> None:
    model = copy.deepcopy(trained)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        attempt(model)
    after = model.state_dict()
    assert set(after) == set(before)
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_weights_that_are_not_finite_are_named(trained: nn.Module) -> None:
    model = copy.deepcopy(trained)
    with torch.no_grad():
        stochastic_weights(model)[1].original[0, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"2\.weight.*not finite"):
        pb.share(model)


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_constant_weights_share_one_component(value: float) -> None:
    model = nn.Linear(20, 10)
    nn.init.constant_(model.weight, value)
    pb.bayesianize(model, sigma=pb.Absolute(0.1))
    assert pb.share(model, pb.Rate()).components == 1
