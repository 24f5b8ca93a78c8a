"""The Fisher information of each weight, and the sigmas of the Laplace posterior that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import part
from pocketbayes.errors import NonFiniteError
from pocketbayes.likelihood import Categorical, Likelihood, as_likelihood, unpack, unpack_inputs
from pocketbayes.posterior.convert import reason_to_skip
from pocketbayes.posterior.draws import mean_weights, mix
from pocketbayes.posterior.modes import Modes, unwrap
from pocketbayes.posterior.priors import FanIn, Scale, scale_of
from pocketbayes.posterior.surgery import parameters_with_owners
from pocketbayes.posterior.weights import device_of_parameters, sites
from pocketbayes.runs import randomness, ranks
from pocketbayes.runs.progress import track


def fisher_information(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    batches: int | None = None,
    sampled: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Tensor]:
    """F_i = E (d NLL / d mu_i)^2 over minibatches, times the batch size: it estimates the diagonal Fisher information.

    Taken at the means of the weights, with norms in evaluation mode.  At a minimum of the loss examples' gradients
    average out, so the square of a batch's mean gradient, times its size, is that of one example in expectation.
    With targets drawn from the network's own predictions (`sampled`) they do so everywhere: the estimate is unbiased.

    Args:
        model: plain or Bayesian, trained; of `Modes` each is looked at by itself.
        loader: batches `(x, ..., y)`, or dicts with labels; with `sampled` also batches of inputs alone.
        likelihood: of the targets; classes by default.
        batches: how many to look at; all by default.
        sampled: draw the targets from the network's predictions; those of the batches are left aside.
        seed: of drawn targets, and of what is random in the model, such as dropout.
        progress: show a bar.

    Returns:
        By parameter name a tensor in its shape, in nats per squared unit of the weight, of one example.

    Examples:
        >>> batch = torch.randn(64, 4), torch.randint(3, (64,))
        >>> fisher = pb.fisher_information(pb.nets.mlp([4, 3]), [batch], progress=False)
        >>> {name: tuple(f.shape) for name, f in fisher.items()}
        {'0.weight': (3, 4)}
    """
    likelihood = Categorical() if likelihood is None else as_likelihood(likelihood)
    if isinstance(model, Modes):
        settings = {"likelihood": likelihood, "batches": batches, "sampled": sampled, "seed": seed}
        each = [fisher_information(one, loader, progress=progress, **settings) for one in model]  # type: ignore[arg-type]
        return {f"modes.{m}.{name}": f for m, found in enumerate(each) for name, f in found.items()}
    ranks.require_same_network(unwrap(model))
    weights = _weights(model)
    total = {name: torch.zeros_like(w) for name, w in weights.items()}
    seen, was_training, device = 0, model.training, device_of_parameters(model)
    model.eval()
    try:
        with randomness.forked(seed), mean_weights(model):
            for raw in track(part(loader, batches), "Fisher information", enabled=progress):
                randomness.seed_all(mix(seed, ranks.number() + ranks.count() * seen))  # by the batch
                batch = unpack_inputs(raw, device) if sampled else unpack(raw, device)
                output = model(*batch.args, **batch.kwargs)
                target = likelihood.sample(output) if sampled else batch.target
                loss = likelihood.nll(output, target).mean()
                gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
                if not all(bool(torch.isfinite(g).all()) for g in (loss, *gradients) if g is not None):
                    raise NonFiniteError(
                        f"Fisher information: the loss of batch {seen}, or its gradient, is not finite. "
                        "Look for NaN or infinity in the data, or in the model's weights."
                    )
                for name, gradient in zip(weights, gradients, strict=True):
                    if gradient is not None:
                        total[name] += gradient.square() * batch.size
                seen += 1
    finally:
        model.train(was_training)
    looked_at = torch.tensor(float(seen), device=device)
    ranks.add_up([*(g.detach() for g in total.values()), looked_at])
    if looked_at == 0:
        raise ValueError("The loader for the Fisher information is empty. Pass one with at least one batch.")
    return {name: (g / looked_at.item()).detach() for name, g in total.items()}


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are, or would be, stochastic: their means, by name."""
    stochastic = {site.path: site.original for site in sites(model)}
    if stochastic:
        return stochastic
    plain = parameters_with_owners(model)
    return {
        p.path: p.tensor for p in plain if reason_to_skip(p, where=None, biases=False, norms=False) is None
    }


def laplace_sigma(
    model: nn.Module,
    fisher: dict[str, Tensor],
    num_data: int,
    *,
    prior: Scale = FanIn(1.0),
    temperature: float = 1.0,
) -> dict[str, Tensor]:
    """sigma_i^2 = T / (N F_i + 1 / s^2) of a diagonal Laplace posterior, Eq. (20) of docs/method.md.

    Args:
        model: whose parameters they are.
        fisher: F by parameter name, from `fisher_information` of the trained network.
        num_data: N, the size of the training set.
        prior: s, a number or a `FanIn` scale by layer.
        temperature: T, a factor on the variances; 1 is Bayes.

    Returns:
        Sigmas by parameter name, in the weights' units: for `bayesianize(sigma=...)`.

    Examples:
        >>> fisher = {"weight": torch.tensor([[0.0, 3.0]])}
        >>> pb.laplace_sigma(nn.Linear(2, 1), fisher, num_data=1, prior=1.0)
        {'weight': tensor([[1.0000, 0.5000]])}
    """
    if not temperature > 0:
        raise ValueError(f"laplace_sigma: temperature must be positive, got {temperature}.")
    if unknown := fisher.keys() - _weights(model):
        raise ValueError(
            f"laplace_sigma: {sorted(unknown)} are no weights of this model. Pass the one they belong to."
        )
    found = {}
    for name, f in fisher.items():
        require_fisher(name, f)
        precision = num_data * f + scale_of(prior, f) ** -2
        found[name] = (temperature / precision).sqrt()
    return found


def require_fisher(name: str, fisher: Tensor) -> None:
    """Complain about what no Fisher information can be."""
    if not bool((torch.isfinite(fisher) & (fisher >= 0)).all()):
        raise ValueError(
            f"{name}: its Fisher information has NaN, infinity or negative numbers. "
            "Pass what pb.fisher_information(model, loader) returns."
        )


def enough_data(fisher: Mapping[str, Tensor], prior: Scale, weight: float = 0.3) -> int:
    """The N at which the data weigh so much beside the prior: sum_i N F_i over sum_i 1 / s^2.

    Layers differ by factors of a thousand in it: where the sums are about equal, most layers follow the data, and
    weights of which a few examples say nothing are left to the prior.
    """
    data = sum(float(f.sum(dtype=torch.float64)) for f in fisher.values())
    prior_precision = sum(f.numel() * scale_of(prior, f) ** -2 for f in fisher.values())
    return max(1, round(weight * prior_precision / data)) if data > 0 else 1


def noise_cost(fisher: Mapping[str, Tensor], sigma: Mapping[str, Tensor]) -> float:
    """1/2 sum_i F_i sigma_i^2: nats by which draws raise the NLL of an example, to second order.

    Eq. (21) of docs/method.md; of several modes the sum of theirs.

    Args:
        fisher: F by parameter name, from `fisher_information`.
        sigma: standard deviations by parameter name, in the weights' units.

    Examples:
        >>> from pocketbayes.posterior.laplace import noise_cost
        >>> noise_cost({"weight": torch.tensor([[0.0, 2.0]])}, {"weight": torch.tensor([[1.0, 0.5]])})
        0.25
    """
    return 0.5 * sum(float((f.double() * sigma[name].double().square()).sum()) for name, f in fisher.items())
