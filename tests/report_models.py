"""Small real models for the tests of the report: a shared classifier with outliers and blends, and a regression."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pocketbayes as pb
from pocketbayes import data, nets
from pocketbayes.data import DataSet

NOISE = 0.7


class Case(NamedTuple):
    """What `gather` is given."""

    model: nn.Module
    file: Path
    test: DataSet
    before: nn.Module
    ood: Tensor | None
    record: dict[str, Any]

    def options(self) -> dict[str, Any]:
        return {"before": self.before, "ood": self.ood, "record": self.record, "samples": 5, "seed": 3}


def classifier(folder: Path) -> Case:
    """A network on digits, shared by the paper's rules."""
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        train, test = data.load("digits"), data.load("digits", split="test")
        plain, loader = nets.digits_net(), train.batches(64, shuffle=True)
        optimizer = torch.optim.Adam(plain.parameters(), 3e-3)
        for x, y in [*loader, *loader]:
            optimizer.zero_grad()
            cross_entropy(plain(x), y).backward()
            optimizer.step()
        model = pb.bayesianize(copy.deepcopy(plain))
        history = pb.fit(
            model, loader, epochs=2, lr=3e-3, temperature=0.05, validation=test.batches(256), progress=False
        )
        # An ellipse of half the usual size leaves some weights outside, which are blended.
        how = pb.Paper(components=24, merge=None, beyond=1.5)
        pb.share(model, how, fisher=pb.fisher_information(model, loader, batches=5))
        file = folder / "digits.pocket"
        pb.save(model, file, metadata={"classes": list("0123456789")})
        foreign = 2 * torch.randn(len(test), 1, 8, 8)
    epochs = [epoch._asdict() for epoch in history.epochs]
    record = {
        "command": "pocketbayes compress --max-bytes 9000",
        "seed": 0,
        "versions": {"torch": "2.13.0"},
        "settings": {"max_bytes": 9000},
        "stages": [{"name": "sharing", "seconds": 1.5, "metrics": {"nll": 0.25}, "note": "24 components"}],
        "histories": {"posterior": epochs, "fine-tuning": epochs[:1]},
    }
    return Case(pb.load(file, nets.digits_net()), file, test, plain, foreign, record)


def regressor(folder: Path) -> Case:
    """A network on scikit-learn's diabetes data, every weight with a law of its own."""
    with torch.random.fork_rng():
        torch.random.default_generator.manual_seed(0)
        train, test = data.load("diabetes"), data.load("diabetes", split="test")
        plain = nets.mlp([10, 8, 1])
        model = pb.bayesianize(copy.deepcopy(plain))
        likelihood = pb.likelihood.Homoscedastic(NOISE)
        pb.fit(
            model, train.batches(64, shuffle=True), epochs=5, lr=1e-2, likelihood=likelihood, progress=False
        )
        file = folder / "diabetes.pocket"
        pb.save(model, file, metadata={"noise_sigma": NOISE})
    return Case(pb.load(file, nets.mlp([10, 8, 1])), file, test, plain, None, {})
