"""Sharing (mu, sigma) between weights: a mixture over the plane with merging and blending, or rate and distortion.

Here are the parts of `pb.Paper` and the steps it takes, for experiments of one's own.

Examples:
    >>> merge = pb.sharing.Merge(distance=pb.sharing.RelativeDistance(0.1))
    >>> how = pb.Paper(components=20, outliers=pb.sharing.Outliers(fisher_fraction=None), merge=merge)
    >>> pb.share(pb.bayesianize(pb.nets.mlp([16, 64, 8])), how).components < 20
    True
"""

from pocketbayes.sharing.blend import blend_weights, component_moments
from pocketbayes.sharing.histogram import make_grid, make_histogram
from pocketbayes.sharing.merge import (
    AbsoluteDistance,
    Barycentre,
    Merge,
    MomentMatch,
    PaperEq6,
    RelativeDistance,
    merge_components,
)
from pocketbayes.sharing.mixture import Mixture, assign, fit_mixture, log_joint
from pocketbayes.sharing.outliers import AbsoluteMean, MeanQuantile, Outliers

__all__ = [
    "AbsoluteMean",
    "MeanQuantile",
    "Outliers",
    "make_grid",
    "make_histogram",
    "Mixture",
    "fit_mixture",
    "log_joint",
    "assign",
    "AbsoluteDistance",
    "RelativeDistance",
    "MomentMatch",
    "Barycentre",
    "PaperEq6",
    "Merge",
    "merge_components",
    "component_moments",
    "blend_weights",
]
