"""What `compress` is asked for, and how it is to go about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pocketbayes.posterior.scales import FanIn, Scale


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the user asks for: a size, or the largest loss on validation data; exactly one of them.

    Args:
        max_bytes: Size of the file.
        max_accuracy_drop: Loss of validation accuracy, a fraction: 0.01 is one point.
        max_nll_rise: Rise of validation NLL, in nats.
    """

    max_bytes: int | None = None
    max_accuracy_drop: float | None = None
    max_nll_rise: float | None = None

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
    """How `compress` works; the defaults suit a trained network.

    Args:
        temperature: Of the posterior: the weight of the KL in training, and the factor on its variances at the start.
            Choose on validation data.
        prior: Standard deviation of the weights' prior.
        fisher_batches: Batches that the Fisher information is measured on; None, or 0, for all.
        posterior_epochs: Epochs on the ELBO before sharing.
        epochs: Epochs that alternate with the assignment of labels.
        finetune_epochs: Epochs with the labels frozen.
        lr: Learning rate while sharing.
        rho_lr: Learning rate of the sigmas while sharing; 0 keeps those of the start.
        finetune_lr: Learning rate with the labels frozen.
        distillation: Fraction of the teacher's answers in the targets, beside the labels; for classes.
        calibrate: At the end, multiply all sigmas by the factor with the least validation NLL.
        renew_every: Steps from one assignment of labels to the next; more is faster, and worse.
        anneal: Fraction of the steps in which lambda rises to its value.
        components: Codebook components to share, at most.
        tries: Trainings in the search for a budget of loss.
        samples: Draws in validation.
        seed: All random numbers follow from it.
    """

    temperature: float = 0.1
    prior: Scale = FanIn(1.0)
    fisher_batches: int | None = 200
    posterior_epochs: int = 0
    epochs: int = 4
    finetune_epochs: int = 1
    lr: float = 2e-3
    rho_lr: float = 0.0
    finetune_lr: float = 3e-4
    distillation: float = 0.0
    calibrate: bool = False
    renew_every: int = 1
    anneal: float = 0.25
    components: int = 64
    tries: int = 4
    samples: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"compress: temperature must be positive, got {self.temperature}.")
        for name in ("distillation", "anneal"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"compress: {name} must be from 0 to 1, got {getattr(self, name)}.")
        for name in ("renew_every", "components", "tries", "samples", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"compress: {name} must be at least 1, got {getattr(self, name)}.")
        for name in (
            "fisher_batches",
            "posterior_epochs",
            "finetune_epochs",
            "lr",
            "rho_lr",
            "finetune_lr",
            "seed",
        ):
            if not (getattr(self, name) or 0) >= 0:
                raise ValueError(f"compress: {name} must be at least 0, got {getattr(self, name)}.")
