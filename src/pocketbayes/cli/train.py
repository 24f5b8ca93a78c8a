"""`pocketbayes train`: a plain network by its likelihood, or its posterior by the ELBO."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pocketbayes.cli import options as o
from pocketbayes.cli.card import Card, card_of
from pocketbayes.cli.datasets import Data, divided, requested, training_batches
from pocketbayes.cli.entry import Interrupted, app, examples
from pocketbayes.cli.network import arguments_for, build, builder, load_weights
from pocketbayes.cli.output import columns_table, console, emit, finite, say
from pocketbayes.cli.plans import needed, prior_from, sigma_from
from pocketbayes.cli.record import epochs as history_of
from pocketbayes.cli.record import facts, settings_of
from pocketbayes.cli.scores import ask, choose_threshold, score, target_spread
from pocketbayes.cli.workbench import Workbench, digest
from pocketbayes.runs.files import require_writable, write_atomically

if TYPE_CHECKING:
    from torch import nn

    from pocketbayes.data import DataSet
    from pocketbayes.likelihood import Likelihood
    from pocketbayes.training.history import History

_OUTSIDE = {"out", "folder", "test_samples", "max_risk"}  # may change in a resumed run


@app.command(
    epilog=examples(
        "train --net lenet --data mnist --epochs 10 --out lenet.safetensors",
        "train --net mymodel:net --weights net.safetensors --data my.npz --bayesian --temperature 0.1 --out net.pocket",
        "train --net mlp:50,50 --data energy.csv --targets 2 --epochs 200 --out energy.safetensors",
    )
)
def train(
    context: typer.Context,
    net: o.Net = None,
    data: o.Data = None,
    out: o.Out = None,
    weights: o.Weights = None,
    epochs: o.Epochs = 20,
    lr: o.Lr = 1e-3,
    clip: o.Clip = None,
    patience: o.Patience = None,
    prior: o.Prior = None,
    bayesian: o.Bayesian = False,
    temperature: o.KlWeight = 1.0,
    anneal: o.KlAnneal = 0.3,
    sigma: o.Sigma = "relative:0.1",
    rho_lr: o.OwnRhoLr = None,
    samples: o.TrainingSamples = 1,
    folder: o.Folder = None,
    batch_size: o.BatchSize = 128,
    validation: o.Validation = 0.1,
    augment: o.Augment = False,
    mean: o.Mean = None,
    std: o.Std = None,
    image_size: o.ImageSize = None,
    targets: o.Targets = 1,
    max_risk: o.MaxRisk = None,
    test_samples: o.TestSamples = 30,
    restart: o.Restart = False,
    seed: o.Seed = 0,
    config: o.Config = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Train a network, or with --bayesian its posterior.

    The epoch with the best validation NLL is kept. Interrupted, the same command goes on where it was.
    """
    try:
        record = _run(context)
    except KeyboardInterrupt as interruption:
        raise Interrupted("Run the same command again to go on.") from interruption
    if as_json:
        emit(record)
        return
    title = f"{record['test']['examples']:,} test examples"
    console().print(columns_table(title, {"trained": record["test"]["after"]}))
    say(f"{record['file']}: {record['bytes']:,} bytes")


def _run(context: typer.Context) -> dict[str, Any]:
    given = context.params
    out, net = _output(given), needed(given, "net", "package.module:function or a name")
    named = ("folder", "mean", "std", "image_size", "targets")
    data = Data(requested(given["data"], **{name: given[name] for name in named}))
    function = builder(net)
    require_writable(out)
    train, validation = divided(data, given["validation"], given["seed"])
    card = card_of(net, arguments_for(function, train), train)
    if card.classes is None:
        card = card._replace(sigma=target_spread(train))
    model, likelihood = _start(given, card), card.likelihood()
    settings = {k: v for k, v in settings_of(given).items() if k not in _OUTSIDE}
    if given["weights"] is not None:
        settings["digest of the weights"] = digest(given["weights"])
    bench = Workbench(out.with_name(f"{out.name}.checkpoints"), settings, restart=given["restart"])
    started = time.monotonic()
    history = _fit(given, model, likelihood, train, validation, bench.folder / "fit.safetensors")
    seconds = time.monotonic() - started
    card = _finished(given, model, card, likelihood, validation)
    _save(out, model, card, bayesian=given["bayesian"])
    scores = score(
        model,
        data.test,
        card.likelihood(),
        samples=given["test_samples"],
        seed=given["seed"],
        unsure=card.unsure,
    )
    bench.clear()
    return {
        **facts(context),
        "file": str(out),
        "bytes": out.stat().st_size,
        "seconds": seconds,
        "best_epoch": history.best_epoch,
        "histories": {"train": history_of(history)},
        "test": {"examples": len(data.test), "samples": given["test_samples"], "after": scores},
    }


