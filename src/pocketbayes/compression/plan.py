"""What `compress` is asked for, and how it is to go about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pocketbayes.posterior.priors import FanIn, Scale


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the user asks for: a size, or the largest loss on validation data."""

    max_bytes: int | None = None
    max_accuracy_drop: float | None = None  # a fraction: 0.01 is one point
    max_nll_rise: float | None = None  # nats

    def __post_init__(self) -> None:
        given = [name for name, value in asdict(self).items() if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"compress needs exactly one of max_bytes, max_accuracy_drop, max_nll_rise; got {given or 'none'}."
            )
        if asdict(self)[given[0]] < 0 or self.max_bytes == 0:
            raise ValueError(f"compress: {given[0]} must be positive, got {asdict(self)[given[0]]}.")

    def kept(self, before: Mapping[str, float], after: Mapping[str, float]) -> bool:
        """Whether the loss from `before` to `after` is within the budget."""
        if self.max_accuracy_drop is not None:
            return before["accuracy"] - after["accuracy"] <= self.max_accuracy_drop + 1e-12
        assert self.max_nll_rise is not None
        return after["nll"] - before["nll"] <= self.max_nll_rise


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How `compress` works; the defaults suit a trained network."""

    temperature: float = 0.1  # of the posterior: the weight of the KL in training, and its widths squared
    prior: Scale = FanIn(1.0)
    fisher_batches: int | None = 200
    posterior_epochs: int = 0  # of training on the ELBO before sharing
    epochs: int = 4  # of training that alternates with re-assignment
    finetune_epochs: int = 1  # with labels fixed
    lr: float = 2e-3
    rho_lr: float = 0.0  # of the latent widths while sharing; the Laplace widths are kept by default
    finetune_lr: float = 3e-4
    distillation: float = 0.0  # share of the teacher's answers in the targets; classes only
    calibrate: bool = False  # at the end, scale all widths by the factor that validation NLL prefers
    renew_every: int = 1  # steps between re-assignments; more is faster, and worse
    anneal: float = 0.25  # share of the steps in which lambda rises to its value
    components: int = 64
    tries: int = 4  # trainings in the search for max_accuracy_drop and max_nll_rise
    samples: int = 8  # draws in validation
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"compress: temperature must be positive, got {self.temperature}.")
        if not 0 <= self.distillation <= 1:
            raise ValueError(f"compress: distillation must be from 0 to 1, got {self.distillation}.")
        for name in ("renew_every", "components", "tries", "samples", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"compress: {name} must be at least 1, got {getattr(self, name)}.")
