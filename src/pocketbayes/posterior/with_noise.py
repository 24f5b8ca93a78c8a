"""`with_noise`: another shape of z for a posterior that is there: train with Gaussians, deploy on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from pocketbayes.noise import Noise
from pocketbayes.posterior.weights import require_bayesian


def with_noise(model: nn.Module, family: Noise) -> nn.Module:
    """Give every stochastic weight w = mu + sigma z that family for z, in place.

    Families are standardised, so that means and variances stay; `save` stores the new family.  A device that alters
    them (`Programmed`, `Drifted`) does so from now on, in every draw.

    Args:
        model: a Bayesian model, at any stage.
        family: of `pb.noise`, or what `pb.fit_noise` found.

    Returns:
        The model that was given.

    Examples:
        >>> plain = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(plain.weight)
        >>> model = pb.bayesianize(plain, sigma=pb.Absolute(0.5))
        >>> model = pb.with_noise(model, pb.noise.TwoPoint())  # z is +1 or -1
        >>> sorted({round(model.weight.item(), 3) for _ in range(50)})
        [-0.5, 0.5]
    """
    if not isinstance(family, Noise):
        raise ValueError(
            f"with_noise: the family must be a pocketbayes.noise.Noise, got {family!r}. "
            "Use e.g. pb.noise.Bimodal(0.9), or pb.noise.fit_noise(samples).noise."
        )
    for site in require_bayesian(model):
        site.weight.noise = family
    return model


@contextmanager
def under_noise(model: nn.Module, family: Noise) -> Iterator[nn.Module]:
    """The same for the length of a block; afterwards every weight has the noise it had."""
    before = [(site.weight, site.weight.noise) for site in require_bayesian(model)]
    try:
        yield with_noise(model, family)
    finally:
        for weight, noise in before:
            weight.noise = noise
