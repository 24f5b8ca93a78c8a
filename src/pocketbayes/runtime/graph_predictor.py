"""A `Predictor` that runs the graph of a file in ONNX Runtime."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pocketbayes.arrays import Array
from pocketbayes.artifact import graph
from pocketbayes.artifact.card import Card, read_card
from pocketbayes.artifact.graph import StoredGraph
from pocketbayes.artifact.predictor import Asked, Predictor
from pocketbayes.artifact.reader import MAX_WEIGHTS, decode
from pocketbayes.errors import ArtifactError
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.average import Samples, as_needed, of_classes, of_normals, passes, tolerance_of
from pocketbayes.prediction.scales import Scale
from pocketbayes.runs.progress import track
from pocketbayes.runtime.networks import Networks, WhichNetwork


def open(
    path: str | os.PathLike[str],
    *,
    threads: int = 1,
    max_bytes: int = 1 << 29,
    batch_size: int = 32,
    max_weights: int = MAX_WEIGHTS,
) -> GraphPredictor:
    """A pocket file with its graph as a `Predictor`, without torch and without the network's code.

    The draws are those of `pb.predict`: the same seed gives the same networks.  Drawn networks are kept, so that the
    first answer takes longest.

    Args:
        threads: draws that run at a time, each in one thread.
        max_bytes: memory for drawn networks; those beyond it are made again for each answer.
        batch_size: inputs in a pass; few of them stay in the cache.
        max_weights: refuse files with more elements.

    Returns:
        Its `predict` takes raw inputs, and answers in numpy arrays.

    Examples:
        >>> import pocketbayes as pb, torch
        >>> card = {"shape": [2], "classes": ["a", "b", "c"], "scale": [[5.0, 5.0], [2.0, 2.0], 1.0], "unsure": 0.9}
        >>> network = pb.bayesianize(pb.nets.mlp([2, 8, 3]))
        >>> _ = pb.save(network, "small.pocket", metadata=card, example=torch.zeros(2, 2))
        >>> answer = pb.runtime.open("small.pocket").predict([[4.0, 6.5], [5.0, 1.0]])
        >>> answer.probs.shape, len(answer.names), answer.sure.dtype
        ((2, 3), 2, dtype('bool'))
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    pocket = decode(path, max_weights=max_weights)
    card = read_card(Path(path), pocket.metadata)
    try:
        stored = graph.read(pocket)
        _require_fit(stored, card)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error
    networks = Networks(pocket, stored, threads=threads, max_bytes=max_bytes)
    return GraphPredictor(card=card, networks=networks, batch_size=batch_size)


def _require_fit(stored: StoredGraph, card: Card) -> None:
    """One input, of the card's shape and in float32."""
    if len(stored.inputs) != 1 or len(stored.outputs) != 1:
        raise ArtifactError(
            f"its graph has {len(stored.inputs)} inputs and {len(stored.outputs)} outputs, one of each is needed"
        )
    (port,) = stored.inputs
    known = len(port.shape) == len(card.shape) + 1
    fits = known and all(a in (None, b) for a, b in zip(port.shape[1:], card.shape, strict=True))
    if port.dtype != "float32" or not fits or port.shape[0] is not None:
        raise ArtifactError(
            f"its graph takes {port.dtype} of shape {port.shape}, not float32 of any number of {card.shape}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphPredictor(Predictor):
    """The drawn networks of a file in ONNX Runtime, and the card that says how they are used."""

    networks: Networks
    batch_size: int

    def networks_of(self, samples: Samples, seed: int) -> list[WhichNetwork]:
        """Those that an answer averages: draws, at most so many, or the means of each mode."""
        most = passes(samples)
        if samples == "mean" or not self.networks.is_random:
            return [WhichNetwork(None, mode) for mode in range(self.networks.modes)]
        return [WhichNetwork(seed, number) for number in range(most)]

    def ask(self, x: Array, how: Asked) -> Predictive | Regression:
        _require_finite(x)
        draws = self.networks_of(how.samples, how.seed)
        tolerance = tolerance_of(how.samples, how.tolerance, can_stop=self.card.classes is not None)
        scale = self.card.scales.mean if draws[0].seed is None else self.card.scales.draws
        known: dict[str, Any] = {"quantile": scale.quantile, "modes": min(self.networks.modes, len(draws))}
        if tolerance is not None:
            return as_needed(lambda left: self._until(x, draws, scale, left), len(x), tolerance, **known)
        outputs = self.networks.outputs(x, draws, self.batch_size)
        outputs = track(outputs, "predict", total=len(draws), enabled=how.progress)
        if self.card.classes is not None:
            return of_classes((probabilities(output, scale) for output in outputs), **known)
        sigma = math.sqrt(scale.temperature) * (self.card.sigma or 1.0)
        means = (output.astype(np.float64) for output in outputs)
        return of_normals(((mean, np.full_like(mean, sigma)) for mean in means), keep=True, **known)

    def _until(
        self, x: Array, draws: Sequence[WhichNetwork], scale: Scale, left: Callable[[], Array]
    ) -> Iterator[Array]:
        """Probabilities of those inputs that are left before each draw, until none is."""
        for draw in draws:
            if not len(rows := left()):
                return
            yield probabilities(self.networks.output(x[rows], draw, self.batch_size), scale)


def probabilities(output: Array, scale: Scale) -> Array:
    """Logits [N, C, ...] of one draw as probabilities in rows, float64: [N, C], the positions of an example in turn."""
    if output.ndim < 2 or output.shape[1] < 2:
        raise ArtifactError(f"the graph gives {output.shape}, not logits [N, C, ...] of two classes or more")
    logits = np.moveaxis(output, 1, -1).reshape(-1, output.shape[1]).astype(np.float64) / scale.temperature
    found: Array = np.exp(logits - logits.max(1, keepdims=True))
    found /= found.sum(1, keepdims=True)
    return found


def _require_finite(x: Array) -> None:
    if len(x) == 0:
        raise ValueError("Nothing to predict: give an array with at least one example.")
    if not np.isfinite(x).all():
        example = int(np.argwhere(~np.isfinite(x))[0][0])
        raise ValueError(
            f"The inputs have NaN or infinity, first in example {example}. Clean the data before predicting."
        )
