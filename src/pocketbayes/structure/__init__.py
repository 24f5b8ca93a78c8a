"""Structured partial stochasticity: which weights are fixed, and which symmetries that leaves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pocketbayes.structure.masks import (
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
    count_fixed,
    fix_weights,
    mask_from_rule,
    random_signs,
)

if TYPE_CHECKING:
    from pocketbayes.structure.alignment import Alignment as Alignment
    from pocketbayes.structure.alignment import align as align
    from pocketbayes.structure.breaking import SymmetryReport as SymmetryReport
    from pocketbayes.structure.breaking import break_symmetry as break_symmetry
    from pocketbayes.structure.breaking import order_biases as order_biases
    from pocketbayes.structure.network import NeuronGraph as NeuronGraph
    from pocketbayes.structure.permute import permute_weights as permute_weights
    from pocketbayes.structure.symmetry import Symmetry as Symmetry
    from pocketbayes.structure.symmetry import residual_symmetry as residual_symmetry
    from pocketbayes.structure.trace import neuron_graph as neuron_graph

# Masks need numpy only; what follows imports torch, and does so when it is first asked for.
_LAZY = {
    "NeuronGraph": "network",
    "permute_weights": "permute",
    "align": "alignment",
    "Alignment": "alignment",
    "neuron_graph": "trace",
    "Symmetry": "symmetry",
    "residual_symmetry": "symmetry",
    "break_symmetry": "breaking",
    "SymmetryReport": "breaking",
    "order_biases": "breaking",
}
__all__ = [
    "Light",
    "Heavy",
    "Random",
    "Scheme",
    "Zero",
    "Constant",
    "MAP",
    "Values",
    "Weight",
    "FixedPart",
    "fix_weights",
    "count_fixed",
    "mask_from_rule",
    "random_signs",
    "NeuronGraph",
    "neuron_graph",
    "permute_weights",
    "align",
    "Alignment",
    "Symmetry",
    "residual_symmetry",
    "break_symmetry",
    "SymmetryReport",
    "order_biases",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
