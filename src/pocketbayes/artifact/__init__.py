"""The pocket file: one model in one file, near its entropy, safe to open.  Nothing named here needs torch.

Examples:
    >>> _ = pb.save(pb.bayesianize(pb.nets.mlp([4, 3])), "small.pocket")
    >>> pocket = pb.artifact.decode("small.pocket")
    >>> {name: w.shape for name, w in pb.artifact.sample_weights(pocket, seed=0, number=1).items()}
    {'0.weight': (3, 4), '0.bias': (3,)}
"""

from pocketbayes.artifact.container import VERSION
from pocketbayes.artifact.dense import free_moments, mean_weights, moments_of, sample_weights
from pocketbayes.artifact.format import Encoded, encode
from pocketbayes.artifact.pocket import (
    FLOAT32,
    Entry,
    Fixed,
    MeanField,
    Plain,
    Pocket,
    Precision,
    Prior,
    Shared,
    Signs,
    Tied,
)
from pocketbayes.artifact.reader import MAX_WEIGHTS, decode
from pocketbayes.artifact.summary import Summary, TensorSummary, inspect
from pocketbayes.moments import Codebook

Normal = MeanField  # the name that version 0.1 gave it

__all__ = [
    "Pocket",
    "Codebook",
    "Entry",
    "Plain",
    "MeanField",
    "Normal",
    "Shared",
    "Tied",
    "Fixed",
    "Signs",
    "Prior",
    "Precision",
    "FLOAT32",
    "VERSION",
    "Encoded",
    "encode",
    "MAX_WEIGHTS",
    "decode",
    "moments_of",
    "free_moments",
    "mean_weights",
    "sample_weights",
    "Summary",
    "TensorSummary",
    "inspect",
]
