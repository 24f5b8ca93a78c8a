"""The shape of z in w = mu + sigma z."""

from pocketbayes.noise.family import Noise
from pocketbayes.noise.gaussian import Gaussian

__all__ = ["Noise", "Gaussian"]
