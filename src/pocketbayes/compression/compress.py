"""`compress`: from a network and a budget to a pocket file.  Only this file knows the order of the stages.

posterior    sigmas from the data (a diagonal Laplace posterior), then training on the ELBO where the plan asks for it
sharing      training that alternates with new labels, steered to the budget
fine-tuning  labels frozen, the codebook and everything else trained on, where that helps
calibration  one factor on all sigmas, by validation NLL, where the plan asks for it
file         norms folded to a scale and a shift; written, read back, counted
"""

from __future__ import annotations

import copy
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.artifact import Encoded, Pocket, Precision, encode
from pocketbayes.artifact.store import write
from pocketbayes.artifact.to_graph import Exported, export_or_warn
from pocketbayes.artifact.to_pocket import to_pocket
from pocketbayes.compression.job import CompressionJob, given_posterior, laplace_posterior
from pocketbayes.compression.plan import STEPS, Budget, Plan
from pocketbayes.compression.post_training import (
    ENOUGH,
    PASSES,
    RELATIVE,
    answered,
    refit,
    renew_norms,
    share_untrained,
)
from pocketbayes.compression.stages import CompressionReport, StageReport, told
from pocketbayes.compression.steering import ONE_COMPONENT, Steering
from pocketbayes.data.loaders import count_examples, part
from pocketbayes.likelihood import Homoscedastic, Likelihood, unpack
from pocketbayes.posterior.convert import bayesianize
from pocketbayes.posterior.modes import Modes
from pocketbayes.posterior.norms import fold_statistics
from pocketbayes.posterior.priors import ZeroMean
from pocketbayes.posterior.surgery import adopt
from pocketbayes.posterior.weights import stochastic_weights, unwrap
from pocketbayes.prediction.answering import likelihood_for
from pocketbayes.prediction.calibrate import calibrate
from pocketbayes.prediction.evaluate import evaluate
from pocketbayes.prediction.inputs import device_of
from pocketbayes.prediction.scales import Scale, Scales, give_scales, scales_of
from pocketbayes.runs import ranks
from pocketbayes.runs.checkpoint import fingerprint, load_checkpoint, save_checkpoint
from pocketbayes.runs.files import require_writable
from pocketbayes.runs.memory import require_memory
from pocketbayes.runs.progress import whole
from pocketbayes.runs.randomness import forked
from pocketbayes.runs.resume import Claim, claimed
from pocketbayes.sharing.latent import make_latent
from pocketbayes.sharing.rate import Rate
from pocketbayes.sharing.share import report_of, require_mean_field, share
from pocketbayes.training.compiled import compiling_pays
from pocketbayes.training.distillation import Distilled, several
from pocketbayes.training.fit import fit
from pocketbayes.training.noise_scale import keep_noise, refit_noise, start_noise

_NOISE = Scales(noise=8.713e-05)  # with as many digits as it may have
_RESERVED = Scales(Scale(0.8713), Scale(0.9362))  # temperatures with as many digits as they may have
_DEFLATED = 8  # bytes by which other digits may deflate worse
TRAINED = 44  # bytes a weight: as it came 4, mu and rho 8, as they were 8, gradients 8, Adam 16
UNTRAINED = 28  # as it came 4, mu and rho 8, as they were 8, on trial 8
MOST_BITS = 10.0  # a weight; beyond it sharing buys nothing
FIRST_BITS = 3.0  # a weight, where the search for a budget of loss begins
LOST = 0.01  # nats of validation NLL, beyond which training is compared with labels that took none
RESERVE = (
    256  # one in so many bytes, where labels cost more or less as fine-tuning moves the means around them
)


