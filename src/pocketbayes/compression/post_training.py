"""Compression without training: channels in one unit, labels that make up for each other, norms taken anew, the
codebook refitted.

All of it needs inputs alone: what is to be right is what the network itself answered.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.compression.channels import scale_channels
from pocketbayes.compression.steering import ONE_COMPONENT
from pocketbayes.data.loaders import HeldPortion, part
from pocketbayes.likelihood import Likelihood, as_likelihood, unpack
from pocketbayes.moments import Moments
from pocketbayes.posterior.draws import mean_weights
from pocketbayes.posterior.surgery import adopt
from pocketbayes.prediction.inputs import device_of, unlabelled
from pocketbayes.runs import randomness, ranks
from pocketbayes.runs.progress import track
from pocketbayes.sharing.compensate import compensated_labels, factor, input_moments
from pocketbayes.sharing.evidence import coarsen, gather_evidence
from pocketbayes.sharing.install import install
from pocketbayes.sharing.labels import label_weights
from pocketbayes.sharing.rate import Rate, fit_bits, fit_codebook
from pocketbayes.sharing.share import require_mean_field, share
from pocketbayes.training.distillation import frozen

ROUNDS = 8  # of labels, each nearer to the budget
ENOUGH = (
    "A few hundred inputs, labelled or not, are enough for epochs=0, a few thousand with labels for training."
)
FILLED = 0.99  # of the budget is near enough
PASSES = 5  # over the inputs, in refitting, for an epoch of fine-tuning
RELATIVE = (
    10.0  # the step of refitting, in fractions of a tensor's scale, for the learning rate of fine-tuning
)
SMALLEST = 1e-3  # a scale: tensors may be zero
SHARP = 0.1  # of a sigma, in choosing labels: the part that sigmas have in (18) falls with its square

_Norm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def answered(
    loader: Iterable[Any],
    teachers: list[nn.Module],
    likelihood: Likelihood | None,
    *,
    batches: int | None,
    seed: int = 0,
) -> list[Any]:
    """This rank's batches, with the mean of the teachers' answers for targets; labels, if any, are left aside."""
    teachers, likelihood, found = list(map(frozen, teachers)), as_likelihood(likelihood), HeldPortion()
    with randomness.forked(seed):  # of a loader that shuffles
        for batch in unlabelled(part(loader, batches), device_of(teachers[0])):
            answers = [likelihood.answer(teacher(*batch.args, **batch.kwargs)) for teacher in teachers]
            target = torch.stack(answers).mean(0)
            found.append({**batch.kwargs, "target": target} if batch.kwargs else (*batch.args, target))
    if not all(ranks.gather(len(found))):
        lacks = "is empty" if ranks.count() == 1 else f"has fewer batches than the {ranks.count()} processes"
        raise ValueError(f"compress: the loader {lacks}. {ENOUGH}")
    return found


def share_untrained(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    components: int,
    max_bytes: int,
    smallest: int,
    size_of: Callable[[nn.Module], int],
) -> float:
    """Share a mean-field posterior in place, within the budget; returns the distortion of its means in nats.

    Args:
        smallest: bytes of the file with a single component.
        size_of: bytes of the file of a shared model.
    """
    scale_channels(model)
    plan = _Labelling(model, loader, components)
    bits = 8.0 * (max_bytes - smallest)
    best: tuple[int, nn.Module, float] | None = None
    for _ in range(ROUNDS):
        trial = copy.deepcopy(model)
        distortion = plan.share(trial, max(8.0, bits))
        size = size_of(copy.deepcopy(trial))
        if size <= max_bytes and (best is None or size > best[0]):
            best = size, trial, distortion
        if FILLED * max_bytes <= size <= max_bytes:
            break
        bits *= max(0.1, (0.5 * (1 + FILLED) * max_bytes - smallest) / max(1.0, size - smallest))
    if best is None:  # all but labels fill the budget
        return float(share(model, ONE_COMPONENT).distortion or 0.0)
    adopt(model, best[1])
    return best[2]


class _Labelling:
    """A posterior and the correlations of its layers' inputs, to be labelled at different rates.

    What counts is where the means go: sigmas are taken so small that labels hardly tell them apart, each the product
    of an output's and an input's, which a few hundred inputs know better than that of a single weight.
    """

    def __init__(self, model: nn.Module, loader: Iterable[Any], components: int) -> None:
        self.rate = Rate(components=components)
        found = require_mean_field(model)
        moments = input_moments(model, loader)
        self.factors = [factor(moments.pop(s.path)) if s.path in moments else None for s in found]
        self.mu = [site.moments.mu.detach() for site in found]
        self.sigma = [SHARP * by_channels(site.moments.sigma.detach()) for site in found]
        pairs = zip(self.sigma, self.factors, strict=True)
        self.conditional = [sigma if f is None else f.conditional(sigma) for sigma, f in pairs]
        self.evidence = gather_evidence(self.mu, self.conditional)
        self.coarse = coarsen(self.evidence)

    def share(self, model: nn.Module, max_bits: float) -> float:
        """Labels that take about so many bits, in place; returns the distortion of the means in nats."""
        rough, lambda_ = fit_bits(self.coarse, max_bits, self.rate)
        rate = replace(self.rate, lambda_=lambda_)
        fit = fit_codebook(self.evidence, rate, rough.code)
        result = label_weights(fit.code, self.mu, self.conditional, rate)
        code = result.fit.code
        book = code.codebook._replace(sigma=own_sigmas(self.sigma, result.labels, code.codebook.components))
        weights = [Moments(*pair) for pair in zip(self.mu, self.sigma, strict=True)]
        labelled = compensated_labels(weights, self.factors, code._replace(codebook=book), rate)
        found, labels = require_mean_field(model), [layer.labels for layer in labelled]
        sigma = own_sigmas([site.moments.sigma for site in found], labels, book.components)
        with torch.no_grad():
            for site, layer in zip(found, labelled, strict=True):
                site.original.copy_(layer.mu)  # where outliers stay
        install(model, found, book._replace(sigma=sigma), labels, [None] * len(found))
        return sum(layer.distortion for layer in labelled) * SHARP**2


def by_channels(sigma: Tensor) -> Tensor:
    """Sigmas [R, ...] whose precisions are products of an output's and an input's, with the sums that they had."""
    tau = sigma.flatten(1).double().pow(-2)
    product = tau.sum(1, keepdim=True) * (tau.sum(0, keepdim=True) / tau.sum())
    return product.rsqrt().to(sigma).view_as(sigma)


def own_sigmas(sigmas: Sequence[Tensor], labels: Sequence[Tensor], components: int) -> Tensor:
    """[K] the sigma of each component's members: the root of the harmonic mean of their variances; 1 without any."""
    sums = torch.zeros(2, components + 1, dtype=torch.float64)  # of 1 and of 1 / sigma^2
    for sigma, label in zip(sigmas, labels, strict=True):
        tau = sigma.detach().cpu().double().pow(-2).reshape(-1)
        for total, x in zip(sums, (torch.ones_like(tau), tau), strict=True):
            total.index_add_(0, label.reshape(-1).int(), x)
    return torch.where(sums[0] > 0, sums[0] / sums[1], 1.0).sqrt()[:-1]


