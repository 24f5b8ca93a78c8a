"""`compress`: from a network and a budget to a pocket file.  Only this file knows the order of the stages.

posterior   widths from the data (a diagonal Laplace posterior), trained on the ELBO
sharing     training that alternates with re-assignment, steered to the budget
fine-tune   labels fixed, the codebook and everything else trained on, where that helps
calibration one factor on all widths, by validation NLL, where the plan asks for it
file        written, read back, counted
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from pocketbayes.artifact import Encoded, Precision, encode
from pocketbayes.artifact.store import Saved, save
from pocketbayes.artifact.to_pocket import to_pocket
from pocketbayes.compression.plan import Budget, Plan
from pocketbayes.compression.steering import ONE_COMPONENT, Steering
from pocketbayes.data.loaders import count_examples
from pocketbayes.likelihood import Likelihood, as_likelihood
from pocketbayes.posterior.convert import bayesianize
from pocketbayes.posterior.laplace import fisher_information, laplace_sigma
from pocketbayes.posterior.priors import ZeroMean
from pocketbayes.posterior.surgery import adopt
from pocketbayes.posterior.weights import stochastic_weights, unwrap
from pocketbayes.prediction.calibrate import calibrate
from pocketbayes.prediction.predict import evaluate
from pocketbayes.runs.checkpoint import claim, fingerprint, load_checkpoint, save_checkpoint
from pocketbayes.runs.files import require_writable
from pocketbayes.sharing.latent import make_latent
from pocketbayes.sharing.rate import Rate
from pocketbayes.sharing.share import SharingReport, report_of, require_mean_field, share
from pocketbayes.training.distillation import Distilled, several
from pocketbayes.training.fit import fit
from pocketbayes.training.history import History

MOST_BITS = 10.0  # a weight; beyond it sharing buys nothing
RESERVE = (
    256  # one in so many bytes, where labels cost more or less as fine-tuning moves the means around them
)


class Stage(NamedTuple):
    """One stage: how long it took and what the validation data say after it."""

    name: str
    seconds: float
    metrics: dict[str, float]
    note: str


@dataclass(kw_only=True)
class CompressionReport:
    """What `compress` did, stage by stage, and what came of it."""

    stages: list[Stage] = field(default_factory=list)
    histories: dict[str, History] = field(default_factory=dict)  # training curves, by stage
    sharing: SharingReport | None = None
    saved: Saved | None = None
    plain_bytes: int = 0  # of the network's numbers in fp32

    @property
    def bytes(self) -> int:
        assert self.saved is not None
        return self.saved.total

    def __str__(self) -> str:
        lines = []
        for stage in self.stages:
            scores = "  ".join(
                f"{k} {v:.4f}" for k, v in stage.metrics.items() if k in ("accuracy", "nll", "ece", "rmse")
            )
            lines.append(f"{stage.name:10s} {stage.seconds:7.1f} s  {scores}  {stage.note}".rstrip())
        if self.sharing is not None:
            lines.append(str(self.sharing))
        if self.saved is not None:
            lines.append(f"{self.saved}, {self.plain_bytes / self.saved.total:.1f} times smaller than fp32")
        return "\n".join(lines)


def compress(
    model: nn.Module,
    train_loader: Iterable[Any],
    *,
    path: str | os.PathLike[str],
    validation_loader: Iterable[Any] | None = None,
    max_bytes: int | None = None,
    max_accuracy_drop: float | None = None,
    max_nll_rise: float | None = None,
    plan: Plan = Plan(),
    teacher: nn.Module | Sequence[nn.Module] | None = None,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    num_data: int | None = None,
    precision: Precision = Precision(),
    metadata: Mapping[str, Any] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> CompressionReport:
    """A trained network, or a posterior, into a pocket file at `path` that keeps the budget; the model in place.

    Args:
        validation_loader: data held out of training; needed for a budget of loss, and for the report's metrics.
        max_bytes, max_accuracy_drop, max_nll_rise: the budget, exactly one of them.
        teacher: whose answers have `plan.distillation` of the targets, one network or several; the model by default.
        checkpoints: a folder; killed and called again, `compress` goes on where it was.

    If it fails or is interrupted, the model is left as it came.
    """
    budget = Budget(max_bytes=max_bytes, max_accuracy_drop=max_accuracy_drop, max_nll_rise=max_nll_rise)
    if budget.max_bytes is None and validation_loader is None:
        raise ValueError("compress: a budget of loss is judged on validation data. Pass validation_loader=.")
    if plan.calibrate and validation_loader is None:
        raise ValueError("compress: widths are calibrated on validation data. Pass validation_loader=.")
    if teacher is not None and not plan.distillation:
        raise ValueError("compress: the teacher has no share of the targets. Pass Plan(distillation=0.5).")
    require_writable(path)
    model = unwrap(model)
    job = _Job(
        model,
        train_loader,
        validation_loader,
        plan,
        model if teacher is None else teacher,
        likelihood,
        num_data,
        precision,
        metadata,
        checkpoints,
        progress,
    )
    before = copy.deepcopy(model)
    try:
        job.run(budget, path)
    except BaseException:
        adopt(model, before)
        raise
    return job.report


class _Job:
    """One run of `compress`."""

    def __init__(
        self,
        model: nn.Module,
        train_loader: Iterable[Any],
        validation_loader: Iterable[Any] | None,
        plan: Plan,
        teacher: nn.Module | Sequence[nn.Module],
        likelihood: Likelihood | Callable[[Any, Any], Tensor] | None,
        num_data: int | None,
        precision: Precision,
        metadata: Mapping[str, Any] | None,
        checkpoints: str | os.PathLike[str] | None,
        progress: bool,
    ) -> None:
        self.model, self.train_loader, self.validation_loader = model, train_loader, validation_loader
        self.plan, self.precision, self.metadata, self.progress = plan, precision, metadata, progress
        self.likelihood = None if likelihood is None else as_likelihood(likelihood)
        self.num_data = num_data if num_data is not None else count_examples(train_loader)
        self.teachers = several(teacher) if plan.distillation else []
        self.lessons = train_loader  # to train on; perhaps with a teacher's answers
        if share := plan.distillation:
            self.lessons = Distilled(train_loader, teacher, share=share, likelihood=self.likelihood)
        self.folder = None if checkpoints is None else Path(checkpoints)
        self.checkpoints: list[Path] = []  # our own files in it; others may be there too
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        numbers = sum(p.numel() for p in model.parameters()) + sum(b.numel() for b in model.buffers())
        self.report = CompressionReport(plain_bytes=4 * numbers)
        self.distortion = 0.0  # of the last sharing, nats of free energy

    def run(self, budget: Budget, path: str | os.PathLike[str]) -> None:
        """All stages, in order."""
        self.claim(budget)
        metrics = self.measure("start")
        if budget.max_accuracy_drop is not None and "accuracy" not in metrics:
            raise ValueError("compress: max_accuracy_drop is for classes. Pass max_nll_rise= or max_bytes=.")
        self.find_posterior()
        if budget.max_bytes is not None:
            self.share_within(budget.max_bytes, "sharing")
        else:
            self.search(budget)
        started = time.monotonic()
        self.report.saved = save(self.model, path, precision=self.precision, metadata=self.metadata)
        self.report.sharing = replace(report_of(self.model, "rate"), distortion=self.distortion)
        self.report.stages.append(
            Stage("file", time.monotonic() - started, {}, f"{self.report.saved.total:,} bytes")
        )
        self.forget()

    # --- stages --------------------------------------------------------------------------------------------------

    def measure(self, name: str, started: float | None = None, note: str = "") -> dict[str, float]:
        """Validation metrics of the model as it is, noted in the report."""
        seconds = 0.0 if started is None else time.monotonic() - started
        metrics: dict[str, float] = {}
        if self.validation_loader is not None:
            metrics = dict(
                evaluate(
                    self.model,
                    self.validation_loader,
                    likelihood=self.likelihood,
                    samples=self.plan.samples,
                    seed=self.plan.seed,
                )
            )
        self.report.stages.append(Stage(name, seconds, metrics, note))
        return metrics

    def find_posterior(self) -> None:
        """Stage 1: a posterior for a plain network; a Bayesian model brings its own."""
        started, plan = time.monotonic(), self.plan
        if not stochastic_weights(self.model):
            prior, kept = ZeroMean(plan.prior), self._checkpoint("posterior")
            if kept is not None and kept.exists():
                bayesianize(self.model, prior=prior)
                self.model.load_state_dict(load_checkpoint(kept))
            else:
                fisher = fisher_information(
                    self.model,
                    self.train_loader,
                    likelihood=self.likelihood,
                    batches=plan.fisher_batches,
                    seed=plan.seed,
                    progress=self.progress,
                )
                sigma = laplace_sigma(
                    self.model, fisher, self.num_data, prior=plan.prior, temperature=plan.temperature
                )
                bayesianize(self.model, prior=prior, sigma=sigma)
                if kept is not None:
                    save_checkpoint(kept, dict(self.model.state_dict()))
        require_mean_field(self.model)
        if plan.posterior_epochs:
            self._fit("posterior-fit", epochs=plan.posterior_epochs, lr=plan.lr, rho_lr=10 * plan.lr)
        self.measure("posterior", started)

    def share_within(self, max_bytes: int, name: str) -> dict[str, float]:
        """Stages 2 and 3: alternate to `max_bytes`, then fine-tune."""
        started, plan = time.monotonic(), self.plan
        smallest = self._smallest()
        if max_bytes < smallest:
            raise ValueError(
                f"max_bytes={max_bytes:,} cannot be met: with a single component, all that is not a label takes "
                f"{smallest:,} bytes. Ask for more, or lower the precision of the deterministic tensors."
            )
        make_latent(self.model, plan.components)
        steering = Steering(
            self.model,
            Rate(components=plan.components),
            max_bytes=max_bytes,
            smallest=smallest,
            size_of=self.final_size,
            renew_every=plan.renew_every,
            anneal=plan.anneal,
        )
        self._fit(f"{name}-fit", epochs=plan.epochs, lr=plan.lr, rho_lr=plan.rho_lr, on_step=steering)
        self.distortion = steering.freeze()
        shared = self.measure(name, started)
        if plan.finetune_epochs:
            self._finetune(max_bytes, f"{name}-finetune", shared)
        if plan.calibrate:
            started = time.monotonic()
            assert self.validation_loader is not None
            found = calibrate(
                self.model,
                self.validation_loader,
                likelihood=self.likelihood,
                samples=plan.samples,
                seed=plan.seed,
                progress=self.progress,
            )
            self.measure("calibration", started, f"widths times {found.factor:.3f}")
        return self.report.stages[-1].metrics

    def _finetune(self, max_bytes: int, name: str, before: dict[str, float]) -> None:
        """Stage 3: train all but the labels; taken back if validation data prefer what was before, or if it outgrows
        the budget.
        """
        started, plan = time.monotonic(), self.plan
        model, likelihood = copy.deepcopy((self.model, self.likelihood))
        settings = {"lr": plan.finetune_lr, "rho_lr": plan.finetune_lr, "validation": self.validation_loader}
        self._fit(name, epochs=plan.finetune_epochs, **settings)
        after, size = self.measure("fine-tuning", started), self.size_of(self.model)
        why = ""
        if size > max_bytes:
            why = f"taken back: {size:,} bytes"
        elif after and after["nll"] > before["nll"]:
            why = f"taken back: nll {after['nll']:.4f}"
        if why:
            adopt(self.model, model)
            if self.likelihood is not None and likelihood is not None:
                self.likelihood.load_state_dict(likelihood.state_dict())
            self.report.stages[-1] = self.report.stages[-1]._replace(metrics=before, note=why)

    def search(self, budget: Budget) -> None:
        """The smallest file whose loss on validation data keeps the budget: bisection of the size, in logarithms."""
        before = self.report.stages[0].metrics
        posterior = copy.deepcopy(self.model)
        weights = sum(s.moments.mu.numel() for s in stochastic_weights(posterior))
        low, high = math.log(self._smallest()), math.log(self._smallest() + weights * MOST_BITS / 8)
        size, best = math.log(self._smallest() + weights * 3.0 / 8), None
        losses, distortion = list[str](), 0.0
        for number in range(self.plan.tries):
            adopt(self.model, copy.deepcopy(posterior))
            metrics = self.share_within(int(math.exp(size)), f"try {number + 1}")
            scores = ", ".join(f"{k} {v:.4f}" for k, v in metrics.items() if k in ("accuracy", "nll"))
            losses.append(f"{int(math.exp(size)):,} bytes: {scores}")
            if budget.kept(before, metrics):
                best, high, distortion = copy.deepcopy(self.model), size, self.distortion
            else:
                low = size
            size = (low + high) / 2
        if best is None:
            raise ValueError(
                f"the budget cannot be met in {self.plan.tries} tries. Reached: {'; '.join(losses)}."
            )
        adopt(self.model, best)
        self.distortion = distortion

    # --- small things --------------------------------------------------------------------------------------------

    def _smallest(self) -> int:
        """Bytes of the file when every weight shares one component: all but the labels."""
        trial = copy.deepcopy(self.model)
        share(trial, ONE_COMPONENT)
        return self.size_of(trial)

    def encoded(self, model: nn.Module) -> Encoded:
        return encode(to_pocket(model, precision=self.precision, metadata=self.metadata))

    def size_of(self, model: nn.Module) -> int:
        return len(self.encoded(model).data)

    def final_size(self, twin: nn.Module) -> int:
        """Bytes of the file when all training is done, nearly: norms count their batches, and long numbers take more
        bytes; codes of labels follow the means.
        """
        left = self.plan.finetune_epochs * len(self.lessons) if isinstance(self.lessons, Sized) else 0
        for norm in (m for m in twin.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)):
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked += left
        found = self.encoded(twin)
        return len(found.data) + (len(found.data) // RESERVE if left and found.in_contexts else 0)

    def _fit(self, name: str, **settings: Any) -> None:
        self.report.histories[name] = fit(
            self.model,
            self.lessons,
            likelihood=self.likelihood,
            num_data=self.num_data,
            temperature=self.plan.temperature,
            anneal=0.0,
            seed=self.plan.seed,
            validation_samples=self.plan.samples,
            checkpoint=self._checkpoint(name),
            progress=self.progress,
            **settings,
        )

    def _checkpoint(self, name: str) -> Path | None:
        """That stage's file."""
        if self.folder is None:
            return None
        self.checkpoints.append(self.folder / f"{name}.safetensors")
        return self.checkpoints[-1]

    def claim(self, budget: Budget) -> None:
        """Note whose checkpoints are in the folder, or refuse those of another run."""
        if self.folder is None:
            return
        file = self.folder / "run.json"
        self.checkpoints.append(file)
        settings = {**asdict(self.plan), **asdict(budget), "precision": self.precision}
        ours = {
            **{name: repr(value) for name, value in settings.items()},
            "the number of data": repr(self.num_data),
            "the network": fingerprint(self.model),
            "the teacher": " ".join(map(fingerprint, self.teachers)),
        }
        claim(file, ours)

    def forget(self) -> None:
        """The work is done and in its file: the checkpoints go."""
        for file in self.checkpoints:
            file.unlink(missing_ok=True)
