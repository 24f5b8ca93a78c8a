"""The schemes that the structure experiments compare, and the symmetries that they leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbayes import nets
from pocketbayes.posterior.fixed import FixedEntries
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.structure import (
    MAP,
    Constant,
    FixedPart,
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
from pocketbayes.structure.breaking import fix_entries

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


class Choice(NamedTuple):
    """How one network differs from the plain one."""

    scheme: Scheme | None = None
    values: Values = Zero()
    rows: bool = False  # whole rows are zero
    ordered: bool = False  # the biases of every hidden layer are ordered

    def fixed(self, widths: Sequence[int]) -> dict[str, FixedPart]:
        """What is fixed in `nets.mlp(widths)`, by name."""
        weights = weights_of(widths)
        if self.rows:
            masks = {weight.name: last_rows(weight, layer) for layer, weight in enumerate(weights)}
            return {name: FixedPart({}, mask, np.zeros(mask.shape)) for name, mask in masks.items()}
        return {} if self.scheme is None else fix_weights(weights, self.scheme, self.values)

    def count(self, widths: Sequence[int]) -> int:
        """How many weights are fixed."""
        return sum(int(part.mask.sum()) for part in self.fixed(widths).values())


def weights_of(widths: Sequence[int]) -> list[Weight]:
    """The weights of `nets.mlp(widths)`, by name."""
    return [Weight(f"{2 * i}.weight", (widths[i + 1], widths[i])) for i in range(len(widths) - 1)]


def last_rows(weight: Weight, layer: int) -> NDArray[np.bool_]:
    """As many entries as `Heavy` fixes, but in whole rows from the last one on: neurons that see no input.

    The others swap as before, so this is what fewer stochastic weights do while symmetries stay.
    """
    mask = np.zeros(weight.shape, bool)
    mask.reshape(-1)[mask.size - int(Heavy().mask(layer, weight).sum()) :] = True
    return mask


def whole_rows(model: nn.Module) -> None:
    """Fix the `last_rows` of every layer to zero, in place."""
    weights = [Weight(s.path, tuple(s.shape)) for s in stochastic_weights(model) if s.name == "weight"]
    masks = {weight.name: torch.from_numpy(last_rows(weight, i)) for i, weight in enumerate(weights)}
    fix_entries(model, {name: FixedEntries(mask, rule={}) for name, mask in masks.items()})


def schemes(seed: int, trained: Mapping[str, Any], c: Sizes) -> dict[str, Choice]:
    """All by name; `trained` are the weights of the deterministic network, for MAP values."""
    light_c, heavy_c = (Constant(size, trained=True, seed=seed) for size in c)
    like_light, like_heavy = (Random(like=scheme, seed=seed) for scheme in (Light(), Heavy()))
    return {
        "vanilla": Choice(),
        "light, 0": Choice(Light()),
        "light, ±c": Choice(Light(), light_c),
        "light, MAP": Choice(Light(), MAP(trained)),
        "heavy, 0": Choice(Heavy()),
        "heavy, ±c": Choice(Heavy(), heavy_c),
        "heavy, MAP": Choice(Heavy(), MAP(trained)),
        "random as light, 0": Choice(like_light),
        "random as heavy, 0": Choice(like_heavy),
        "random as heavy, ±c": Choice(like_heavy, heavy_c),
        "random as heavy, MAP": Choice(like_heavy, MAP(trained)),
        "rows as heavy, 0": Choice(rows=True),
        "ordered biases": Choice(ordered=True),
    }


def scheme_of(name: str, seed: int) -> Scheme:
    """From a scheme's name; vanilla and ordered biases have none."""
    scheme = schemes(seed, {}, Sizes(1.0, 1.0))[name].scheme
    assert scheme is not None
    return scheme


def symmetries(widths: Sequence[int], seed: int) -> dict[str, dict[str, float]]:
    """log10 of the permutations and of the sign flips that each scheme leaves.

    MAP values are distinct numbers, whichever they are.  Ordered biases leave no permutation, and all sign flips:
    sorting the neurons again after a flip keeps the order.
    """
    graph = neuron_graph(nets.mlp(list(widths), nn.Tanh))
    generator = np.random.default_rng(seed)
    distinct = {weight.name: generator.normal(size=weight.shape) for weight in weights_of(widths)}
    found = {}
    for name, choice in schemes(seed, distinct, Sizes(1.0, 1.0)).items():
        left = residual_symmetry(graph, choice.fixed(widths))
        found[name] = {"permutations": left.log10_permutations, "flips": left.log10_flips}
    found["ordered biases"] = {"permutations": 0.0, "flips": found["vanilla"]["flips"]}
    return found


def as_floats(values: Tensor, digits: int = 5) -> list[float]:
    """For a json file."""
    return [round(value, digits) for value in values.flatten().tolist()]
