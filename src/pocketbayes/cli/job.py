"""The work of `pocketbayes compress`, from the settings to the files, in steps that survive an interruption."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from torch import nn

from pocketbayes import nets
from pocketbayes.artifact import decode, encode
from pocketbayes.artifact.card import Card, card_of
from pocketbayes.artifact.network_predictor import NetworkPredictor, with_rules
from pocketbayes.artifact.plain_weights import is_pocket, load_weights
from pocketbayes.artifact.predictor import ClassAnswers, score
from pocketbayes.artifact.store import load
from pocketbayes.cli.compress import CompressOptions
from pocketbayes.cli.datasets import Data, divided, ood_data, require_calibratable, training_batches
from pocketbayes.cli.network import builder, opened, require_takes
from pocketbayes.cli.output import note
from pocketbayes.cli.record import facts, of_compression
from pocketbayes.cli.report import write_story
from pocketbayes.compression.compress import compress
from pocketbayes.compression.stages import warnings_of
from pocketbayes.data import DataSet, Examples
from pocketbayes.likelihood import Homoscedastic
from pocketbayes.prediction.layout import prefer_channels_last
from pocketbayes.prediction.scales import Scale, Scales, scales_of
from pocketbayes.prediction.scaling_check import scaling_warning
from pocketbayes.prediction.threshold import selective
from pocketbayes.runs import ranks
from pocketbayes.runs.files import finite, require_writable, write_atomically
from pocketbayes.runs.progress import whole
from pocketbayes.runs.workbench import Workbench, digest
from pocketbayes.training.noise_scale import start_noise

# Numbers known only after training stand in for themselves until then, with more digits than they will have.
_SIGMA, _UNSURE, _QUANTILE = 0.73184926, 0.91736482, 0.847315
TRAINING = 3  # passes that training by an example takes, forwards and backwards
_ONLY_AFTER = {"out", "folder", "page", "ood", "test_samples", "max_risk"}  # may change in a resumed run


@dataclass(frozen=True, kw_only=True)
class Start:
    """What compression starts from."""

    network: nn.Module
    fresh: Callable[[], nn.Module]  # builds the architecture anew
    card: Card
    data: Data


class Job:
    """One run of the command: everything that can be wrong with the call is found before the work begins."""

    def __init__(self, given: CompressOptions) -> None:
        self.given, self.out = given, pocket_path(given.out)
        self.budget = {name: value for name, value in asdict(given.budget).items() if value is not None}
        self.draws: dict[str, Any] = {"samples": given.test_samples, "seed": given.plan.seed}
        if not given.validation and (given.budget.bytes is None or given.plan.calibrate):
            name = "calibrate" if given.plan.calibrate else next(iter(self.budget))
            option = f"--{name.replace('_', '-')}"
            raise typer.BadParameter(f"{option} needs validation data: --validation must be above 0")
        require_writable(self.out)

    def run(self) -> dict[str, Any]:
        """The whole job; returns its record."""
        given = self.given
        start = self._posterior() if is_pocket(given.weights) else self._plain()
        if given.plan.distillation and start.card.classes is None:
            raise typer.BadParameter("--distillation is for classes, and these data are a regression")
        ood = None if given.ood is None else ood_data(given.ood, given.folder, start.card)
        train, validation = divided(start.data, given, given.plan.seed)
        require_calibratable(given.alpha, validation)
        own = {k: v for k, v in given.call.options.items() if k not in _ONLY_AFTER}
        settings = {**own, "digest of the weights": digest(given.weights)}
        folder, before = self.out.with_suffix(".checkpoints"), copy.deepcopy(start.network).eval()
        with Workbench(folder, settings, restart=given.restart) as bench:
            with whole("compress", self._shares(start, train, validation)) as part:
                with part("compress"):
                    done = bench.read("record") or self._compress(bench, start, train, validation)
                record = self._finish(part, bench, done, start, before, validation, ood)
            bench.clear()
        return record

    def _shares(self, start: Start, train: DataSet, validation: DataSet | None) -> dict[str, float]:
        """Roughly what each part takes, in passes of one example."""
        given, test = self.given, len(start.data.test)
        steps = sum(given.plan.shares(given.budget, -(-len(train) // given.batch_size)).values())
        return {
            "compress": TRAINING * given.batch_size * steps,
            "validation": given.test_samples * (0 if validation is None else len(validation)),
            "before": test,
            "after": given.test_samples * test,
            "page": given.test_samples * test if given.page else 0,
        }

    # --- before ------------------------------------------------------------------------------------------------

    def _plain(self) -> Start:
        """A network with the weights of a file."""
        net, data = self.given.net, Data(self.given.data, self.given)
        if net is None:
            raise typer.BadParameter("Missing option '--net': package.module:function or a name")
        function = builder(net)
        arguments = nets.taken(function, nets.facts_of(data.train.shape, data.train.num_outputs))
        network = function(**arguments)
        load_weights(network, self.given.weights)
        require_takes(network, net, data.train)
        if self.given.mean is None and (told := scaling_warning(network, data.train)):
            note(told)
        card = card_of(net, arguments, data.train)
        if isinstance(noise := card.likelihood(), Homoscedastic):
            start_noise(network, data.train.batches(256), noise)
            card = card._replace(sigma=noise.sigma.item())
        return Start(network=network, fresh=partial(function, **arguments), card=card, data=data)

    def _posterior(self) -> Start:
        """A posterior that was trained before; inputs are scaled as they were then."""
        net = self.given.net
        found = opened(self.given.weights, net)
        card = found.card._replace(net=net or found.card.net, unsure=None, scales=Scales())
        data = Data(self.given.data, self.given, card)
        card.require_fit(self.given.weights, data.train)
        function = builder(str(card.net))
        arguments = nets.taken(function, nets.facts_of(card.shape, card.outputs) | card.args)
        card = card._replace(args=arguments)
        return Start(network=found.model, fresh=partial(function, **arguments), card=card, data=data)

    # --- the work ----------------------------------------------------------------------------------------------

    def _compress(
        self, bench: Workbench, start: Start, train: DataSet, validation: DataSet | None
    ) -> dict[str, Any]:
        """Posterior, sharing, fine-tuning; afterwards a file and a record lie on the workbench."""
        started = time.monotonic()
        prefer_channels_last(start.network, start.card.shape)
        regression, noise = start.card.classes is None, start.card.likelihood()
        threshold = None if regression or validation is None else _UNSURE
        scales = Scales(Scale(quantile=_QUANTILE), Scale(quantile=_QUANTILE), self.given.alpha)
        reserved = start.card._replace(sigma=_SIGMA if regression else None, unsure=threshold, scales=scales)
        report = compress(
            start.network,
            training_batches(train, self.given),
            path=bench.folder / "model.pocket",
            validation_loader=None if validation is None else validation.batches(256),
            plan=self.given.plan,
            likelihood=noise,
            metadata=reserved.metadata(),
            graph=self.given.graph,
            checkpoints=bench.folder,
            **self.budget,
        )
        sigma = float(f"{noise.sigma.item():.4g}") if isinstance(noise, Homoscedastic) else None
        done = {**of_compression(report), "noise_sigma": sigma, "seconds": time.monotonic() - started}
        bench.write("record", finite(done))
        return done

    # --- after -------------------------------------------------------------------------------------------------

    def _finish(
        self,
        part: Callable[[str], AbstractContextManager[None]],
        bench: Workbench,
        done: dict[str, Any],
        start: Start,
        before: nn.Module,
        validation: DataSet | None,
        ood: Examples | None,
    ) -> dict[str, Any]:
        """Threshold, pocket file, test metrics, record and page."""
        fresh = start.fresh()
        plain_bytes = 4 * sum(t.numel() for t in (*fresh.parameters(), *fresh.buffers()))
        model = load(bench.folder / "model.pocket", fresh).eval()
        card = start.card._replace(sigma=done["noise_sigma"], scales=scales_of(model))
        after = NetworkPredictor(model=model, card=card)
        record = {**facts(self.given.call), "file": self.out.name, "budget": self.budget, **done}
        record["plain_bytes"] = plain_bytes
        with part("validation"):
            after, record["validation"], record["unsure"] = self._judge(after, validation)
        record["bytes"], record["sections"] = self._write(bench, after.card)
        record["ratio"] = record["plain_bytes"] / record["bytes"]
        test = start.data.test
        plain = NetworkPredictor(model=before, card=start.card)
        scores = {}
        for side, predictor in (("before", plain), ("after", after)):
            with part(side):
                scores[side] = dict(predictor.evaluate(test.x, test.y, progress=True, **self.draws))
        record["test"] = {"examples": len(test), **self.draws, **scores}
        record["warnings"] = warnings_of(scores["before"], scores["after"], record["bytes"])
        page = self.out.with_suffix(".html")
        record["page"] = page.name if self.given.page else None
        if not ranks.is_first():
            return record
        write_atomically(self.out.with_suffix(".json"), json.dumps(finite(record), indent=1).encode())
        if self.given.page:
            known: dict[str, Any] = {"before": before, "ood": ood, "record": finite(record)}
            with part("page"):
                write_story(page, self.out, after, test, **known, **self.draws)
        return record

    def _judge(
        self, model: NetworkPredictor, validation: DataSet | None
    ) -> tuple[NetworkPredictor, dict[str, float], dict[str, Any] | None]:
        """The model with its threshold, what validation data say about it, and about the threshold."""
        if validation is None:
            return model, {}, None
        alpha, max_risk = self.given.alpha, self.given.max_risk
        model, answer = with_rules(model, validation, alpha=alpha, max_risk=max_risk, **self.draws)
        scores, threshold = dict(score(answer, validation.y)), model.card.unsure
        if threshold is None or not isinstance(answer, ClassAnswers):
            return model, scores, None
        rule = selective(answer, validation.y, threshold)._asdict()
        return model, scores, {"threshold": threshold, "max_risk": max_risk, "validation": rule}

    def _write(self, bench: Workbench, card: Card) -> tuple[int, dict[str, int]]:
        """The file with its card, within the budget: the threshold may lose digits for that."""
        pocket, limit = decode(bench.folder / "model.pocket"), self.given.budget.bytes
        found = encode(replace(pocket, metadata=card.metadata()))
        if limit is not None and len(found.data) > limit and card.unsure is not None:
            found = encode(replace(pocket, metadata=card._replace(unsure=round(card.unsure, 2)).metadata()))
        if ranks.is_first():
            write_atomically(self.out, found.data)
        return len(found.data), found.sizes


def pocket_path(path: Path) -> Path:
    """OUT or OUT.pocket, as OUT.pocket."""
    if path.suffix in (".json", ".html", ".checkpoints"):
        raise typer.BadParameter(f"--out {path}: name the pocket file; {path.suffix} is written beside it")
    return path if path.suffix == ".pocket" else path.with_name(path.name + ".pocket")
