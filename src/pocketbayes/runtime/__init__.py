"""Answers by a pocket file alone, in ONNX Runtime: no torch, and none of the network's code.

Examples:
    >>> card = {"shape": [2], "classes": ["a", "b", "c"], "scale": [[5.0, 5.0], [2.0, 2.0], 1.0]}
    >>> network = pb.bayesianize(pb.nets.mlp([2, 8, 3]))
    >>> _ = pb.save(network, "small.pocket", metadata=card, example=torch.zeros(2, 2))
    >>> len(pb.runtime.open("small.pocket").predict([[4.0, 6.5], [5.0, 1.0]]).names)
    2
"""

from pocketbayes.runtime.graph_predictor import GraphPredictor, open

__all__ = ["open", "GraphPredictor"]
