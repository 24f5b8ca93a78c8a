"""The exact posterior of a small MLP, by NUTS: what variational answers are compared with.

    python -m pip install numpyro        # brings jax; needed for this file only

y ~ N(f(x), noise^2) with f a tanh MLP, all free weights and biases N(0, prior_sigma^2).  Tensors have the names and
shapes of `pb.nets.mlp(widths, nn.Tanh)`: "0.weight" [D_1, D_0], "0.bias" [D_1], "2.weight" ...  Fixed entries are
constants, as `pocketbayes.structure.fix_weights` describes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pocketbayes.structure import FixedPart

Array = NDArray[np.float64]
Draws = dict[str, Array]  # a tensor's name -> [chains, draws, *shape]


class Convergence(NamedTuple):
    """How well the chains agree, worst and middle over the predicted values."""

    worst_rhat: float
    median_rhat: float
    least_ess: float
    median_ess: float
    divergences: int


class Reference(NamedTuple):
    """Draws from the posterior and what they predict."""

    draws: Draws
    outputs: Array  # [chains, draws, N, D_L]: f at the points asked for
    convergence: Convergence

    @property
    def mean(self) -> Array:
        """[N, D_L]"""
        return np.asarray(self.outputs.mean((0, 1)))

    @property
    def sigma(self) -> Array:
        """[N, D_L]: the standard deviation of f, without the observation noise."""
        return np.asarray(self.outputs.std((0, 1)))


def shapes_of(widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the MLP's tensors, from the input on."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        shapes |= {f"{2 * layer}.weight": (outputs, inputs), f"{2 * layer}.bias": (outputs,)}
    return shapes


def unpack(theta: Any, widths: Sequence[int], fixed: Mapping[str, FixedPart]) -> dict[str, Any]:
    """All tensors from the vector of free entries, in order; with numpy or jax, in batches if theta has them."""
    import jax.numpy as jnp

    tensors, start = {}, 0
    for name, shape in shapes_of(widths).items():
        mask = fixed[name].mask.ravel() if name in fixed else np.zeros(math.prod(shape), bool)
        free = np.flatnonzero(~mask)
        values = jnp.asarray(fixed[name].values.ravel() if name in fixed else np.zeros(mask.size))
        flat = jnp.broadcast_to(values, (*theta.shape[:-1], mask.size))
        flat = flat.at[..., free].set(theta[..., start : start + len(free)])
        tensors[name] = flat.reshape(*theta.shape[:-1], *shape)
        start += len(free)
    return tensors


def outputs_of(tensors: Mapping[str, Any], x: Any) -> Any:
    """f(x) of a tanh MLP: [..., N, D_L] from tensors [..., *shape] and x [N, D_0]."""
    import jax.numpy as jnp

    names = [name for name in tensors if name.endswith("weight")]
    hidden = x
    for number, name in enumerate(names):
        bias = tensors[name.replace("weight", "bias")][..., None, :]
        hidden = hidden @ jnp.swapaxes(tensors[name], -1, -2) + bias
        hidden = jnp.tanh(hidden) if number + 1 < len(names) else hidden
    return hidden


def nuts_mlp(
    widths: Sequence[int],
    x: Array,
    y: Array,
    noise: float,
    *,
    at: Array,
    prior_sigma: float = 1.0,
    warmup: int = 1000,
    draws: int = 1000,
    chains: int = 4,
    seed: int = 0,
    fixed: Mapping[str, FixedPart] | None = None,
    max_tree_depth: int = 10,
) -> Reference:
    """Draws from p(w | x, y) and their predictions at the points `at`, in float64.

    Args:
        widths: [D_0, ..., D_L], e.g. [1, 10, 10, 1].
        x, y: [N, D_0] and [N, D_L].
        noise: the observation noise's standard deviation.
        at: [M, D_0], where f is asked for and convergence is judged (weights themselves have symmetric modes).
        fixed: by tensor name, as `fix_weights` returns it.
    """
    import jax

    fixed = fixed or {}
    check_data(widths, x, y, at, fixed)
    with jax.enable_x64(True):
        theta, divergences = _sample(
            widths, x, y, noise, prior_sigma, fixed, warmup, draws, chains, seed, max_tree_depth
        )
        tensors = unpack(jax.numpy.asarray(theta), widths, fixed)
        outputs = np.asarray(outputs_of(tensors, at), np.float64)
        kept = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    return Reference(kept, outputs, convergence(outputs, divergences))


def _sample(
    widths: Sequence[int],
    x: Array,
    y: Array,
    noise: float,
    prior_sigma: float,
    fixed: Mapping[str, FixedPart],
    warmup: int,
    draws: int,
    chains: int,
    seed: int,
    max_tree_depth: int,
) -> tuple[Array, int]:
    """The free entries as [chains, draws, free], and how many transitions diverged."""
    import jax
    import numpyro
    from numpyro.distributions import Normal
    from numpyro.infer import MCMC, NUTS

    entries = sum(math.prod(shape) for shape in shapes_of(widths).values())
    free = entries - sum(int(part.mask.sum()) for part in fixed.values())

    def model() -> None:
        unit = numpyro.sample("theta", Normal(0.0, 1.0).expand([free]).to_event(1))
        f = outputs_of(unpack(prior_sigma * unit, widths, fixed), x)
        numpyro.sample("y", Normal(f, noise), obs=y)

    kernel = NUTS(model, max_tree_depth=max_tree_depth)
    chain = MCMC(
        kernel,
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method="sequential",
        progress_bar=False,
    )
    chain.run(jax.random.PRNGKey(seed), extra_fields=("diverging",))
    diverging = chain.get_extra_fields(group_by_chain=True)["diverging"]
    theta = chain.get_samples(group_by_chain=True)["theta"]
    return prior_sigma * np.asarray(theta, np.float64), int(np.asarray(diverging).sum())


def convergence(outputs: Array, divergences: int = 0) -> Convergence:
    """Split r-hat and effective sample size of every predicted value, from outputs [chains, draws, N, D_L]."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

    rhat, ess = np.asarray(split_gelman_rubin(outputs)), np.asarray(effective_sample_size(outputs))
    return Convergence(
        float(rhat.max()), float(np.median(rhat)), float(ess.min()), float(np.median(ess)), divergences
    )


def check_data(widths: Sequence[int], x: Array, y: Array, at: Array, fixed: Mapping[str, FixedPart]) -> None:
    """Shapes must fit the widths, and fixed tensors must be the network's."""
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"widths: two or more positive numbers are needed, got {list(widths)}.")
    for name, array, width in (("x", x, widths[0]), ("y", y, widths[-1]), ("at", at, widths[0])):
        if array.ndim != 2 or array.shape[1] != width:
            raise ValueError(f"{name}: must have shape [N, {width}], got {array.shape}. Reshape it.")
    if len(x) != len(y):
        raise ValueError(f"x and y: {len(x)} and {len(y)} rows. Give one target row for each input row.")
    shapes = shapes_of(widths)
    for name, part in fixed.items():
        if shapes.get(name) != part.mask.shape:
            raise ValueError(f"fixed: {name} {part.mask.shape} is no tensor of this network: {shapes}.")
