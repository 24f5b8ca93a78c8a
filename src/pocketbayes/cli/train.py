"""`pocketbayes train`: a plain network by its likelihood, or its posterior by the ELBO."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from pocketbayes.cli.datasets import Data, divided, require_calibratable, training_batches
from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.network import builder, require_takes
from pocketbayes.cli.options import NET_HELP, NETWORK, Made, Seeded, prior_from, sigma_from, temperature_from
from pocketbayes.cli.output import columns_table, console, say
from pocketbayes.cli.record import epochs, facts
from pocketbayes.cli.settings import option, required
from pocketbayes.runs import ranks
from pocketbayes.runs.files import finite, require_writable, write_atomically
from pocketbayes.runs.workbench import Workbench, digest

if TYPE_CHECKING:
    from torch import nn

    from pocketbayes.artifact.card import Card
    from pocketbayes.artifact.network_predictor import NetworkPredictor
    from pocketbayes.data import DataSet
    from pocketbayes.likelihood import Likelihood
    from pocketbayes.posterior.priors import GaussianPrior, InitialSigma
    from pocketbayes.training.history import History

BAYESIAN = "Bayesian"
_OUTSIDE = {"out", "folder", "test_samples", "max_risk"}  # may change in a resumed run


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Made, Seeded):
    """Those of `train`."""

    net: str = required(NET_HELP, "NET", panel=NETWORK)
    weights: Path | None = option(None, "Weights to start from.", "FILE", panel=NETWORK)
    epochs: int = option(20, "Passes over the training data.", min=1)
    lr: float = option(1e-3, "Learning rate of Adam, with a cosine.", min=0.0)
    clip: float | None = option(None, "Largest norm of the gradient.", min=0.0)
    patience: int | None = option(None, "Stop after so many epochs without a better NLL.", min=1)
    prior: GaussianPrior | None = option(
        None,
        "Standard deviation of the weights' prior: 0.2, fan-in, fan-in:GAIN, or pretrained:0.1 around the given "
        "weights. By default fan-in with --bayesian, and none without.",
        "PRIOR",
        parse=prior_from,
    )
    bayesian: bool = option(False, "Train a posterior; write a pocket file.", panel=BAYESIAN)
    temperature: float | Literal["auto"] = option(
        "1",
        "Weight of the KL; 1 is the ELBO, auto what suits the noise cost.",
        "T",
        panel=BAYESIAN,
        parse=temperature_from,
    )
    noise_cost: float = option(
        0.03,
        "Nats an example that noise may cost: with --temperature auto, and at the start.",
        "NATS",
        min=0.0,
        panel=BAYESIAN,
    )
    anneal: float = option(
        0.3, "Fraction of the steps in which the temperature rises.", min=0.0, max=1.0, panel=BAYESIAN
    )
    sigma: InitialSigma | None = option(
        None,
        "Where the sigmas start: relative:0.1 to the weights, fan-in:GAIN, or a number. By default relative:0.1, or "
        "less where noise would cost more than it may.",
        "SIGMA",
        panel=BAYESIAN,
        parse=sigma_from,
    )
    rho_lr: float | None = option(None, "Learning rate of rho; 10 lr by default.", min=0.0, panel=BAYESIAN)
    samples: int = option(1, "Draws a step.", min=1, panel=BAYESIAN)


@command(
    "train --net lenet --data mnist --epochs 10 --out lenet.safetensors",
    "train --net mymodel:net --weights net.safetensors --data my.npz --bayesian --temperature 0.1 --out net.pocket",
    "train --net mlp:50,50 --data energy.csv --targets 2 --epochs 200 --out energy.safetensors",
    resumable=True,
    divided=True,
)
def train(given: TrainOptions) -> Outcome:
    """Train a network, or with --bayesian its posterior.

    The epoch with the best validation NLL is kept. Interrupted, the same command goes on where it was.
    """
    from pocketbayes import nets
    from pocketbayes.artifact.card import card_of

    out, data, function = _output(given), Data(given.data, given), builder(given.net)
    require_writable(out)
    train, validation = divided(data, given, given.seed)
    require_calibratable(given.alpha, validation)
    card = card_of(given.net, nets.taken(function, nets.facts_of(train.shape, train.num_outputs)), train)
    model, likelihood = _start(given, card, train), card.likelihood()
    settings = {k: v for k, v in given.call.options.items() if k not in _OUTSIDE}
    if given.weights is not None:
        settings["digest of the weights"] = digest(given.weights)
    folder = out.with_name(f"{out.name}.checkpoints")
    with Workbench(folder, settings, restart=given.restart) as bench:
        started = time.monotonic()
        history = _fit(given, model, likelihood, train, validation, bench.folder / "fit.safetensors")
        seconds = time.monotonic() - started
        trained = _finished(given, model, card, likelihood, validation)
        ranks.once(lambda: _save(out, trained, bayesian=given.bayesian))
        draws = {"samples": given.test_samples, "seed": given.seed}
        scores = trained.evaluate(data.test.x, data.test.y, progress=True, **draws)
        bench.clear()
    record = {
        **facts(given.call),
        "file": str(out),
        "bytes": out.stat().st_size,
        "seconds": seconds,
        "best_epoch": history.best_epoch,
        "histories": {"train": epochs(history)},
        "test": {"examples": len(data.test), "samples": given.test_samples, "after": scores},
    }
    return Outcome(record, lambda: _show(record))


def _show(record: dict[str, Any]) -> None:
    title = f"{record['test']['examples']:,} test examples"
    console().print(columns_table(title, {"trained": record["test"]["after"]}))
    say(f"{record['file']}: {record['bytes']:,} bytes")


def _output(given: TrainOptions) -> Path:
    """The file to write, with the suffix of its kind."""
    out, suffix = given.out, ".pocket" if given.bayesian else ".safetensors"
    if out.suffix in (".pocket", ".safetensors") and out.suffix != suffix:
        how = "with" if given.bayesian else "without"
        raise typer.BadParameter(f"--out {out}: {how} --bayesian it is {suffix}")
    return out if out.suffix == suffix else out.with_name(out.name + suffix)


def _start(given: TrainOptions, card: Card, data: DataSet) -> nn.Module:
    """The network: new from the seed, or with given weights; made Bayesian if asked for."""
    from pocketbayes.artifact.plain_weights import load_weights
    from pocketbayes.posterior.convert import bayesianize
    from pocketbayes.prediction.layout import prefer_channels_last
    from pocketbayes.runs import randomness

    with randomness.forked(given.seed):
        model = builder(given.net)(**card.args)
    if given.weights is not None:
        load_weights(model, given.weights)
    require_takes(model, given.net, data)
    prefer_channels_last(model, card.shape)
    if given.bayesian:
        bayesianize(model, prior=given.prior or prior_from("fan-in"), sigma=given.sigma)
    return model


def _fit(
    given: TrainOptions,
    model: nn.Module,
    likelihood: Likelihood,
    train: DataSet,
    validation: DataSet | None,
    checkpoint: Path,
) -> History:
    from pocketbayes.training.fit import fit, fit_map

    loader = training_batches(train, given)
    common: dict[str, Any] = {name: getattr(given, name) for name in ("epochs", "lr", "patience", "seed")}
    common |= {"likelihood": likelihood, "clip": given.clip or None, "checkpoint": checkpoint}
    common["validation"] = None if validation is None else validation.batches(256)
    if not given.bayesian:
        return fit_map(model, loader, prior=given.prior, **common)
    own = {
        name: getattr(given, name) for name in ("temperature", "noise_cost", "anneal", "rho_lr", "samples")
    }
    return fit(model, loader, **common, **own)


def _finished(
    given: TrainOptions, model: nn.Module, card: Card, likelihood: Likelihood, validation: DataSet | None
) -> NetworkPredictor:
    """The trained network with the noise that was learned, prediction sets, or the threshold of "not sure"."""
    from pocketbayes.artifact.network_predictor import NetworkPredictor, with_rules
    from pocketbayes.likelihood import Homoscedastic

    if isinstance(likelihood, Homoscedastic):
        card = card._replace(sigma=float(f"{likelihood.sigma.item():.4g}"))
    trained = NetworkPredictor(model=model, card=card)
    if validation is None:
        return trained
    draws: dict[str, Any] = {"samples": given.test_samples, "seed": given.seed}
    return with_rules(trained, validation, alpha=given.alpha, max_risk=given.max_risk, **draws)[0]


def _save(out: Path, trained: NetworkPredictor, *, bayesian: bool) -> None:
    """The posterior with its priors as a pocket file, or the plain weights as safetensors; both with the card."""
    import torch
    from safetensors.torch import save as to_bytes

    from pocketbayes.artifact.store import save

    model, metadata = trained.model, trained.card.metadata()
    if bayesian:
        save(model, out, priors=True, metadata=metadata, example=torch.zeros(2, *trained.card.shape))
        return
    state = {name: t.contiguous().clone() for name, t in model.state_dict().items()}
    write_atomically(out, to_bytes(state, metadata={"pocketbayes": json.dumps(finite(metadata))}))
