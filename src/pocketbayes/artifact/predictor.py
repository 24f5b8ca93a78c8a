"""`open`: a file by what it says about itself, as a `Predictor`: raw inputs in, class names or values in units out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from pocketbayes import nets
from pocketbayes.artifact import MAX_WEIGHTS, header
from pocketbayes.artifact.card import Card, read_card
from pocketbayes.artifact.container import MAX_HEADER, disassemble, inflate, read_file
from pocketbayes.artifact.plain_weights import is_pocket, load_weights
from pocketbayes.artifact.store import load
from pocketbayes.data.inputs import arranged
from pocketbayes.prediction.answer import Predictive, Regression, in_units
from pocketbayes.prediction.evaluate import Evaluation
from pocketbayes.prediction.predict import predict
from pocketbayes.prediction.score import NORMAL_95, class_scores, ood_scores, regression_scores
from pocketbayes.prediction.threshold import selective

Net = str | nn.Module | Callable[..., nn.Module]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class ClassAnswers(Predictive):
    """A `Predictive` that knows the names of its classes and which answers are sure."""

    classes: tuple[str, ...]
    threshold: float | None  # the smallest confidence that counts as sure

    @property
    def names(self) -> list[str]:
        """The name of each input's most probable class, N of them."""
        return [self.classes[label] for label in self.labels.tolist()]

    @property
    def sure(self) -> Tensor | None:
        """Whether each answer is at least as confident as the threshold, bool [N]; None without a threshold."""
        return None if self.threshold is None else self.confidence >= self.threshold


@dataclass(frozen=True, kw_only=True)
class ValueAnswers(Regression):
    """A `Regression` in the units of the data, with 95 % intervals."""

    @property
    def sigma(self) -> Tensor:
        """Standard deviation of each prediction, [N, T]."""
        return self.var.sqrt()

    @property
    def low(self) -> Tensor:
        """Lower ends of the intervals, [N, T]."""
        return self.mean - NORMAL_95 * self.sigma

    @property
    def high(self) -> Tensor:
        """Upper ends of the intervals, [N, T]."""
        return self.mean + NORMAL_95 * self.sigma


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """A network, and the card that says how it is used: raw inputs in, class names or values in their units out."""

    model: nn.Module
    card: Card

    def predict(
        self, x: Any, *, samples: int = 30, seed: int = 0, progress: bool = False
    ) -> ClassAnswers | ValueAnswers:
        """What the network says about raw inputs: a `ClassAnswers`, or a `ValueAnswers` for regression.

        Args:
            x: an array or tensor of inputs in the units of the training data, [N, *shape] or one of them; images may
                have their channels last. They are scaled as the card says.
            samples, seed: draws of the weights, and where their random numbers start.
        """
        card = self.card
        answer = predict(
            self.model,
            card.scaling.apply(_raw(x, card.shape)),
            samples=samples,
            seed=seed,
            likelihood=card.likelihood(),
            draws=card.classes is None,
            progress=progress,
        )
        if isinstance(answer, Regression):
            return ValueAnswers(**vars(in_units(answer, card.target_scaling)))
        assert isinstance(answer, Predictive)
        count = answer.probs.shape[1]
        known = card.classes if len(card.classes or ()) == count else tuple(map(str, range(count)))
        return ClassAnswers(**vars(answer), classes=known or (), threshold=card.unsure)

    def evaluate(
        self, x: Any, y: Any, *, ood: Any = None, samples: int = 30, seed: int = 0, progress: bool = False
    ) -> Evaluation:
        """How good and how honest the answers are: accuracy, NLL, ECE, Brier score ...; of a regression RMSE, NLL,
        sigmas and how often 95 % intervals hold the truth, in the units of the data.

        Args:
            x, y: raw inputs, and labels [N] or targets [N, T] in the units of the data.
            ood: raw inputs of another kind; adds how well predictive entropy tells them from x.
        """
        answer = self.predict(x, samples=samples, seed=seed, progress=progress)
        found = score(answer, torch.as_tensor(y))
        if ood is not None:
            if not isinstance(answer, ClassAnswers):
                raise ValueError("ood= ranks inputs by the entropy of their classes; this is a regression.")
            outside = self.predict(ood, samples=samples, seed=seed, progress=progress)
            assert isinstance(outside, ClassAnswers)
            found |= ood_scores(answer, outside)
        return found


def score(answer: ClassAnswers | ValueAnswers, y: Tensor) -> Evaluation:
    """The metrics of answers that are there already, y in the units of the data."""
    if isinstance(answer, ValueAnswers):
        return Evaluation(regression_scores(answer, y))
    rule = {} if answer.threshold is None else selective(answer, y, answer.threshold)._asdict()
    return Evaluation(class_scores(answer, y) | rule)


