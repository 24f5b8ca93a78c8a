"""Data, networks and everything measured on one table with one seed, for `tabular`."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import pocketbayes as pb
from experiments.record import kept
from experiments.sharing.tabular_mixtures import Plane, mixture_row
from pocketbayes import nets
from pocketbayes.artifact import decode
from pocketbayes.data.batches import BatchLoader
from pocketbayes.likelihood import Homoscedastic
from pocketbayes.posterior.weights import stochastic_weights
from pocketbayes.runs import randomness
from pocketbayes.runs.checkpoint import load_checkpoint, save_checkpoint
from pocketbayes.sharing import Outliers

TABLES = ("power", "kin8nm")
HIDDEN = (256, 256)
BATCH, LR, TUNING_LR = 256, 1e-3, 3e-3
EPOCHS, POSTERIOR_EPOCHS, TUNING_EPOCHS = 60, 20, 8
TEMPERATURES = (1.0, 0.1, 0.01, 0.001)
SHARED = (64, 1024)  # components that weights share
OUTLIERS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)  # fractions of all weights, by Fisher information
PUBLISHED = pb.Paper()
BUDGETS = (0.25, 0.1, 0.05)  # of the fp32 bytes
PLAN = pb.Plan(epochs=6, finetune_epochs=2, lr=LR)
SAMPLES = 30


# --- data and network -----------------------------------------------------------------------------------------


class Table(NamedTuple):
    """One split; x and y have mean 0 and variance 1 over the training rows."""

    train: BatchLoader
    validation: list[tuple[Tensor, Tensor]]  # one batch
    test: list[tuple[Tensor, Tensor]]
    unit: float  # the targets' standard deviation

    @property
    def rows(self) -> list[int]:
        return [len(self.train.dataset), len(self.validation[0][0]), len(self.test[0][0])]


def load_table(folder: Path, name: str, seed: int) -> Table:
    """A random tenth of the rows for testing, another for validation."""
    path = folder / f"{name}.npz"
    if not path.exists():
        wanted = " and ".join(f"{table}.npz" for table in TABLES)
        raise FileNotFoundError(f"{path}: not found. Pass --data, a folder with {wanted}, each with x and y.")
    with np.load(path) as file:
        x, y = file["x"], file["y"].reshape(len(file["x"]), -1)
    order, tenth = np.random.default_rng(seed).permutation(len(x)), len(x) // 10
    test, validation, train = np.split(order, [tenth, 2 * tenth])
    scaled = [
        torch.tensor((v - v[train].mean(0)) / np.maximum(v[train].std(0), 1e-12), dtype=torch.float32)
        for v in (x, y)
    ]
    held, tested = ([(scaled[0][rows], scaled[1][rows])] for rows in (validation, test))
    loader = BatchLoader(scaled[0][train], scaled[1][train], BATCH, shuffle=True)
    return Table(loader, held, tested, float(y[train].std()))


class Network(NamedTuple):
    """A model, deterministic or Bayesian, and the noise of what it predicts."""

    model: nn.Module
    likelihood: Homoscedastic


def fresh(inputs: int, seed: int) -> nn.Sequential:
    with randomness.forked(seed):
        return nets.mlp([inputs, *HIDDEN, 1])


def fp32_bytes(model: nn.Module) -> int:
    return 4 * sum(p.numel() for p in model.parameters())


def scores(network: Network, rows: list[tuple[Tensor, Tensor]], seed: int) -> dict[str, float]:
    """RMSE, and NLL in nats, of standardised targets."""
    found = pb.evaluate(network.model, rows, likelihood=network.likelihood, samples=SAMPLES, seed=seed)
    return {metric: round(found[metric], 5) for metric in ("rmse", "nll")}


# --- one table and seed ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """Everything measured on one table with one seed; `row` keeps each part in a file."""

    folder: Path
    work: Path
    name: str
    seed: int

    @cached_property
    def table(self) -> Table:
        return load_table(self.folder, self.name, self.seed)

    def row(self) -> dict[str, Any]:
        self.work.mkdir(parents=True, exist_ok=True)
        jobs = {"posterior": self.train, "mixture": self.mixtures, "published": self.published}
        jobs |= {f"sharing {k}": partial(self.sharing, k) for k in SHARED}
        jobs |= {f"budget {fraction:g}": partial(self.compress, fraction) for fraction in BUDGETS}
        parts = {what: kept(self.path(f"{what}.json"), make) for what, make in jobs.items()}
        seconds = sum(part["seconds"] for part in parts.values())
        return {what: part["value"] for what, part in parts.items()} | {"seconds": seconds}

    def path(self, what: str) -> Path:
        return self.work / f"{self.name} {self.seed} {what}"

    # --- the network and its posterior

    def train(self) -> dict[str, Any]:
        """One set of weights, then the posterior at each temperature; the best on validation rows is kept in a file."""
        start = self._deterministic()
        tried = {temperature: self._posterior(start, temperature) for temperature in TEMPERATURES}
        nll = {
            temperature: scores(tried[temperature], self.table.validation, self.seed)["nll"]
            for temperature in TEMPERATURES
        }
        temperature = min(TEMPERATURES, key=nll.__getitem__)
        state = {
            "model": dict(tried[temperature].model.state_dict()),
            "plain": dict(start.model.state_dict()),
        }
        save_checkpoint(
            self.path("state.safetensors"), state | {"noise": tried[temperature].likelihood.sigma.item()}
        )
        return {
            "rows": self.table.rows,
            "unit": self.table.unit,
            "fp32": fp32_bytes(start.model),
            "weights": sum(site.moments.mu.numel() for site in stochastic_weights(tried[temperature].model)),
            "deterministic": {"test": scores(start, self.table.test, self.seed)},
            "validation": {f"{temperature:g}": value for temperature, value in nll.items()},
            "temperature": temperature,
            "posterior": self._filed(tried[temperature]),
        }

    def _deterministic(self) -> Network:
        """The best epoch on validation rows, whose residuals are its noise: those of training rows are too small."""
        table, model = self.table, fresh(self._inputs, self.seed)
        learned = Homoscedastic(0.3, learned=True)
        settings: dict[str, Any] = {"likelihood": learned, "validation": table.validation, "seed": self.seed}
        pb.fit_map(model, table.train, epochs=EPOCHS, lr=LR, progress=False, **settings)
        residual = pb.evaluate(model, table.validation, likelihood=learned).rmse
        return Network(model, Homoscedastic(residual, learned=True))

    def _posterior(self, start: Network, temperature: float) -> Network:
        network = copy.deepcopy(start)
        sigma = self._laplace(network, temperature)
        pb.bayesianize(network.model, sigma=sigma)
        self._fit(network, epochs=POSTERIOR_EPOCHS, lr=LR, temperature=temperature)
        return network

    def _laplace(self, network: Network, temperature: float) -> dict[str, Tensor]:
        fisher, rows = self._fisher(network), self.table.rows[0]
        sigma: dict[str, Tensor] = pb.laplace_sigma(network.model, fisher, rows, temperature=temperature)
        return sigma

    def _fisher(self, network: Network) -> dict[str, Tensor]:
        settings: dict[str, Any] = {"likelihood": network.likelihood, "seed": self.seed, "progress": False}
        found: dict[str, Tensor] = pb.fisher_information(network.model, self.table.train, **settings)
        return found

    def _fit(self, network: Network, **settings: Any) -> None:
        settings |= {"anneal": 0.0, "seed": self.seed, "progress": False}
        pb.fit(network.model, self.table.train, likelihood=network.likelihood, **settings)

    @property
    def _inputs(self) -> int:
        return self.table.test[0][0].shape[1]

    @cached_property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = load_checkpoint(self.path("state.safetensors"))
        return state

    @property
    def temperature(self) -> float:
        return float(json.loads(self.path("posterior.json").read_text())["value"]["temperature"])

    def posterior(self) -> Network:
        """That of the best temperature, as it was trained."""
        model = pb.bayesianize(fresh(self._inputs, self.seed))
        model.load_state_dict(self.state["model"])
        return Network(model, Homoscedastic(self.state["noise"], learned=True))

    def plain(self) -> Network:
        """The deterministic network that the posterior started from, with the posterior's noise."""
        model = fresh(self._inputs, self.seed)
        model.load_state_dict(self.state["plain"])
        return Network(model, Homoscedastic(self.state["noise"]))

    def _filed(self, network: Network) -> dict[str, Any]:
        """Bytes of the pocket file, and what it says when it is loaded back."""
        path = self.path("file.pocket")
        noise = f"{network.likelihood.sigma.item():.4f}"
        size = pb.save(network.model, path, metadata={"noise": noise}).total
        loaded = Network(
            pb.load(path, fresh(self._inputs, self.seed)),
            Homoscedastic(float(decode(path).metadata["noise"])),
        )
        path.unlink()
        found = {
            rows: scores(loaded, getattr(self.table, rows), self.seed) for rows in ("validation", "test")
        }
        return {"bytes": size, **found}

    # --- what is made of the posterior

    def mixtures(self) -> dict[str, Any]:
        """Mixtures over the trained posterior, and over sigma by Laplace of the network it started from."""
        plain = self.plain()
        sigma = self._laplace(plain, 1.0)
        laplace = Plane.of({name: (plain.model.get_parameter(name), s) for name, s in sigma.items()})
        return {"trained": mixture_row(self.plane(), self.seed), "laplace": mixture_row(laplace, self.seed)}

    def plane(self) -> Plane:
        return Plane.of({site.path: site.moments for site in stochastic_weights(self.posterior().model)})

    def sharing(self, components: int) -> dict[str, Any]:
        """Each fraction of outliers with blends and without; Fisher information alone makes outliers here."""
        found: dict[str, Any] = {}
        for fraction in OUTLIERS:
            outliers = Outliers(mean=None, fisher_fraction=fraction, smallest_cluster=None)
            for word, blend in (("blends", PUBLISHED.blend), ("none", None)):
                how = pb.Paper(components=components, outliers=outliers, blend=blend)
                found.setdefault(f"{fraction:g}", {})[word] = self._shared(how, TUNING_LR)
        return found

    def published(self) -> dict[str, Any]:
        """At the better of two rates on validation rows: so many components leave few weights to share."""
        tried = [self._shared(PUBLISHED, lr) for lr in (LR, TUNING_LR)]
        return min(tried, key=lambda row: row["validation"]["nll"])

    def _shared(self, how: pb.Paper, lr: float) -> dict[str, Any]:
        network = self.posterior()
        report = pb.share(network.model, how, fisher=self._fisher(network))
        before = scores(network, self.table.validation, self.seed)
        self._fit(network, epochs=TUNING_EPOCHS, lr=lr, temperature=self.temperature)
        counts = {"components": report.components, "outliers": report.outliers, "blends": report.blends}
        return counts | {"untuned": before} | self._filed(network)

    def compress(self, fraction: float) -> dict[str, Any]:
        network, path = self.posterior(), self.path("compress.pocket")
        report = pb.compress(
            network.model,
            self.table.train,
            path=path,
            validation_loader=self.table.validation,
            max_bytes=int(fraction * fp32_bytes(self.plain().model)),
            plan=replace(PLAN, temperature=self.temperature, seed=self.seed),
            likelihood=network.likelihood,
            metadata={"noise": "0.0000"},  # as long as that which comes out of training
            progress=False,
        )
        path.unlink()
        assert report.sharing is not None
        return {"components": report.sharing.components} | self._filed(network)