def compress(
    model: nn.Module | Sequence[nn.Module],
    train_loader: Iterable[Any],
    *,
    path: str | os.PathLike[str],
    validation_loader: Iterable[Any] | None = None,
    max_bytes: int | str | None = None,
    max_accuracy_drop: float | None = None,
    max_nll_rise: float | None = None,
    plan: Plan = Plan(),
    teacher: nn.Module | Sequence[nn.Module] | None = None,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    num_data: int | None = None,
    precision: Precision = Precision(),
    metadata: Mapping[str, Any] | None = None,
    graph: bool = True,
    checkpoints: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> CompressionReport:
    """A trained network, or a posterior, into a pocket file at `path` that keeps the budget.

    The model is changed in place to what the file holds; if `compress` fails or is interrupted, it is left as it came.
    BatchNorms are folded: what is left of their statistics is mean 0 and variance 1. Keep them in evaluation mode if
    you train on in a loop of your own; `fit` does.

    Args:
        model: a plain network that is trained, or one that `bayesianize` converted; or several of one architecture, in
            a list or as `Modes`, which become the modes of one posterior, in one file, within the budget together.
        train_loader: batches `(x, ..., y)`, or dicts with labels; with `epochs=0` also inputs alone.
        path: the file to write.
        validation_loader: data held out of training; needed for a budget of loss, and for the report's metrics.
        max_bytes, max_accuracy_drop, max_nll_rise: the budget, exactly one of them: bytes (a number, or "90KB"),
            a fraction of the examples, or nats.
        plan: how to go about it.
        teacher: whose answers have `plan.distillation` of the targets, or with `epochs=0` are the targets: one network
            or several; the model by default, each mode as it came for itself.
        likelihood: `Categorical()` by default; `Homoscedastic(...)`, `Heteroscedastic()`, or a function of
            (output, target).
        num_data: examples in the training set; told by the loader's data set where it has a length.  With `epochs=0`,
            whose loader has but a few of them, by default so many that they weigh enough beside the prior.
        precision: digits of the numbers in the file that are not labels.
        metadata: what else the file is to say, as JSON.
        graph: put the network's graph into the file, which then answers without torch. The report says so where it
            cannot be exported.
        checkpoints: a folder; killed and called again, `compress` goes on where it was.
        progress: show bars on a terminal.

    Returns:
        What every stage took and gave, and the bytes of the file by section; printable.

    Examples:
        >>> import tempfile, torch, pocketbayes as pb
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = pb.compress(net, [(x, (x[:, 0] > 0).long())], path=f"{folder}/net.pocket", max_bytes="1KB")
        >>> report.bytes <= 1000
        True
    """
    budget = Budget(max_bytes=max_bytes, max_accuracy_drop=max_accuracy_drop, max_nll_rise=max_nll_rise)
    if train_loader is None or (isinstance(train_loader, Sized) and not len(train_loader)):
        raise ValueError(f"compress: there are no data. {ENOUGH}")
    plan = plan.of_data(len(train_loader) if isinstance(train_loader, Sized) else STEPS)
    if budget.bytes is None and validation_loader is None:
        raise ValueError("compress: a budget of loss is judged on validation data. Pass validation_loader=.")
    if plan.calibrate and validation_loader is None:
        raise ValueError("compress: sigmas are calibrated on validation data. Pass validation_loader=.")
    if teacher is not None and plan.epochs and not plan.distillation:
        raise ValueError("compress: the teacher has no fraction of the targets. Pass Plan(distillation=0.5).")
    if not plan.epochs and plan.posterior_epochs:
        raise ValueError("compress: epochs=0 is compression without training. Leave posterior_epochs at 0.")
    ranks.once(lambda: require_writable(path))
    model = unwrap(model) if isinstance(model, nn.Module) else Modes(model)
    teachers = several(model if teacher is None else teacher) if plan.distillation or not plan.epochs else []
    if (device_of(model) or torch.device("cpu")).type == "cpu":
        weights = sum(p.numel() for p in model.parameters())
        each, advice = (TRAINED, "With epochs=0 it takes less.") if plan.epochs else (UNTRAINED, "")
        require_memory("compress", weights, each, f"{advice} Free some, or take a larger machine.".strip())
    ranks.require_same_network(model)
    known = likelihood is not None or scales_of(model).noise is not None
    likelihood = likelihood_for(model, likelihood) if known else None
    start_noise(model, part(train_loader if validation_loader is None else validation_loader), likelihood)
    if not plan.epochs:
        train_loader = answered(
            train_loader, teachers, likelihood, batches=plan.fisher_batches, seed=plan.seed
        )
    elif plan.bfloat16 is None:
        epochs = (plan.epochs or 0) + plan.posterior_epochs + plan.finetune_epochs
        plan = replace(plan, bfloat16=compiling_pays(model, train_loader, epochs))
    job = CompressionJob(
        model=model,
        train_loader=train_loader,
        lessons=_lessons(train_loader, teachers, plan, likelihood, by_mode=teacher is None),
        validation_loader=validation_loader,
        budget=budget,
        plan=plan,
        likelihood=likelihood,
        num_data=count_examples(train_loader) if num_data is None and plan.epochs else num_data,
        precision=precision,
        metadata=metadata,
        graph=graph,
        progress=progress,
    )
    before, scales = copy.deepcopy(model), scales_of(model)
    give_scales(model, Scales())  # of a calibration before, which training undoes
    with _claimed(checkpoints, job, teachers) as claim:
        stages = _Stages(job, claim)
        try:
            stages.run(path)
        except BaseException:
            adopt(model, before)
            give_scales(model, scales)
            raise
    return stages.report


def _lessons(
    loader: Iterable[Any],
    teachers: list[nn.Module],
    plan: Plan,
    likelihood: Likelihood | None,
    *,
    by_mode: bool,
) -> Iterable[Any]:
    if not teachers or not plan.epochs:
        return loader
    mine = part(loader, alike=True)
    return Distilled(
        mine,
        teachers,
        fraction=plan.distillation,
        by_mode=by_mode and len(teachers) > 1,
        likelihood=likelihood,
        **_speed(plan),
    )


def _speed(plan: Plan) -> dict[str, Any]:
    """How training computes."""
    return {"autocast": torch.bfloat16 if plan.bfloat16 else None, "compiled": bool(plan.bfloat16)}


def _claimed(
    folder: str | os.PathLike[str] | None, job: CompressionJob, teachers: list[nn.Module]
) -> AbstractContextManager[Claim | None]:
    """The folder of checkpoints, this run's alone; None without one."""
    if folder is None:
        return nullcontext()
    settings = {**asdict(job.plan), **asdict(job.budget), "precision": job.precision}
    facts = {
        **{name: repr(value) for name, value in settings.items()},
        "the number of data": repr(job.num_data),
        "the network": fingerprint(job.model),
        "the teacher": " ".join(map(fingerprint, teachers)),
    }
    advice = (
        "Call compress with the same network and arguments to go on, or give another folder to start afresh."
    )
    return claimed(Path(folder), facts, advice=advice)


_Kept = tuple[nn.Module, Likelihood | None]


class _Stages:
    """One run of `compress`, stage by stage."""

    def __init__(self, job: CompressionJob, claim: Claim | None) -> None:
        self.job, self.claim = job, claim
        tensors = (*job.model.parameters(), *job.model.buffers())
        self.batches = len(job.train_loader) if isinstance(job.train_loader, Sized) else 1
        self.report = CompressionReport(plain_bytes=4 * sum(t.numel() for t in tensors))
        self.distortion = 0.0  # of the last sharing, nats of free energy
        self.temperature = 1.0  # of the posterior, from stage 1 on
        self.graph = Exported(b"")
        self.start: dict[str, float] = {}  # what validation data say of the model as it came

    def run(self, path: str | os.PathLike[str]) -> None:
        """All stages, in order."""
        job = self.job
        self.start = self.measure("start")
        if job.budget.max_accuracy_drop is not None and "accuracy" not in self.start:
            raise ValueError("compress: max_accuracy_drop is for classes. Pass max_nll_rise= or max_bytes=.")
        shares = job.plan.shares(job.budget, self.batches)
        with whole("compress", shares, enabled=job.progress) as part:
            with part("posterior"):
                self.find_posterior()
            self.graph = self.export()
            if job.budget.bytes is None:
                self.search(part)
            else:
                with part("sharing"):
                    self.share_within(job.budget.bytes, "sharing")
        started = time.monotonic()
        fold_statistics(job.model)
        ranks.require_same_network(job.model, "Their processors, or numbers of threads, round differently.")
        saved = ranks.once(lambda: write(self.pocket(job.model), path, self.graph.why_not))
        self.report.saved = saved
        self.report.sharing = replace(report_of(job.model, "rate"), distortion=self.distortion)
        self.report.stages.append(
            StageReport("file", time.monotonic() - started, {}, f"{saved.total:,} bytes")
        )

    # --- stages --------------------------------------------------------------------------------------------------

    def measure(self, name: str, started: float | None = None, note: str = "") -> dict[str, float]:
        """Validation metrics of the model as it is, noted in the report."""
        seconds = 0.0 if started is None else time.monotonic() - started
        metrics: dict[str, float] = {}
        if self.job.validation_loader is not None:
            metrics = dict(
                evaluate(
                    self.job.model,
                    self.job.validation_loader,
                    likelihood=self.job.likelihood,
                    samples=self.job.plan.samples,
                    seed=self.job.plan.seed,
                )
            )
        self.report.stages.append(StageReport(name, seconds, metrics, note))
        return metrics

    def find_posterior(self) -> None:
        """Stage 1: a posterior for a plain network; a Bayesian model brings its own."""
        started, plan = time.monotonic(), self.job.plan
        model, kept = self.job.model, self._checkpoint("posterior")
        if kept is not None and ranks.once(kept.exists):
            self.temperature, note, state = ranks.once(lambda: load_checkpoint(kept))
            if not stochastic_weights(model):
                bayesianize(model, prior=ZeroMean(plan.prior))
            model.load_state_dict(state)
        else:
            found = given_posterior if stochastic_weights(model) else laplace_posterior
            self.temperature, note = found(self.job)
            if kept is not None and ranks.is_first():
                save_checkpoint(kept, (self.temperature, note, dict(model.state_dict())))
        require_mean_field(model)
        if plan.posterior_epochs:
            self._fit("posterior-fit", epochs=plan.posterior_epochs, lr=plan.lr, rho_lr=10 * plan.lr)
        self.measure("posterior", started, note)

    def export(self) -> Exported:
        """The network's graph, whose bytes count; random generators stay as they are."""
        if not self.job.graph:
            return self.graph

        def exported() -> Exported:
            with forked():
                batch = unpack(next(iter(self.job.train_loader)))
            return export_or_warn(self.pocket(self.job.model), self.job.model, batch.kwargs or batch.args)

        return ranks.once(exported)

    def share_within(self, max_bytes: int, name: str) -> dict[str, float]:
        """Stages 2 and 3: alternate to `max_bytes`, then fine-tune."""
        started, plan = time.monotonic(), self.job.plan
        smallest = self._smallest()
        if max_bytes < smallest:
            graph = f", {len(self.graph.graph):,} of them the graph (graph=False)" if self.graph.graph else ""
            raise ValueError(
                f"max_bytes={max_bytes:,} cannot be met: with a single component, all that is not a label takes "
                f"{smallest:,} bytes{graph}. Ask for more, or lower the precision of the deterministic tensors."
            )
        before = copy.deepcopy((self.job.model, self.job.likelihood))
        with whole(name, plan.shares_of_try(self.batches), enabled=self.job.progress) as part:
            if plan.epochs:
                with part("sharing"):
                    self._train_within(max_bytes, smallest, name)
            else:
                with part("untrained"):
                    self._label_within(max_bytes, smallest, list(self.job.train_loader))
            self._refit_noise()
            shared = self.measure(name, started)
            if plan.finetune_epochs and plan.epochs:
                with part("fine-tuning"):
                    self._finetune(max_bytes, f"{name}-finetune", shared)
            if plan.epochs and shared and self.report.stages[-1].metrics["nll"] > self.start["nll"] + LOST:
                with part("untrained"):
                    self._compare_untrained(max_bytes, smallest, before)
        if plan.calibrate:
            started = time.monotonic()
            assert self.job.validation_loader is not None
            found = calibrate(
                self.job.model,
                self.job.validation_loader,
                likelihood=self.job.likelihood,
                samples=plan.samples,
                seed=plan.seed,
                progress=self.job.progress,
            )
            told = f"temperature {found.temperature:.4g}, {found.mean_temperature:.4g} of the means"
            self.measure("calibration", started, f"sigmas times {found.factor:.3f}; {told}")
        return self.report.stages[-1].metrics

    def _train_within(self, max_bytes: int, smallest: int, name: str) -> None:
        """Training that alternates with new labels, which are then frozen."""
        plan = self.job.plan
        make_latent(self.job.model, plan.components)
        steering = Steering(
            self.job.model,
            Rate(components=plan.components),
            max_bytes=max_bytes,
            smallest=smallest,
            size_of=self.final_size,
            renew_every=plan.renew_every,
            anneal=plan.anneal,
        )
        self._fit(f"{name}-fit", epochs=plan.epochs, lr=plan.lr, rho_lr=plan.rho_lr, on_step=steering)
        self.distortion = steering.freeze()

    def _label_within(self, max_bytes: int, smallest: int, batches: list[Any]) -> None:
        """Labels without training, the norms' statistics and the values taken after them."""
        job, plan = self.job, self.job.plan
        self.distortion = share_untrained(
            job.model,
            batches,
            components=plan.components,
            max_bytes=max_bytes,
            smallest=smallest,
            size_of=self.size_of,
        )
        renew_norms(job.model, batches)
        before = copy.deepcopy(job.model)
        refit(
            job.model,
            batches,
            likelihood=job.likelihood,
            epochs=PASSES * plan.finetune_epochs,
            lr=RELATIVE * plan.finetune_lr,
            progress=job.progress,
        )
        if self.size_of(copy.deepcopy(job.model)) > max_bytes:  # codes of labels follow the means
            adopt(job.model, before)

    def _compare_untrained(self, max_bytes: int, smallest: int, posterior: _Kept) -> None:
        """Where training lost much, labels without training may lose less: with few data, above all."""
        started, job, distortion = time.monotonic(), self.job, self.distortion
        trained, metrics = copy.deepcopy((job.model, job.likelihood)), self.report.stages[-1].metrics
        self._take(copy.deepcopy(posterior))
        plan = job.plan
        batches = answered(
            job.train_loader, [posterior[0]], job.likelihood, batches=plan.fisher_batches, seed=plan.seed
        )
        self._label_within(max_bytes, smallest, batches)
        self._refit_noise()
        if self.measure("untrained", started)["nll"] >= metrics["nll"]:
            self._take(trained)
            self.distortion = distortion
            why = f"taken back: nll {self.report.stages[-1].metrics['nll']:.4f}"
            self.report.stages[-1] = self.report.stages[-1]._replace(metrics=metrics, note=why)

    def _finetune(self, max_bytes: int, name: str, before: dict[str, float]) -> None:
        """Stage 3: train all but the labels; taken back if validation data prefer what was before, or if it outgrows
        the budget.
        """
        started, plan = time.monotonic(), self.job.plan
        shared = copy.deepcopy((self.job.model, self.job.likelihood))
        settings = {
            "lr": plan.finetune_lr,
            "rho_lr": plan.finetune_lr,
            "validation": self.job.validation_loader,
        }
        self._fit(name, epochs=plan.finetune_epochs, **settings)
        after, size = self.measure("fine-tuning", started), self.size_of(copy.deepcopy(self.job.model))
        why = ""
        if size > max_bytes:
            why = f"taken back: {size:,} bytes"
        elif after and after["nll"] > before["nll"]:
            why = f"taken back: nll {after['nll']:.4f}"
        if why:
            self._take(shared)
            self.report.stages[-1] = self.report.stages[-1]._replace(metrics=before, note=why)

    def _take(self, kept: _Kept) -> None:
        """Be again what was kept."""
        model, likelihood = kept
        adopt(self.job.model, model)
        if self.job.likelihood is not None and likelihood is not None:
            self.job.likelihood.load_state_dict(likelihood.state_dict())
            keep_noise(self.job.model, self.job.likelihood)

    def _refit_noise(self) -> None:
        """The noise of a regression, by validation data."""
        job, plan = self.job, self.job.plan
        refit_noise(job.model, job.validation_loader, job.likelihood, samples=plan.samples, seed=plan.seed)
        keep_noise(job.model, job.likelihood)

    def search(self, part: Callable[[str], AbstractContextManager[None]]) -> None:
        """The smallest file whose loss on validation data keeps the budget: bisection of the size, in logarithms."""
        before = self.report.stages[0].metrics
        posterior = copy.deepcopy(self.job.model)
        weights = sum(s.moments.mu.numel() for s in stochastic_weights(posterior))
        low, high = math.log(self._smallest()), math.log(self._smallest() + weights * MOST_BITS / 8)
        size, best = math.log(self._smallest() + weights * FIRST_BITS / 8), None
        losses, distortion = list[str](), 0.0
        for name in (f"try {number + 1}" for number in range(self.job.plan.tries)):
            adopt(self.job.model, copy.deepcopy(posterior))
            give_scales(self.job.model, Scales())
            with part(name):
                metrics = self.share_within(int(math.exp(size)), name)
            losses.append(f"{int(math.exp(size)):,} bytes: {told(metrics)}")
            if self.job.budget.kept(before, metrics):
                best, high, distortion = copy.deepcopy(self.job.model), size, self.distortion
            else:
                low = size
            size = (low + high) / 2
        if best is None:
            raise ValueError(
                f"the budget cannot be met in {self.job.plan.tries} tries. Reached: {'; '.join(losses)}."
            )
        scales = scales_of(best)
        adopt(self.job.model, best)
        give_scales(self.job.model, scales)
        if isinstance(self.job.likelihood, Homoscedastic) and scales.noise is not None:
            self.job.likelihood.set_sigma(scales.noise)
        self.distortion = distortion

    # --- small things --------------------------------------------------------------------------------------------

    def _smallest(self) -> int:
        """Bytes of the file when every weight shares one component: all but the labels."""
        trial = copy.deepcopy(self.job.model)
        share(trial, ONE_COMPONENT)
        return self.size_of(trial)

    def pocket(self, model: nn.Module, **reserved: Any) -> Pocket:
        metadata = {**reserved, **(self.job.metadata or {})}
        return replace(
            to_pocket(model, precision=self.job.precision, metadata=metadata), graph=self.graph.graph
        )

    def encoded(self, twin: nn.Module) -> Encoded:
        """The file of a copy of the model, whose norms are folded here; scales that will be known at the end have
        room in it.
        """
        fold_statistics(twin)
        noise = _NOISE.metadata() if isinstance(self.job.likelihood, Homoscedastic) else {}
        temperatures = _RESERVED.metadata() if self.job.plan.calibrate else {}
        return encode(self.pocket(twin, **noise, **temperatures))

    def size_of(self, twin: nn.Module) -> int:
        return len(self.encoded(twin).data) + self._spare()

    def _spare(self) -> int:
        """Bytes for what scales that will be known at the end may take beyond those that have room."""
        later = self.job.plan.calibrate or isinstance(self.job.likelihood, Homoscedastic)
        return _DEFLATED if later else 0

    def final_size(self, twin: nn.Module) -> int:
        """Bytes of the file when all training is done, nearly: norms count their batches, and long numbers take more
        bytes; codes of labels follow the means.
        """
        left = (
            self.job.plan.finetune_epochs * len(self.job.lessons)
            if isinstance(self.job.lessons, Sized)
            else 0
        )
        for norm in (m for m in twin.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)):
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked += left
        found = self.encoded(twin)
        moved = len(found.data) // RESERVE if left and found.in_contexts else 0
        return len(found.data) + moved + self._spare()

    def _fit(self, name: str, **settings: Any) -> None:
        self.report.histories[name] = fit(
            self.job.model,
            self.job.lessons,
            likelihood=self.job.likelihood,
            num_data=self.job.num_data,
            temperature=self.temperature,
            anneal=0.0,
            seed=self.job.plan.seed,
            validation_samples=self.job.plan.samples,
            checkpoint=self._checkpoint(name),
            progress=self.job.progress,
            **_speed(self.job.plan),
            **settings,
        )

    def _checkpoint(self, name: str) -> Path | None:
        """That stage's file."""
        return None if self.claim is None else self.claim.checkpoint(name)
