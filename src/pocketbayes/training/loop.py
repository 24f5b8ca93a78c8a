"""The loop under `fit` and `fit_map`: batches, steps, epochs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils import _pytree as pytree

from pocketbayes.data.loaders import EMPTY, length, part
from pocketbayes.likelihood import Batch, Homoscedastic, Likelihood, unpack
from pocketbayes.posterior.draws import mix
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.norms import train_mode
from pocketbayes.posterior.weights import StochasticWeight, device_of_parameters, unwrap
from pocketbayes.prediction.evaluate import evaluate
from pocketbayes.prediction.scales import Scales, give_scales
from pocketbayes.runs import randomness, ranks
from pocketbayes.runs.files import require_writable
from pocketbayes.runs.progress import bar
from pocketbayes.training.checkpoint import Checkpoints
from pocketbayes.training.finite import FiniteChecks
from pocketbayes.training.history import Epoch, History, Settings
from pocketbayes.training.noise_scale import keep_noise, refit_noise, start_noise
from pocketbayes.training.objective import Nelbo, nelbo
from pocketbayes.training.temperature import CORRECTIONS, Tempering

NOISE_LR = 0.02  # of ln sigma, which has no unit
OptimizerFactory = Callable[[list[dict[str, Any]]], Optimizer]
ScheduleFactory = Callable[[Optimizer], LRScheduler]
Trained = dict[str, dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is trained, on what and towards what: all in which `fit` and `fit_map` differ."""

    model: nn.Module
    forward: Callable[..., Any]  # what is called for an output: the model, or its compiled twin
    loader: Iterable[Any]
    likelihood: Likelihood
    draw: Callable[[int], AbstractContextManager[None]]  # where the model has the weights of a seed
    penalty: Callable[[nn.Module], Tensor]  # beside the NLL, nats
    judged: Callable[[], nn.Module]  # what validation data see
    validation: Iterable[Any] | None
    autocast: torch.dtype | None
    start_sigmas: Callable[[], None]
    tempering: Tempering | None  # what looks for the temperature, if it is not given
    on_step: Any  # None, or a function that is told the fraction of steps done; perhaps `Stateful`


@dataclass
class State:
    """How far a run is."""

    epoch: int = 0
    batch: int = 0  # the next one to train on
    epoch_nll: list[float] = field(default_factory=list)
    bad_epochs: int = 0  # in a row, without a better validation NLL
    best_nll: float = math.inf
    best: Trained | None = None  # what was trained, after the best epoch
    history: History = field(default_factory=History)
    temperature: float = 1.0  # once it is annealed


