"""The schemes that the structure experiments compare on MLPs, and the symmetries that they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from experiments.structure.batched import Plan
from pocketbayes import nets
from pocketbayes.structure import (
    MAP,
    Constant,
    Fixed,
    Heavy,
    Light,
    Random,
    Scheme,
    Values,
    Weight,
    Zero,
    fix_weights,
    neuron_graph,
    residual_symmetry,
)

DETERMINISTIC = (
    "vanilla",
    "light, 0",
    "heavy, 0",
    "random as light, 0",
    "random as heavy, 0",
    "rows as heavy, 0",
)  # the masks that deterministic networks are trained with, to see what capacity they leave


class Sizes(NamedTuple):
    """Where the size c of fixed values +-c starts."""

    light: float
    heavy: float


def weights_of(widths: Sequence[int]) -> list[Weight]:
    """The weights of `nets.mlp(widths)`, by name."""
    return [Weight(f"{2 * i}.weight", (widths[i + 1], widths[i])) for i in range(len(widths) - 1)]


def whole_rows(weights: Sequence[Weight]) -> dict[str, Fixed]:
    """As many zeros as `Heavy` fixes, but in whole rows from the last one on: neurons that hear nothing.

    The others swap as before, so this is what fewer stochastic weights do while symmetries stay.
    """
    fixed = {}
    for layer, weight in enumerate(weights):
        count = int(Heavy().mask(layer, weight).sum())
        mask = np.zeros(weight.shape, bool)
        mask.reshape(-1)[mask.size - count :] = True
        fixed[weight.name] = Fixed({"rule": "rows", "count": count}, mask, np.zeros(weight.shape))
    return fixed


def plans(widths: Sequence[int], seed: int, trained: Mapping[str, Any], c: Sizes) -> dict[str, Plan]:
    """Every scheme by name; `trained` are the weights of the deterministic network, for MAP values."""
    weights = weights_of(widths)

    def plan(scheme: Scheme, values: Values) -> Plan:
        return Plan(fix_weights(weights, scheme, values), trained=isinstance(values, Constant))

    light_c, heavy_c = (Constant(size, trained=True, seed=seed) for size in c)
    like_light, like_heavy = (Random(like=scheme, seed=seed) for scheme in (Light(), Heavy()))
    return {
        "vanilla": Plan(),
        "light, 0": plan(Light(), Zero()),
        "light, ±c": plan(Light(), light_c),
        "light, MAP": plan(Light(), MAP(trained)),
        "heavy, 0": plan(Heavy(), Zero()),
        "heavy, ±c": plan(Heavy(), heavy_c),
        "heavy, MAP": plan(Heavy(), MAP(trained)),
        "random as light, 0": plan(like_light, Zero()),
        "random as heavy, 0": plan(like_heavy, Zero()),
        "random as heavy, ±c": plan(like_heavy, heavy_c),
        "random as heavy, MAP": plan(like_heavy, MAP(trained)),
        "rows as heavy, 0": Plan(whole_rows(weights)),
        "ordered biases": Plan(ordered=True),
    }


def deterministic_plans(widths: Sequence[int], seed: int) -> dict[str, Plan]:
    """Those of `DETERMINISTIC`, which need no trained weights; the plain network comes first."""
    zeros = {weight.name: torch.zeros(weight.shape) for weight in weights_of(widths)}
    every = plans(widths, seed, zeros, Sizes(1.0, 1.0))
    return {name: every[name] for name in DETERMINISTIC}


def symmetries(widths: Sequence[int], seed: int) -> dict[str, dict[str, float]]:
    """log10 of the permutations and of the sign flips that each scheme leaves.

    MAP values are distinct numbers, whichever they are.  Ordered biases leave no permutation, and all sign flips:
    sorting the neurons again after a flip keeps the order.
    """
    graph = neuron_graph(nets.mlp(list(widths), nn.Tanh))
    generator = np.random.default_rng(seed)
    distinct = {weight.name: generator.normal(size=weight.shape) for weight in weights_of(widths)}
    found = {}
    for name, plan in plans(widths, seed, distinct, Sizes(1.0, 1.0)).items():
        left = residual_symmetry(graph, plan.fixed)
        found[name] = {"permutations": left.log10_permutations, "flips": left.log10_flips}
    found["ordered biases"] = {"permutations": 0.0, "flips": found["vanilla"]["flips"]}
    return found


def scheme_of(name: str, seed: int) -> Scheme:
    """From the part of a scheme's name before the comma."""
    kinds: dict[str, Scheme] = {"light": Light(), "heavy": Heavy()}
    kinds |= {
        f"random as {kind}": Random(like=like, seed=seed)
        for kind, like in (("light", Light()), ("heavy", Heavy()))
    }
    return kinds[name.partition(",")[0]]


def as_floats(values: Tensor, digits: int = 5) -> list[float]:
    """For a json file."""
    return [round(value, digits) for value in values.flatten().tolist()]
