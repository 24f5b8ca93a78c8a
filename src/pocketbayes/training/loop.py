"""The loop under `fit` and `fit_map`: batches, steps, epochs, checkpoints."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils import _pytree as pytree

from pocketbayes.data.loaders import EMPTY, innermost, length
from pocketbayes.errors import ArtifactError, NonFiniteError, ReproducibilityWarning
from pocketbayes.likelihood import Batch, Categorical, Likelihood, as_likelihood, unpack
from pocketbayes.posterior.draws import mix, one_draw
from pocketbayes.posterior.weights import StochasticWeight, kl_divergence, unwrap
from pocketbayes.prediction.predict import evaluate
from pocketbayes.runs import randomness
from pocketbayes.runs.checkpoint import load_checkpoint, save_checkpoint
from pocketbayes.runs.files import require_writable
from pocketbayes.runs.progress import bar
from pocketbayes.training.history import Epoch, History, Settings

OptimizerFactory = Callable[[list[dict[str, Any]]], Optimizer]
ScheduleFactory = Callable[[Optimizer], LRScheduler]


@runtime_checkable
class Stateful(Protocol):
    """What has a state of its own to keep in checkpoints."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Run:
    """The state of one training run: everything that a checkpoint holds."""

    def __init__(
        self,
        model: nn.Module,
        loader: Iterable[Any],
        settings: Settings,
        likelihood: Likelihood | Callable[[Any, Any], Tensor] | None,
        optimizer: OptimizerFactory | None,
        schedule: ScheduleFactory | None,
        autocast: torch.dtype | None,
        validation: Iterable[Any] | None,
        checkpoint: str | os.PathLike[str] | None,
    ) -> None:
        self.model, self.loader, self.settings = model, loader, settings
        self.likelihood = Categorical() if likelihood is None else as_likelihood(likelihood)
        self.validation, self.autocast = validation, autocast
        if settings.patience is not None and validation is None:
            raise ValueError(
                "fit: patience waits for a better validation NLL. Pass validation=, or leave it out."
            )
        self.path = None if checkpoint is None else Path(checkpoint)
        if self.path is not None:
            require_writable(self.path)
        self.batches = length(loader)  # in an epoch
        self.steps_per_epoch = -(-self.batches // settings.accumulate)
        groups = _parameter_groups(model, self.likelihood, settings)
        self.optimizer = torch.optim.Adam(groups) if optimizer is None else optimizer(groups)
        self.schedule = self._cosine() if schedule is None else schedule(self.optimizer)
        self.device = next(model.parameters()).device
        self.statistics = _statistics(model)
        self.finite_statistics = {  # a mask may hold infinities on purpose
            name: t
            for name, t in self.statistics.items()
            if t.is_floating_point() and t.numel() and bool(torch.isfinite(t).all())
        }
        self.history = History()
        self.epoch, self.batch = 0, 0  # the next batch to train on
        self.best_nll, self.bad_epochs = math.inf, 0
        self.best: dict[str, dict[str, Tensor]] | None = None  # `_trained` after the best epoch
        self.epoch_nll: list[float] = []
        self.on_step: Any = None  # a function of the share of steps done, perhaps Stateful
        self.draw: Callable[[int], AbstractContextManager[None]] = partial(
            one_draw, unwrap(model)
        )  # of a seed
        self.penalty: Callable[[], Tensor] = partial(kl_divergence, model)
        self.judged: Callable[[], nn.Module] = lambda: model  # what validation data see

    def _cosine(self) -> LRScheduler:
        total = self.settings.epochs * self.steps_per_epoch
        return torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / total)))
        )

    # --- the loop --------------------------------------------------------------------------------------------

    def go(
        self, checkpoint_seconds: float, progress: bool, on_epoch: Callable[[Epoch], None] | None
    ) -> History:
        self.optimizer.zero_grad(set_to_none=True)  # whatever the caller left there is not ours
        self._resume()
        total, done = self.settings.epochs * self.batches, self.epoch * self.batches
        with bar("fit", total, enabled=progress, done=done) as shown:
            while self.epoch < self.settings.epochs and not self._out_of_patience():
                started = saved = time.monotonic()
                self.model.train()
                for batch in self._batches():
                    nll, kl = self._train_on(batch)
                    self.epoch_nll.append(nll)
                    shown.advance(f"nll {nll:.3f}  kl {kl:,.0f}")
                    if self.path is not None and time.monotonic() - saved > checkpoint_seconds:
                        self._save()
                        saved = time.monotonic()
                self._end_epoch(time.monotonic() - started)
                if on_epoch is not None:
                    on_epoch(self.history[-1])
                self._save()
        if self.best is not None:
            self._take(self.best)
        return self.history

    def _trained(self) -> dict[str, dict[str, Tensor]]:
        """What training changes, under the names of the user's own module."""
        return {
            "model": dict(unwrap(self.model).state_dict()),
            "likelihood": dict(self.likelihood.state_dict()),
        }

    def _take(self, trained: dict[str, dict[str, Tensor]]) -> None:
        unwrap(self.model).load_state_dict(trained["model"])
        self.likelihood.load_state_dict(trained["likelihood"])

    def _batches(self) -> Iterator[Batch]:
        """The rest of the epoch's batches; their order, and every random number, follow from (seed, epoch, batch)."""
        resumed_at = self.batch
        here = randomness.state() if resumed_at else None
        randomness.seed_all(mix(self.settings.seed, self.epoch, _rank()))
        stream = iter(self.loader)
        for _ in islice(stream, resumed_at):
            pass
        if here is not None:
            randomness.set_state(here)
        for raw in stream:
            yield unpack(raw, self.device)
        if self.batch == 0:
            raise ValueError(EMPTY)
        self.optimizer.zero_grad(set_to_none=True)  # of batches that a length too large left without a step

    def _train_on(self, batch: Batch) -> tuple[float, float]:
        """`_train_on_finite`, after which a batch that fails has left no trace in the model."""
        self._require_finite_data(batch)
        before = [t.clone() for t in self.statistics.values()]
        try:
            return self._train_on_finite(batch)
        except NonFiniteError:
            for t, old in zip(self.statistics.values(), before, strict=True):
                t.copy_(old)
            raise

    def _train_on_finite(self, batch: Batch) -> tuple[float, float]:
        """One batch, and a step of the optimizer when enough of them are gathered; returns (NLL, KL)."""
        settings, nll_sum = self.settings, 0.0
        for s in range(settings.samples):
            last = s == settings.samples - 1
            seed = mix(settings.seed, self.epoch, self.batch, s, _rank())
            with self.draw(seed), nullcontext() if last else _no_sync(self.model):
                with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
                    output = self.model(*batch.args, **batch.kwargs)
                nll = self.likelihood.nll(output, batch.target).mean()
                self._require_finite(nll)
                loss = nll / settings.samples
                if last:  # the KL has no noise: once a step is enough
                    kl = self.penalty()
                    loss = loss + self.temperature * kl / settings.num_data
                (loss / self._gathered).backward()
            nll_sum += nll.item()
        self.batch += 1
        if self.batch % settings.accumulate == 0 or self.batch == self.batches:
            self._step()
            if self.on_step is not None:
                done = self.epoch * self.steps_per_epoch + -(-self.batch // settings.accumulate)
                self.on_step(done / (settings.epochs * self.steps_per_epoch))
        return nll_sum / settings.samples, kl.item()

    @property
    def _gathered(self) -> int:
        """Batches in the current step: the epoch's last one takes what is left."""
        left = self.batches - self.batch // self.settings.accumulate * self.settings.accumulate
        return min(self.settings.accumulate, max(1, left))

    def _step(self) -> None:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.clip or math.inf)
        if not bool(torch.isfinite(norm)):
            self._raise_non_finite("gradient", lambda p: p.grad)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()

    @property
    def annealed(self) -> float:
        """Rises linearly from 0 to 1 over the first `anneal` of all steps."""
        total = self.settings.epochs * self.batches * self.settings.anneal
        return 1.0 if total == 0 else min(1.0, (self.epoch * self.batches + self.batch) / total)

    @property
    def temperature(self) -> float:
        return self.settings.temperature * self.annealed

    def _end_epoch(self, seconds: float) -> None:
        annealed, temperature = self.annealed >= 1.0, self.temperature
        scores: dict[str, float] = {}
        if self.validation is not None:
            with randomness.forked():
                scores = evaluate(
                    self.judged(),
                    self.validation,
                    likelihood=self.likelihood,
                    samples=self.settings.validation_samples,
                    seed=self.settings.seed,
                )
            if annealed or self.epoch == self.settings.epochs - 1:
                self._judge(scores["nll"])
        mean_nll = sum(self.epoch_nll) / len(self.epoch_nll)
        with torch.no_grad():
            kl = self.penalty().item()
        self.history.epochs.append(Epoch(self.epoch, mean_nll, kl, temperature, dict(scores), seconds))
        self.epoch, self.batch, self.epoch_nll = self.epoch + 1, 0, []

    def _judge(self, nll: float) -> None:
        if nll < self.best_nll:
            self.best_nll, self.bad_epochs, self.history.best_epoch = nll, 0, self.epoch
            self.best = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), self._trained())
        else:
            self.bad_epochs += 1

    def _out_of_patience(self) -> bool:
        return self.settings.patience is not None and self.bad_epochs >= self.settings.patience

    # --- what can go wrong -----------------------------------------------------------------------------------

    def _require_finite_data(self, batch: Batch) -> None:
        for name, t in (*enumerate(batch.args), *batch.kwargs.items(), ("target", batch.target)):
            if isinstance(t, Tensor) and t.is_floating_point() and not bool(torch.isfinite(t).all()):
                raise NonFiniteError(
                    f"{self._where}: the data are not finite: input {name!r} has NaN or infinity."
                )

    def _require_finite(self, nll: Tensor) -> None:
        """The loss, and what a pass leaves in the model: a norm's running variance may overflow where it does not."""
        if not bool(torch.isfinite(nll)):
            self._raise_non_finite("value", lambda p: p)
        if not self.finite_statistics:
            return
        largest = torch._foreach_norm(list(self.finite_statistics.values()), math.inf)
        finite = torch.isfinite(torch.stack(largest))
        if not bool(finite.all()):
            bad = list(self.finite_statistics)[int((~finite).nonzero()[0])]
            raise NonFiniteError(
                f"{self._where}: {bad} is not finite after this batch, and is put back. "
                "Look for huge values in the inputs."
            )

    def _raise_non_finite(self, what: str, of: Callable[[Tensor], Tensor | None]) -> None:
        named = [*self.model.named_parameters(), *self.likelihood.named_parameters()]
        bad = [name for name, p in named if (t := of(p)) is not None and not bool(torch.isfinite(t).all())]
        culprit = (
            f"the {what} of {bad[0]} is not finite" if bad else "the loss is not finite, the parameters are"
        )
        raise NonFiniteError(
            f"{self._where}: {culprit}. The model is as before this step. "
            "Lower the learning rate, pass clip=1.0, or look for outliers in the data."
        )

    @property
    def _where(self) -> str:
        return f"epoch {self.epoch}, batch {self.batch}"

    # --- checkpoints -----------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.path is None or _rank() != 0:
            return
        gradients = [
            None if p.grad is None else p.grad for g in self.optimizer.param_groups for p in g["params"]
        ]
        tree = {
            "settings": asdict(self.settings),
            **self._trained(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": {k: v for k, v in self.schedule.state_dict().items() if k != "lr_lambdas"},
            "gradients": gradients if self.batch % self.settings.accumulate else [],
            "progress": [self.epoch, self.batch, self.best_nll, self.bad_epochs, self.history.best_epoch],
            "epoch_nll": self.epoch_nll,
            "batches": self.batches,
            "history": [tuple(e) for e in self.history.epochs],
            "best": self.best,
            "random": randomness.state(),
            "on_step": self.on_step.state_dict() if isinstance(self.on_step, Stateful) else None,
        }
        save_checkpoint(self.path, tree)

    def _resume(self) -> None:
        if self.path is None or not self.path.exists():
            return
        loader = innermost(self.loader)
        if not isinstance(getattr(loader, "dataset", None), Sized) and not isinstance(loader, (list, tuple)):
            warnings.warn(
                "The loader has no map-style data set: a resumed run may see its batches in another order.",
                ReproducibilityWarning,
                stacklevel=4,
            )
        tree = load_checkpoint(self.path)
        _require_same(self.path, tree, self.settings, self.batches, unwrap(self.model))
        self._take(tree)
        self.optimizer.load_state_dict(tree["optimizer"])
        self.schedule.load_state_dict({**self.schedule.state_dict(), **tree["schedule"]})
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for p, gradient in zip(parameters, tree["gradients"], strict=False):
            p.grad = None if gradient is None else gradient.to(p)
        self.epoch, self.batch, self.best_nll, self.bad_epochs, best_epoch = tree["progress"]
        self.epoch_nll, self.best = tree["epoch_nll"], tree["best"]
        self.history = History([Epoch(*e) for e in tree["history"]], best_epoch)
        randomness.set_state(tree["random"])
        if isinstance(self.on_step, Stateful):
            self.on_step.load_state_dict(tree["on_step"])


def _require_same(path: Path, tree: Any, settings: Settings, batches: int, model: nn.Module) -> None:
    """A checkpoint belongs to one run: the same settings, length of an epoch, parameters and widths of priors."""
    if not isinstance(tree, dict) or "settings" not in tree or "model" not in tree:
        raise ArtifactError(f"{path}: not a checkpoint of fit. Give another path.")
    changed = [
        f"{k} was {tree['settings'].get(k)}, is {v}"
        for k, v in asdict(settings).items()
        if tree["settings"].get(k) != v
    ]
    if tree.get("batches", batches) != batches:
        changed.append(f"an epoch had {tree['batches']} batches, has {batches}")
    ours, theirs = (
        {name: tuple(t.shape) for name, t in state.items()} for state in (model.state_dict(), tree["model"])
    )
    changed += [
        f"{name} is missing or differs in shape"
        for name in {**ours, **theirs}
        if ours.get(name) != theirs.get(name)
    ][:3]
    widths = {name: m.prior_sigma for name, m in model.named_modules() if isinstance(m, StochasticWeight)}
    changed += [
        f"the prior's width in {name} was {float(stored):g}, is {width:g}"
        for name, width in widths.items()
        if (stored := tree["model"].get(f"{name}._extra_state")) is not None and float(stored) != width
    ][:3]
    if changed:
        raise ArtifactError(
            f"{path}: the checkpoint is of another run ({'; '.join(changed)}). "
            "Call fit with the same arguments, or delete the file to start afresh."
        )


def _parameter_groups(model: nn.Module, likelihood: Likelihood, settings: Settings) -> list[dict[str, Any]]:
    """Two groups: everything, and the rhos, which want a learning rate of their own."""
    weights = [m for m in model.modules() if isinstance(m, StochasticWeight)]
    rhos = {id(p) for m in weights for name, p in m.named_parameters() if name.split(".")[-1] == "rho"}
    everything = [p for p in (*model.parameters(), *likelihood.parameters()) if p.requires_grad]
    return [
        {"params": [p for p in everything if id(p) not in rhos], "lr": settings.lr},
        {"params": [p for p in everything if id(p) in rhos], "lr": settings.rho_lr},
    ]


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    """Buffers that a forward pass may change, such as a norm's running mean; random weights have none."""
    inside = tuple(f"{name}." for name, m in model.named_modules() if isinstance(m, StochasticWeight))
    return {name: t for name, t in model.named_buffers() if not name.startswith(inside)}


def _no_sync(model: nn.Module) -> AbstractContextManager[Any]:
    """DistributedDataParallel reduces gradients in the last backward pass of a step only."""
    return model.no_sync() if isinstance(model, nn.parallel.DistributedDataParallel) else nullcontext()


def _rank() -> int:
    on = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if on else 0
