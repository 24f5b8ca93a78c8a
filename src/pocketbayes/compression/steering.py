"""Steers lambda, while a latent model is trained, so that its file will fill a budget of bytes and not exceed it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from pocketbayes.moments import Codebook
from pocketbayes.runs import ranks
from pocketbayes.sharing.labels import RateSharing, share_by_rate
from pocketbayes.sharing.latent import Assignment, freeze
from pocketbayes.sharing.rate import Rate, RateCode

ONE_COMPONENT = Rate(lambda_=1e9, components=1, outlier_bits=None)
CHECKS = (
    0.3,
    0.5,
    0.7,
    0.8,
    0.9,
    0.95,
    0.98,
)  # fractions of the training after which the file's size is looked at
AIM = 0.998  # of the budget, while labels still move
FILLED = 0.99  # of it is near enough


class Steering:
    """Called after each step: renews the labels now and then, and moves lambda towards the budget.

    Args:
        smallest: bytes of the file with a single component.
        size_of: bytes of the file of a model with frozen labels, a copy that it may change.
        renew_every: steps of training to a renewal.
        anneal: the fraction of the training in which lambda grows to its value.
    """

    def __init__(
        self,
        model: nn.Module,
        rate: Rate,
        *,
        max_bytes: int,
        smallest: int,
        size_of: Callable[[nn.Module], int],
        renew_every: int = 1,
        anneal: float = 0.0,
    ) -> None:
        self.model, self.max_bytes, self.smallest, self.size_of = model, max_bytes, smallest, size_of
        self.renew_every, self.anneal, self.steps, self.done = renew_every, anneal, 0, 0.0
        self.bits = max(8.0, 8.0 * (max_bytes - smallest))
        self.assignment = Assignment(model, rate, max_bits=self.bits)
        self.assignment.aim()
        self.assignment.renew()
        self._aim()

    def __call__(self, done: float) -> None:
        self.steps += 1
        if self.steps % self.renew_every == 0:
            self.assignment.renew(fraction=min(1.0, done / max(self.anneal, 1e-9)))
        if any(self.done < check <= done for check in CHECKS):
            self._aim()
        self.done = done

    def _aim(self) -> None:
        """Aim at the bits that fill the file, which codes labels better than their frequencies alone would."""
        seen = self.assignment.seen()
        spent = 8.0 * (ranks.once(lambda: self._size(seen)) - self.smallest)
        ratio = spent / max(1.0, seen.fit.bits(self.assignment.rate.outlier_bits or 0.0))
        self.assignment.max_bits = AIM * self.bits / min(1.2, max(0.8, ratio))

    def state_dict(self) -> dict[str, Any]:
        code, rate = self.assignment.code, self.assignment.rate
        assert code is not None
        return {
            "steps": self.steps,
            "done": self.done,
            "lambda": rate.lambda_,
            "max_bits": self.assignment.max_bits,
            "book": (*code.codebook, code.frequency),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.done, self.assignment.max_bits = state["steps"], state["done"], state["max_bits"]
        self.assignment.rate = replace(self.assignment.rate, lambda_=state["lambda"])
        mu, sigma, frequency = state["book"]
        self.assignment.code = RateCode(Codebook(mu, sigma), frequency)

    def freeze(self) -> float:
        """Fix the labels that the network was trained with, if their file fits and fills the budget; otherwise those
        of the smallest lambda, to about a percent, whose file fits.  Returns the nats that labels cost.
        """
        found = ranks.once(self._fitting)
        freeze(self.model, found)
        return float(found.fit.distortion.sum())

    def _fitting(self) -> RateSharing:
        seen = self.assignment.seen()
        if FILLED * self.max_bytes <= (size := self._size(seen)) <= self.max_bytes:
            return seen
        low = high = self.assignment.rate.lambda_
        fits, upwards = (None, True) if size > self.max_bytes else (seen, False)
        for doubling in range(10):  # until the file fits at `high` and not at `low`
            step = 1.05 ** (2**doubling)
            low, high = (high, high * step) if upwards else (low / step, low)
            found = self._labelled(high if upwards else low)
            fits = found or fits
            if upwards != (found is None):
                break
        if fits is None:  # all but labels fill the budget
            fits = share_by_rate(*self.assignment.latents(), ONE_COMPONENT)
        for _ in range(5):
            middle = (low * high) ** 0.5
            better = self._labelled(middle)
            low, high = (low, middle) if better is not None else (middle, high)
            fits = better or fits
        return fits

    def _labelled(self, lambda_: float) -> RateSharing | None:
        """Labels at that lambda, if their file is within the budget."""
        self.assignment.rate = replace(self.assignment.rate, lambda_=lambda_)
        result = self.assignment.share()
        return result if self._size(result) <= self.max_bytes else None

    def _size(self, result: RateSharing) -> int:
        twin = copy.deepcopy(self.model)
        freeze(twin, result)
        return self.size_of(twin)