def renew_norms(model: nn.Module, loader: Iterable[Any]) -> None:
    """The statistics of every BatchNorm as the weights' means make them on these batches, and those of other ranks,
    in place.
    """
    norms = [m for m in model.modules() if isinstance(m, _Norm) and m.running_mean is not None]
    if not norms:
        return
    momenta, was_training = [norm.momentum for norm in norms], model.training
    counted = [None if n.num_batches_tracked is None else n.num_batches_tracked.clone() for n in norms]
    model.eval()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
            norm.train()
        with torch.no_grad(), mean_weights(model):
            seen = 0
            for batch in unlabelled(loader, device_of(model)):
                model(*batch.args, **batch.kwargs)
                seen += 1
        ranks.average(
            [t for n in norms for t in (n.running_mean, n.running_var) if t is not None], weight=seen
        )
    finally:
        for norm, momentum, count in zip(norms, momenta, counted, strict=True):
            norm.momentum = momentum
            if count is not None:
                norm.num_batches_tracked = count
        model.train(was_training)


def refit(
    model: nn.Module,
    batches: list[Any],
    *,
    likelihood: Likelihood | None,
    epochs: int,
    lr: float,
    progress: bool,
) -> None:
    """Move the values that labels stand for, and all that is deterministic, towards the targets, in place.

    In evaluation mode, through the means, in steps of so many times the root mean square of each tensor: codebooks and
    norms live on different scales.  Kept only if it is better on these batches.  Of several ranks each has batches of
    its own, and a step is one batch of each.
    """
    likelihood, parameters = as_likelihood(likelihood), _values(model)
    rounds = max(ranks.gather(len(batches)))
    given = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.Adam([{"params": [p], "lr": lr * _scale(p)} for p in parameters])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, epochs * rounds))
    was_training = model.training
    model.eval()

    def loss_of(raw: Any) -> Tensor:
        batch = unpack(raw, device_of(model))
        return likelihood.nll(model(*batch.args, **batch.kwargs), batch.target).mean()

    def step(number: int) -> None:
        mine = number < len(batches)
        gradients: Sequence[Tensor | None] = [None] * len(parameters)
        if mine:
            gradients = torch.autograd.grad(loss_of(batches[number]), parameters, allow_unused=True)
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = torch.zeros_like(p) if g is None else g
        ranks.average([p.grad for p in parameters if p.grad is not None], weight=float(mine))
        optimizer.step()
        schedule.step()

    @torch.no_grad()
    def judged() -> float:
        return sum(ranks.gather(sum(loss_of(raw).item() for raw in batches)))

    try:
        with mean_weights(model):
            before = judged()
            for _ in range(epochs):
                for number in track(range(rounds), "refit", enabled=progress):
                    step(number)
            if epochs and not judged() < before:
                with torch.no_grad():
                    for p, value in zip(parameters, given, strict=True):
                        p.copy_(value)
    finally:
        optimizer.zero_grad(set_to_none=True)
        model.train(was_training)


def _scale(p: Tensor) -> float:
    return max(SMALLEST, float(p.detach().square().mean().sqrt())) if p.numel() else 1.0


def _values(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that are trained but for sigmas."""
    return [p for name, p in model.named_parameters() if p.requires_grad and name.split(".")[-1] != "rho"]
