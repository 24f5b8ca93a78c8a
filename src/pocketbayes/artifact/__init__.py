"""The pocket file: one model in one file, near its entropy, safe to open.  Nothing named here needs torch."""

from pocketbayes.artifact.container import VERSION
from pocketbayes.artifact.dense import Law, free_law, law_of, mean_weights, sample_weights
from pocketbayes.artifact.format import Encoded, encode
from pocketbayes.artifact.pocket import (
    FLOAT32,
    Codebook,
    Entry,
    Fixed,
    Normal,
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

__all__ = [
    "Pocket",
    "Codebook",
    "Entry",
    "Plain",
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
    "Law",
    "law_of",
    "free_law",
    "mean_weights",
    "sample_weights",
    "Summary",
    "TensorSummary",
    "inspect",
]