def _output(given: dict[str, Any]) -> Path:
    """The file to write, with the suffix of its kind."""
    suffix = ".pocket" if given["bayesian"] else ".safetensors"
    out: Path = needed(given, "out", f"the {suffix} file to write")
    if out.suffix in (".pocket", ".safetensors") and out.suffix != suffix:
        raise typer.BadParameter(
            f"--out {out}: {'with' if given['bayesian'] else 'without'} --bayesian it is {suffix}"
        )
    return out if out.suffix == suffix else out.with_name(out.name + suffix)


def _start(given: dict[str, Any], card: Card) -> nn.Module:
    """The network: new from the seed, or with given weights; made Bayesian if asked for."""
    from pocketbayes.posterior.convert import bayesianize
    from pocketbayes.prediction.layout import prefer_channels_last
    from pocketbayes.runs import randomness

    with randomness.forked():
        randomness.seed_all(given["seed"])
        model = build(str(card.net), card.args)
    if given["weights"] is not None:
        load_weights(model, given["weights"])
    prefer_channels_last(model, card.shape)
    if given["bayesian"]:
        bayesianize(model, prior=prior_from(given["prior"] or "fan-in"), sigma=sigma_from(given["sigma"]))
    return model


def _fit(
    given: dict[str, Any],
    model: nn.Module,
    likelihood: Likelihood,
    train: DataSet,
    validation: DataSet | None,
    checkpoint: Path,
) -> History:
    from pocketbayes.training.fit import fit, fit_map

    loader = training_batches(train, given["batch_size"], given["augment"])
    common: dict[str, Any] = {name: given[name] for name in ("epochs", "lr", "patience", "seed")}
    common |= {"likelihood": likelihood, "clip": given["clip"] or None, "checkpoint": checkpoint}
    common["validation"] = None if validation is None else validation.batches(256)
    if given["bayesian"]:
        own = {name: given[name] for name in ("temperature", "anneal", "rho_lr", "samples")}
        return fit(model, loader, **common, **own)
    prior = None if given["prior"] is None else prior_from(given["prior"])
    return fit_map(model, loader, prior=prior, **common)


def _finished(
    given: dict[str, Any], model: nn.Module, card: Card, likelihood: Likelihood, validation: DataSet | None
) -> Card:
    """The card with the noise that was learned, or with the threshold of "not sure"."""
    from pocketbayes.likelihood import Homoscedastic

    if isinstance(likelihood, Homoscedastic):
        return card._replace(sigma=float(f"{likelihood.sigma.item():.4g}"))
    if validation is None:
        return card
    answer = ask(model, validation, samples=given["test_samples"], seed=given["seed"])
    return card._replace(unsure=choose_threshold(answer, validation.y, given["max_risk"]))


def _save(out: Path, model: nn.Module, card: Card, *, bayesian: bool) -> None:
    """The posterior with its priors as a pocket file, or the plain weights as safetensors; both with the card."""
    from safetensors.torch import save as to_bytes

    from pocketbayes.artifact.store import save

    if bayesian:
        save(model, out, priors=True, metadata=card.metadata())
        return
    state = {name: t.contiguous().clone() for name, t in model.state_dict().items()}
    write_atomically(out, to_bytes(state, metadata={"pocketbayes": json.dumps(finite(card.metadata()))}))
