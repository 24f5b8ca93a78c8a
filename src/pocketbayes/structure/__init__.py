"""Structured partial stochasticity: which weights are fixed, and which symmetries that leaves.

Examples:
    >>> graph = pb.structure.neuron_graph(pb.nets.mlp([4, 3, 2]))
    >>> print(pb.structure.residual_symmetry(graph))  # the three hidden neurons, in any order
    10^0.78 permutations
"""

from pocketbayes.drawing.masks import mask_from_rule, random_signs
from pocketbayes.structure.alignment import Alignment, align
from pocketbayes.structure.breaking import SymmetryReport, break_symmetry, order_biases
from pocketbayes.structure.network import NeuronGraph
from pocketbayes.structure.permute import permute_weights
from pocketbayes.structure.schemes import (
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
)
from pocketbayes.structure.symmetry import Symmetry, residual_symmetry
from pocketbayes.structure.trace import neuron_graph

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