def open(path: str | os.PathLike[str], net: Net | None = None) -> Predictor:
    """A pocket file, or the safetensors of `pocketbayes train`, as a `Predictor`.

    The file says what it is for: shape and scaling of inputs, classes or the units of targets, the likelihood, and the
    confidence below which an answer is "not sure". It may name one of the library's own networks. The code of any
    other network is never run because a file names it: give it as `net`.

    Args:
        net: an `nn.Module` of the file's architecture, which becomes the model; or a function that returns one, called
            with those facts about the data that it has a parameter for (`num_classes`, `in_channels`, ...); or the name
            of a library network, such as "resnet20".

    >>> import pocketbayes as pb, torch
    >>> card = {"net": "mlp:8", "args": {"in_features": 2, "out_features": 3}, "shape": [2], "classes": ["a", "b", "c"],
    ...         "scale": [[5.0, 5.0], [2.0, 2.0], 1.0], "unsure": 0.9}
    >>> network = pb.bayesianize(torch.nn.Sequential(torch.nn.Flatten(), *pb.nets.mlp([2, 8, 3])))
    >>> _ = pb.save(network, "small.pocket", metadata=card)
    >>> answer = pb.open("small.pocket").predict([[4.0, 6.5], [5.0, 1.0]])
    >>> answer.probs.shape, len(answer.names), answer.sure.dtype
    (torch.Size([2, 3]), 2, torch.bool)
    """
    path = Path(path)
    card, network = _planned(path, net)
    if is_pocket(path):
        load(path, network)
    else:
        load_weights(network, path)
    return Predictor(model=network.eval(), card=card)


def open_network(path: str | os.PathLike[str], net: Net | None = None) -> nn.Module:
    """The plain network that `open` would put the file into, new."""
    return _planned(Path(path), net)[1]


def _planned(path: Path, net: Net | None) -> tuple[Card, nn.Module]:
    """The file's card, and the network for it."""
    metadata, shapes = _told_by_pocket(path) if is_pocket(path) else _told_by_safetensors(path)
    card = read_card(path, metadata)
    return card, _network(path, card, net, shapes)


def _network(path: Path, card: Card, net: Net | None, shapes: Shapes) -> nn.Module:
    """The user's network, or the one that the file names if that is one of the library's own."""
    if isinstance(net, nn.Module):
        return net
    if net is not None and not isinstance(net, str):
        return net(**nets.taken(net, nets.facts_of(card.shape, card.outputs) | card.args))
    name = card.net if net is None else net
    if name is None:
        raise ValueError(f"{path} does not name its network: give it (net=, or --net of a command).")
    if not nets.is_name(name):
        raise ValueError(
            f"{path} names the network {name[:80]!r}, which is not one of the library's own. A file is data: the code "
            "that it names is not run. Give the network yourself (net=, or --net of a command)."
        )
    return _of_library(path, card, name, shapes)


def _of_library(path: Path, card: Card, name: str, shapes: Shapes) -> nn.Module:
    """One of the library's networks, planned without memory first: it must be no larger than the file's tensors."""
    function = nets.by_name(name)
    args = nets.taken(function, nets.facts_of(card.shape, card.outputs) | card.args)
    try:
        with torch.device("meta"):
            planned = {key: tuple(t.shape) for key, t in function(**args).state_dict().items()}
    except (TypeError, RuntimeError) as error:  # an argument is missing, or a tensor is beyond all memory
        raise ValueError(f"{path}: {name} cannot be built from its card ({error}).") from error
    for key, shape in planned.items():
        found = shapes.get(key, shape if key.endswith("num_batches_tracked") else "absent")
        if shape != found:
            raise ValueError(f"{path}: does not fit {name}: {key} is {found} in the file, not {shape}.")
    return function(**args)


def _told_by_pocket(path: Path) -> tuple[dict[str, Any], Shapes]:
    """A pocket file's metadata and the shapes of its tensors, from its header alone."""
    where = str(path)
    sections = disassemble(read_file(path), where)
    head = header.parse(inflate(sections.get("HEAD", b""), MAX_HEADER, f"{where}, header"), MAX_WEIGHTS)
    return head.notes["metadata"], {row.name: row.shape for row in head.rows if row.kind != "t"}


def _told_by_safetensors(path: Path) -> tuple[dict[str, Any], Shapes]:
    """The same of a safetensors file; nothing else of it is read."""
    try:
        with safe_open(path, framework="np") as file:
            told = (file.metadata() or {}).get("pocketbayes", "{}")
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path}: neither a pocket file nor safetensors ({error}).") from error
    try:
        found = json.loads(told)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its metadata are not JSON ({error}).") from error
    return found if isinstance(found, dict) else {}, shapes


def _raw(x: Any, shape: tuple[int, ...]) -> Tensor:
    """Inputs as the training data have them: bytes, or float32, [N, *shape]."""
    array = arranged("the inputs", np.asarray(x.cpu() if isinstance(x, Tensor) else x), shape)
    kept = array if array.dtype == np.uint8 else array.astype(np.float32, copy=False)
    return torch.from_numpy(np.require(kept, requirements=["C", "W"]))
