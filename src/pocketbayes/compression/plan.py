"""What `compress` is asked for, and how it is to go about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Integral

from pocketbayes.compression.size import bytes_of
from pocketbayes.posterior.scales import FanIn, Scale

EPOCHS, STEPS = 4, 400  # the least of training
UNTRAINED = 5.0  # steps of training that a batch of labelling without training takes, roughly


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the user asks for: a size, or the largest loss on validation data; exactly one of them.

    Args:
        max_bytes: size of the file: 90000, "90KB", "88KiB".
        max_accuracy_drop: loss of validation accuracy, a fraction: 0.01 is one point.
        max_nll_rise: rise of validation NLL, in nats.
    """

    max_bytes: int | str | None = None
    max_accuracy_drop: float | None = None
    max_nll_rise: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if len(given) != 1:
            raise ValueError(
                "compress needs exactly one of max_bytes, max_accuracy_drop, max_nll_rise; "
                f"got {list(given) or 'none'}."
            )
        if isinstance(self.max_bytes, str):
            object.__setattr__(self, "max_bytes", bytes_of(self.max_bytes))
        elif self.max_bytes is not None:
            _require_whole("max_bytes", self.max_bytes, 1)
        else:
            _require_number(*given.popitem())

    @property
    def bytes(self) -> int | None:
        return self.max_bytes if isinstance(self.max_bytes, int) else None

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
        noise_cost: nats an example that drawing the weights may cost beside their means; it sets the temperature.
        temperature: of the posterior: the weight of the KL in training, and the factor on the Laplace variances; by
            default that of the noise cost.
        prior: standard deviation of the zero-mean prior that a plain network gets: a number, or `FanIn(gain)`.
        fisher_batches: training batches that the Fisher information is averaged over; None for all. With `epochs=0`,
            all that is looked at, and held in memory.
        sampled_fisher: draw its targets from the network's own predictions; for likelihoods that can.
        posterior_epochs: epochs of training on the ELBO before sharing.
        epochs: epochs of training that alternates with new labels; by default 4, or of few data as many as make 400
            steps; 0 for compression without training, which needs a few hundred inputs, labelled or not.
        finetune_epochs: epochs of training with frozen labels; kept only where validation data prefer it. With
            `epochs=0`, five times as many passes that fit the values of labels to the answers of the network.
        lr: learning rate of means and deterministic parameters before labels are frozen.
        rho_lr: learning rate of the latent rhos while labels change; 0 keeps the Laplace sigmas.
        finetune_lr: learning rate of everything once labels are frozen. With `epochs=0`, ten times that fraction of
            each tensor's root mean square.
        distillation: the teacher's fraction of the targets, from 0 to 1; classes only.
        calibrate: at the end, fit logit temperatures and a factor on all sigmas to validation data.
        bfloat16: train compiled and in bfloat16; by default where the processor is fast at it and training long.
        renew_every: training steps from one renewal of the labels to the next; more is faster, and worse.
        anneal: the fraction of the steps in which lambda rises to its value.
        components: the most components that the codebook may have.
        tries: trainings in the search for `max_accuracy_drop` and `max_nll_rise`.
        samples: draws in validation.
        seed: of all random numbers.

    Examples:
        >>> import pocketbayes as pb
        >>> pb.Plan(epochs=8, temperature=0.01).finetune_epochs
        1
        >>> pb.Plan(epochs=1.5)
        Traceback (most recent call last):
        ValueError: compress: epochs must be a whole number, at least 0, got 1.5.
    """

    noise_cost: float = 0.03
    temperature: float | None = None
    prior: Scale = FanIn(1.0)
    fisher_batches: int | None = 200
    sampled_fisher: bool = False
    posterior_epochs: int = 0
    epochs: int | None = None
    finetune_epochs: int = 1
    lr: float = 2e-3
    rho_lr: float = 0.0
    finetune_lr: float = 3e-4
    distillation: float = 0.0
    calibrate: bool = False
    bfloat16: bool | None = None
    renew_every: int = 1
    anneal: float = 0.25
    components: int = 64
    tries: int = 4
    samples: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("renew_every", "components", "tries", "samples"):
            _require_whole(name, getattr(self, name), 1)
        for name in ("epochs", "posterior_epochs", "finetune_epochs", "seed"):
            if name != "epochs" or self.epochs is not None:
                _require_whole(name, getattr(self, name), 0)
        if self.fisher_batches is not None:
            _require_whole("fisher_batches", self.fisher_batches, 1)
        for name in ("noise_cost", "temperature", "lr", "rho_lr", "finetune_lr"):
            if name != "temperature" or self.temperature is not None:
                _require_number(name, getattr(self, name))
        for name in ("noise_cost", "temperature"):
            if getattr(self, name) == 0:
                raise ValueError(f"compress: {name} must be positive, got 0.")
        for name in ("distillation", "anneal"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"compress: {name} is a fraction, from 0 to 1, got {getattr(self, name)}.")

    def of_data(self, batches: int) -> Plan:
        """With the epochs that suit so many batches, where they were not given."""
        if self.epochs is not None:
            return self
        return replace(self, epochs=max(EPOCHS, math.ceil(STEPS / max(1, batches))))

    def shares(self, budget: Budget, batches: int) -> dict[str, float]:
        """Roughly what the posterior and each try to keep the budget take, in training steps; `batches` of data."""
        posterior = 2.0 * min(self.fisher_batches or batches, batches) + self.posterior_epochs * batches
        tries = [f"try {n + 1}" for n in range(self.tries)] if budget.bytes is None else ["sharing"]
        return {"posterior": posterior, **dict.fromkeys(tries, sum(self.shares_of_try(batches).values()))}

    def shares_of_try(self, batches: int) -> dict[str, float]:
        """The same for the parts of a try."""
        return {
            "sharing": 2.0 * (self.epochs or 0) * batches,
            "fine-tuning": float(self.finetune_epochs * batches) if self.epochs else 0.0,
            "untrained": UNTRAINED * min(self.fisher_batches or batches, batches),
        }


def _require_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, Integral) or value < least:
        raise ValueError(f"compress: {name} must be a whole number, at least {least}, got {value}.")


def _require_number(name: str, value: object) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
        raise ValueError(f"compress: {name} must be a finite positive number or 0, got {value}.")
