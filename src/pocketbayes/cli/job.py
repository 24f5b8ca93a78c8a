"""The work of `pocketbayes compress`, from the options to the files, in steps that survive an interruption."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from pocketbayes.cli.card import Card, card_of, open_pocket
from pocketbayes.cli.datasets import Data, divided, requested, training_batches
from pocketbayes.cli.network import arguments_for, build, builder, is_pocket, load_weights
from pocketbayes.cli.output import finite
from pocketbayes.cli.plans import budget_from, needed, plan_from
from pocketbayes.cli.record import facts, of_compression, settings_of
from pocketbayes.cli.scores import ask, choose_threshold, residual_sigma, score, scores_of, selective
from pocketbayes.cli.story import foreign_inputs, write_story
from pocketbayes.cli.workbench import Workbench, digest
from pocketbayes.runs.files import require_writable, write_atomically

if TYPE_CHECKING:
    from torch import nn

    from pocketbayes.data import DataSet
    from pocketbayes.likelihood import Likelihood

# Numbers known only after training stand in for themselves until then, with more digits than they will have.
_SIGMA, _UNSURE = 0.73184926, 0.91736482
_ONLY_AFTER = {"out", "folder", "page", "ood", "test_samples", "max_risk"}  # may change in a resumed run


class Start(NamedTuple):
    """What compression starts from."""

    network: nn.Module
    card: Card
    likelihood: Likelihood
    data: Data


class Job:
    """One run of the command: everything that can be wrong with the call is found before the work begins."""

    def __init__(self, context: typer.Context) -> None:
        self.context, self.given = context, context.params
        given = context.params
        self.weights: Path = needed(given, "weights", "the trained weights")
        self.out = pocket_path(needed(given, "out", "the pocket file to write"))
        self.budget = budget_from(given)
        self.plan = plan_from(given)
        named = ("folder", "mean", "std", "image_size", "targets")
        self.request = requested(given["data"], **{name: given[name] for name in named})
        self.samples, self.seed = given["test_samples"], given["seed"]
        require_writable(self.out)

    def run(self) -> dict[str, Any]:
        """The whole job; returns its record."""
        start = self._posterior() if is_pocket(self.weights) else self._plain()
        if self.plan.distillation and start.card.classes is None:
            raise typer.BadParameter("--distillation is for classes, and these data are a regression")
        train, validation = divided(start.data, self.given["validation"], self.seed)
        own = {k: v for k, v in settings_of(self.given).items() if k not in _ONLY_AFTER}
        settings = {**own, "digest of the weights": digest(self.weights)}
        bench = Workbench(self.out.with_suffix(".checkpoints"), settings, restart=self.given["restart"])
        before = copy.deepcopy(start.network).eval()
        done = bench.read("record") or self._compress(bench, start, train, validation)
        record = self._finish(bench, done, start, before, validation)
        bench.clear()
        return record

    # --- before ------------------------------------------------------------------------------------------------

    def _plain(self) -> Start:
        """A network with the weights of a file."""
        net = needed(self.given, "net", "package.module:function or a name")
        function, data = builder(net), Data(self.request)
        arguments = arguments_for(function, data.train)
        network = build(net, arguments)
        load_weights(network, self.weights)
        card = card_of(net, arguments, data.train)
        if card.classes is None:
            card = card._replace(sigma=residual_sigma(network, data.train))
        return Start(network, card, card.likelihood(), data)

    def _posterior(self) -> Start:
        """A posterior that was trained before; inputs are scaled as they were then."""
        opened = open_pocket(self.weights, self.given["net"])
        card = opened.card._replace(unsure=None)
        data = Data(self.request, card.scaling, card.target_scaling)
        card.require_fit(self.weights, data.train)
        return Start(opened.model, card, card.likelihood(), data)

    # --- the work ----------------------------------------------------------------------------------------------

    def _compress(
        self, bench: Workbench, start: Start, train: DataSet, validation: DataSet | None
    ) -> dict[str, Any]:
        """Posterior, sharing, fine-tuning; afterwards a file and a record lie on the workbench."""
        from pocketbayes.compression.compress import compress
        from pocketbayes.likelihood import Homoscedastic
        from pocketbayes.prediction.layout import prefer_channels_last

        started = time.monotonic()
        prefer_channels_last(start.network, start.card.shape)
        regression = start.card.classes is None
        threshold = None if regression or validation is None else _UNSURE
        reserved = start.card._replace(sigma=_SIGMA if regression else None, unsure=threshold)
        report = compress(
            start.network,
            training_batches(train, self.given["batch_size"], self.given["augment"]),
            path=bench.folder / "model.pocket",
            validation_loader=None if validation is None else validation.batches(256),
            plan=self.plan,
            likelihood=start.likelihood,
            metadata=reserved.metadata(),
            checkpoints=bench.folder,
            **self.budget,
        )
        noise = start.likelihood
        sigma = float(f"{noise.sigma.item():.4g}") if isinstance(noise, Homoscedastic) else None
        done = {**of_compression(report), "noise_sigma": sigma, "seconds": time.monotonic() - started}
        bench.write("record", finite(done))
        return done

    # --- after -------------------------------------------------------------------------------------------------

    def _finish(
        self,
        bench: Workbench,
        done: dict[str, Any],
        start: Start,
        before: nn.Module,
        validation: DataSet | None,
    ) -> dict[str, Any]:
        """Threshold, pocket file, test metrics, record and page."""
        from pocketbayes.artifact.store import load

        card = start.card._replace(sigma=done["noise_sigma"])
        fresh = build(str(card.net), card.args)
        plain_bytes = 4 * sum(t.numel() for t in (*fresh.parameters(), *fresh.buffers()))
        model = load(bench.folder / "model.pocket", fresh).eval()
        record = {**facts(self.context), "file": self.out.name, "budget": self.budget, **done}
        record["plain_bytes"] = plain_bytes
        card, record["validation"], record["unsure"] = self._judge(model, card, validation)
        record["bytes"], record["sections"] = self._write(bench, card)
        record["ratio"] = record["plain_bytes"] / record["bytes"]
        test = start.data.test
        settings = {"samples": self.samples, "seed": self.seed}
        record["test"] = {
            "examples": len(test),
            **settings,
            "before": score(before, test, start.card.likelihood(), **settings),
            "after": score(model, test, card.likelihood(), unsure=card.unsure, **settings),
        }
        record["page"] = self.out.with_suffix(".html").name if self.given["page"] else None
        write_atomically(self.out.with_suffix(".json"), json.dumps(finite(record), indent=1).encode())
        if self.given["page"]:
            foreign = foreign_inputs(self.given["ood"], self.given["folder"], card)
            page = self.out.with_suffix(".html")
            extras = {"before": before, "ood": foreign, "record": finite(record), **settings}
            write_story(page, self.out, model, card, test, **extras)
        return record

    def _judge(
        self, model: nn.Module, card: Card, validation: DataSet | None
    ) -> tuple[Card, dict[str, float], dict[str, Any] | None]:
        """The card with its threshold, what validation data say about the file, and about the threshold."""
        if validation is None:
            return card, {}, None
        answer = ask(model, validation, card.likelihood(), samples=self.samples, seed=self.seed)
        scores = scores_of(answer, validation)
        if card.classes is None:
            return card, scores, None
        threshold = choose_threshold(answer, validation.y, self.given["max_risk"])
        found = selective(answer, validation.y, threshold)._asdict()
        asked = self.given["max_risk"]
        told = {"threshold": threshold, "max_risk": asked, "validation": found}
        return card._replace(unsure=threshold), scores, told

    def _write(self, bench: Workbench, card: Card) -> tuple[int, dict[str, int]]:
        """The file with its card, within the budget: the threshold may lose digits for that."""
        from pocketbayes.artifact import decode, encode

        pocket, limit = decode(bench.folder / "model.pocket"), self.budget.get("max_bytes")
        found = encode(replace(pocket, metadata=card.metadata()))
        if limit is not None and len(found.data) > limit and card.unsure is not None:
            found = encode(replace(pocket, metadata=card._replace(unsure=round(card.unsure, 2)).metadata()))
        write_atomically(self.out, found.data)
        return len(found.data), found.sizes


def pocket_path(path: Path) -> Path:
    """OUT or OUT.pocket, as OUT.pocket."""
    if path.suffix in (".json", ".html", ".checkpoints"):
        raise typer.BadParameter(f"--out {path}: name the pocket file; {path.suffix} is written beside it")
    return path if path.suffix == ".pocket" else path.with_name(path.name + ".pocket")
