"""What a training run is told and what it tells: its settings, its epochs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How `fit` trains; the numbers that a resumed run must share with the run it resumes."""

    epochs: int
    num_data: int
    lr: float
    rho_lr: float
    clip: float | None
    accumulate: int
    patience: int | None
    seed: int
    samples: int = 1
    temperature: float | Literal["auto"] = 1.0
    noise_cost: float = 0.03
    anneal: float = 0.0
    validation_samples: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "num_data", "samples", "accumulate", "validation_samples"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"fit: {name} must be a whole number, at least 1, got {value}.")
        for name in ("lr", "rho_lr", "temperature", "noise_cost"):
            value = 1.0 if getattr(self, name) == "auto" and name == "temperature" else getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise ValueError(f"fit: {name} must be a finite number >= 0, got {value!r}.")
        if not 0 <= self.anneal <= 1:
            raise ValueError(f"fit: anneal is a fraction of all steps, in [0, 1], got {self.anneal}.")
        if self.patience is not None and self.patience < 1:
            raise ValueError(
                f"fit: patience is a number of epochs, at least 1, or None to train them all; got {self.patience}."
            )
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"fit: clip must be positive or None, got {self.clip}.")


class Epoch(NamedTuple):
    """What one epoch gave."""

    epoch: int
    nll: float  # mean over the epoch's batches, nats per example
    kl: float  # at the end of the epoch, nats
    temperature: float
    validation: dict[str, float]  # empty without validation data
    seconds: float


@dataclass
class History:
    """The epochs of a run, and which one the model was left at."""

    epochs: list[Epoch] = field(default_factory=list)
    best_epoch: int | None = None

    def __getitem__(self, index: int) -> Epoch:
        return self.epochs[index]

    def __len__(self) -> int:
        return len(self.epochs)

    def __str__(self) -> str:
        lines = []
        for e in self.epochs:
            scores = "".join(f"  {k} {v:.4f}" for k, v in e.validation.items())
            star = " *" if e.epoch == self.best_epoch else ""
            lines.append(
                f"epoch {e.epoch:3d}  nll {e.nll:.4f}  kl {e.kl:.1f}  temperature {e.temperature:.3g}{scores}{star}"
            )
        return "\n".join(lines)