class TrainingRun:
    """One training run: a task, its settings, how far it is, and the small steps that `train` is made of."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        optimizer: OptimizerFactory | None = None,
        schedule: ScheduleFactory | None = None,
    ) -> None:
        if settings.patience is not None and task.validation is None:
            raise ValueError(
                "fit: patience waits for a better validation NLL. Pass validation=, or leave it out."
            )
        if _reduces(task.model) and len(modes_of(task.model)) > 1:
            raise ValueError(
                "fit: DistributedDataParallel wants every parameter in every pass, and a pass is of one mode. "
                "Train each mode by itself, and put them together with pb.Modes."
            )
        self.task, self.settings, self.state = task, settings, State()
        if settings.temperature != "auto":
            self.state.temperature = float(settings.temperature)
        self.loader = task.loader if _reduces(task.model) else part(task.loader, alike=True)
        self.batches = length(self.loader)  # in an epoch
        groups = _parameter_groups(task.model, task.likelihood, settings)
        self.optimizer = _adam(groups) if optimizer is None else optimizer(groups)
        self.schedule = self._cosine() if schedule is None else schedule(self.optimizer)
        self.checks = FiniteChecks(task.model, task.likelihood)
        self.optimizer.zero_grad(set_to_none=True)  # whatever the caller left there is not ours

    def _cosine(self) -> LRScheduler:
        total = self.settings.epochs * self.steps_per_epoch
        return LambdaLR(self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / total))))

    # --- where the run is ------------------------------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.batches // self.settings.accumulate)

    @property
    def finished(self) -> bool:
        patience = self.settings.patience
        return self.state.epoch >= self.settings.epochs or (
            patience is not None and self.state.bad_epochs >= patience
        )

    @property
    def annealed(self) -> float:
        """Rises linearly from 0 to 1 over the first `anneal` of all steps."""
        done = self.state.epoch * self.batches + self.state.batch
        return 1.0 if self._annealing == 0 else min(1.0, done / self._annealing)

    @property
    def _annealing(self) -> float:
        """Batches while it rises."""
        return self.settings.epochs * self.batches * self.settings.anneal

    @property
    def temperature(self) -> float:
        return self.state.temperature * self.annealed

    def find_temperature(self) -> None:
        """If it follows from what noise may cost: before training, when it is annealed, then now and then corrected."""
        if (tempering := self.task.tempering) is None:
            return
        total, done = self.settings.epochs * self.batches, self.state.epoch * self.batches
        period = max(1.0, total - self._annealing) / (CORRECTIONS + 1)
        now, before = ((d - self._annealing) // period for d in (done, done - self.batches))
        with randomness.forked():
            if done == 0 or before < 0 <= now:
                self.state.temperature = tempering.start()
            elif 0 <= before < now <= CORRECTIONS:
                self.state.temperature = tempering.corrected(self.state.temperature)

    @property
    def gathered(self) -> int:
        """Batches in the current step: the epoch's last one takes what is left."""
        accumulate = self.settings.accumulate
        left = self.batches - self.state.batch // accumulate * accumulate
        return min(accumulate, max(1, left))

    def parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def trained(self) -> Trained:
        """What training changes, under the names of the user's own module."""
        return {
            "model": dict(unwrap(self.task.model).state_dict()),
            "likelihood": dict(self.task.likelihood.state_dict()),
        }

    def take(self, trained: Trained) -> None:
        unwrap(self.task.model).load_state_dict(trained["model"])
        self.task.likelihood.load_state_dict(trained["likelihood"])

    # --- a batch ---------------------------------------------------------------------------------------------

    def rest_of_epoch(self) -> Iterator[Batch]:
        """The epoch's batches from the next one on; they and all random numbers follow from (seed, epoch, batch)."""
        resumed_at = self.state.batch
        here = randomness.state() if resumed_at else None
        randomness.seed_all(mix(self.settings.seed, self.state.epoch, ranks.number()))
        stream = iter(self.loader)
        for _ in islice(stream, resumed_at):
            pass
        if here is not None:
            randomness.set_state(here)
        device = device_of_parameters(self.task.model)
        for raw in stream:
            yield unpack(raw, device)
        if self.state.batch == 0:
            raise ValueError(EMPTY)
        self.optimizer.zero_grad(set_to_none=True)  # of batches that a length too large left without a step

    def train_on(self, batch: Batch) -> Nelbo:
        """Gradients of one batch, and a step of the optimizer when enough of them are gathered."""
        state = self.state
        with self.checks.batch(batch, f"epoch {state.epoch}, batch {state.batch}"):
            parts = self.gradients(batch)
            state.batch += 1
            if state.batch % self.settings.accumulate == 0 or state.batch == self.batches:
                self.step()
        state.epoch_nll.append(parts.nll.item())
        return parts

    def gradients(self, batch: Batch) -> Nelbo:
        """Forwards and backwards, one draw after the other."""

        def backward(loss: Tensor) -> None:
            self.checks.loss(loss)
            (loss / self.gathered).backward()

        return nelbo(
            self.task.model,
            batch,
            self.settings.num_data,
            likelihood=self.task.likelihood,
            temperature=self.temperature,
            samples=self.settings.samples,
            autocast=self.task.autocast,
            forward=self.task.forward,
            penalty=self.task.penalty,
            draw=self._draw,
            backward=backward,
        )

    @contextmanager
    def _draw(self, number: int) -> Iterator[None]:
        """That draw of the batch; DistributedDataParallel reduces gradients after the last one only."""
        last = number == self.settings.samples - 1  # there are no modes under DistributedDataParallel
        seed = mix(self.settings.seed, self.state.epoch, self.state.batch, number, ranks.number())
        with self.task.draw(seed), nullcontext() if last else _no_sync(self.task.model):
            yield

    def step(self) -> None:
        if ranks.count() > 1 and not _reduces(self.task.model):
            self._average()
        self.checks.gradients(self.parameters(), self.settings.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.schedule.step()
        if self.task.on_step is not None:
            in_epoch = -(-self.state.batch // self.settings.accumulate)
            done = self.state.epoch * self.steps_per_epoch + in_epoch
            self.task.on_step(done / (self.settings.epochs * self.steps_per_epoch))

    def _average(self) -> None:
        """Gradients, and the statistics of norms, over all ranks: their draws and batches make one step."""
        for p in self.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        norms = [m for m in self.task.model.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        statistics = [t for m in norms for t in (m.running_mean, m.running_var) if t is not None]
        ranks.average([*(p.grad for p in self.parameters() if p.grad is not None), *statistics])

    # --- the end of an epoch ---------------------------------------------------------------------------------

    def end_epoch(self, seconds: float) -> Epoch:
        """Ask the validation data, note what the epoch gave, and go on to the next."""
        state, annealed, temperature = self.state, self.annealed >= 1.0, self.temperature
        scores = self._validate()
        if scores and (annealed or state.epoch == self.settings.epochs - 1):
            self._judge(scores["nll"])
        with torch.no_grad():
            kl = self.task.penalty(self.task.model).item()
        nll = torch.tensor(sum(state.epoch_nll) / len(state.epoch_nll), dtype=torch.float64)
        ranks.average([nll])
        epoch = Epoch(state.epoch, nll.item(), kl, temperature, scores, seconds)
        state.history.epochs.append(epoch)
        state.epoch, state.batch, state.epoch_nll = state.epoch + 1, 0, []
        self.find_temperature()
        return epoch

    def _validate(self) -> dict[str, float]:
        if self.task.validation is None:
            return {}
        with randomness.forked():
            found = evaluate(
                self.task.judged(),
                self.task.validation,
                likelihood=self.task.likelihood,
                samples=self.settings.validation_samples,
                seed=self.settings.seed,
            )
        return dict(found)

    def _judge(self, nll: float) -> None:
        state = self.state
        if nll < state.best_nll:
            state.best_nll, state.bad_epochs, state.history.best_epoch = nll, 0, state.epoch
            state.best = pytree.tree_map_only(Tensor, lambda t: t.detach().clone(), self.trained())
        else:
            state.bad_epochs += 1


@randomness.forked()
def train(
    begin: Callable[[], TrainingRun],
    checkpoint: str | os.PathLike[str] | None,
    checkpoint_seconds: float,
    *,
    progress: bool,
    on_epoch: Callable[[Epoch], None] | None,
) -> History:
    """The loop.  `checkpoint` is read if it is there, and written at every epoch and every so many seconds."""
    run, path = begin(), None if checkpoint is None else Path(checkpoint)
    ranks.require_same_network(unwrap(run.task.model))
    if path is not None:
        ranks.once(lambda: require_writable(path))
    checkpoints = None if path is None else Checkpoints(path, run)
    if checkpoints is not None and ranks.once(checkpoints.path.exists):
        checkpoints.resume()
    else:
        start_noise(run.task.judged(), run.loader, run.task.likelihood)
        run.task.start_sigmas()
        run.find_temperature()
    give_scales(unwrap(run.task.model), Scales())  # those of a calibration before, which training undoes
    kept = checkpoints if ranks.is_first() else None
    total = run.settings.epochs * run.batches
    with bar("fit", total, enabled=progress, done=run.state.epoch * run.batches) as shown:
        while not run.finished:
            started = saved = time.monotonic()
            train_mode(run.task.model)
            for batch in run.rest_of_epoch():
                parts = run.train_on(batch)
                shown.advance(f"nll {parts.nll:.3f}  kl {parts.kl:,.0f}")
                if kept is not None and time.monotonic() - saved > checkpoint_seconds:
                    kept.save()
                    saved = time.monotonic()
            epoch = run.end_epoch(time.monotonic() - started)
            if on_epoch is not None:
                on_epoch(epoch)
            if kept is not None:
                kept.save()
    if run.state.best is not None:
        run.take(run.state.best)
    draws = {"samples": run.settings.validation_samples, "seed": run.settings.seed}
    refit_noise(run.task.judged(), run.task.validation, run.task.likelihood, **draws)
    keep_noise(run.task.model, run.task.likelihood)
    return run.state.history


def _parameter_groups(model: nn.Module, likelihood: Likelihood, settings: Settings) -> list[dict[str, Any]]:
    """Everything; the rhos, which want a learning rate of their own; and so does the noise of a regression."""
    weights = [m for m in model.modules() if isinstance(m, StochasticWeight)]
    rhos = {id(p) for m in weights for name, p in m.named_parameters() if name.split(".")[-1] == "rho"}
    everything = [p for p in (*model.parameters(), *likelihood.parameters()) if p.requires_grad]
    noise = list(likelihood.parameters()) if isinstance(likelihood, Homoscedastic) else []
    apart = rhos | {id(p) for p in noise}
    groups = [
        {"params": [p for p in everything if id(p) not in apart], "lr": settings.lr},
        {"params": [p for p in everything if id(p) in rhos], "lr": settings.rho_lr},
    ]
    return [*groups, {"params": noise, "lr": NOISE_LR}] if noise else groups


def _reduces(model: nn.Module) -> bool:
    """Whether the model averages gradients itself; each rank's batches are then its own, as is usual with it."""
    return isinstance(model, nn.parallel.DistributedDataParallel)


def _adam(groups: list[dict[str, Any]]) -> torch.optim.Adam:
    if any(p.dtype == torch.float16 for group in groups for p in group["params"]):
        raise ValueError(
            "float16 is too coarse for Adam: squares of gradients round to zero, and steps become infinite. "
            "Train in float32 or bfloat16 (model.float()); the file that comes out loads into a float16 network too."
        )
    return torch.optim.Adam(groups)


def _no_sync(model: nn.Module) -> AbstractContextManager[Any]:
    return model.no_sync() if _reduces(model) else nullcontext()  # type: ignore[operator]
