"""Answers by a pocket file alone, in ONNX Runtime: no torch, and none of the network's code."""

from pocketbayes.runtime.graph_predictor import GraphPredictor, open

__all__ = ["open", "GraphPredictor"]
