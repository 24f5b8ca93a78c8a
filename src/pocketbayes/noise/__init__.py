"""The shape of z in w = mu + sigma z: noise families, how to fit, draw, integrate and compare them.

Examples:
    >>> law = pb.noise.StudentT(5.0)
    >>> z = law.sample_like(torch.zeros(1000))
    >>> abs(float(z.mean())) < 0.2, round(law.negentropy(), 3), pb.noise.TwoPoint().has_atoms
    (True, 0.047, True)
"""

from pocketbayes.noise.atoms import AtomicLaw, TwoPoint
from pocketbayes.noise.averaged import Averaged, AveragedAtoms, averaged
from pocketbayes.noise.devices import Device, Drifted, Programmed
from pocketbayes.noise.distance import (
    energy_distance,
    marginal_distances,
    predictive_distances,
    sum_energy_distance,
)
from pocketbayes.noise.family import Law, Noise
from pocketbayes.noise.fit import NoiseFit, fit_noise, fit_states
from pocketbayes.noise.gaussian import Gaussian
from pocketbayes.noise.kl import cross_entropy, kl_to_prior, shape_term, shape_total
from pocketbayes.noise.measured import Empirical, QuantileTable
from pocketbayes.noise.mixtures import Bimodal, GaussianMixture
from pocketbayes.noise.quadrature import QuadratureRule, gauss_rule
from pocketbayes.noise.readings import read_readings
from pocketbayes.noise.shapes import Laplace, Logistic, SkewNormal, StudentT, Uniform
from pocketbayes.noise.state import StateDependent

__all__ = [
    "Noise",
    "Law",
    "AtomicLaw",
    "Gaussian",
    "Bimodal",
    "GaussianMixture",
    "Uniform",
    "Laplace",
    "Logistic",
    "StudentT",
    "SkewNormal",
    "TwoPoint",
    "Empirical",
    "QuantileTable",
    "StateDependent",
    "Averaged",
    "AveragedAtoms",
    "averaged",
    "Device",
    "Programmed",
    "Drifted",
    "read_readings",
    "fit_noise",
    "fit_states",
    "NoiseFit",
    "QuadratureRule",
    "gauss_rule",
    "kl_to_prior",
    "cross_entropy",
    "shape_term",
    "shape_total",
    "energy_distance",
    "marginal_distances",
    "predictive_distances",
    "sum_energy_distance",
]
