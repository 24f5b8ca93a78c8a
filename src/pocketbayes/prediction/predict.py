"""Draws reduced to predictions that say how sure they are, and their evaluation on a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pocketbayes import metrics
from pocketbayes.likelihood import (
    TARGET_KEYS,
    Batch,
    Categorical,
    Heteroscedastic,
    Homoscedastic,
    Likelihood,
    as_likelihood,
    output_tensor,
    unpack,
)
from pocketbayes.prediction.ensemble import Ensemble
from pocketbayes.runs.progress import track

if TYPE_CHECKING:
    from pocketbayes.data import Scaling


@dataclass(frozen=True, kw_only=True)
class Predictive:
    """Classification: p(y | x), the mean over draws of probabilities, and how its entropy splits (nats).

    entropy = aleatoric + epistemic: the part that every draw agrees on, and the part from their disagreement.
    """

    probs: Tensor  # [N, C]
    entropy: Tensor  # [N]
    aleatoric: Tensor  # [N]
    epistemic: Tensor  # [N]
    draws: Tensor | None = None  # [S, N, C], on request

    @property
    def labels(self) -> Tensor:
        return self.probs.argmax(1)

    @property
    def confidence(self) -> Tensor:
        return self.probs.max(1).values


@dataclass(frozen=True, kw_only=True)
class Regression:
    """Regression: the predictive mean, its variance, and the part of it that comes from the weights."""

    mean: Tensor  # [N, ...]
    var: Tensor  # total: epistemic plus the likelihood's noise
    epistemic_var: Tensor
    draws: Tensor | None = None  # [S, N, ...] means, on request
    sigmas: Tensor | None = None  # [S, N, ...] noise of each draw, on request


def in_units(answer: Regression, scaling: Scaling | None) -> Regression:
    """A prediction of standardised targets in the units of the data, float64."""
    if scaling is None:
        return answer
    mean, std = scaling.mean.double(), scaling.std.double()
    return replace(
        answer,
        mean=answer.mean * std + mean,
        var=answer.var * std.square(),
        epistemic_var=answer.epistemic_var * std.square(),
        draws=None if answer.draws is None else answer.draws * std + mean,
        sigmas=None if answer.sigmas is None else answer.sigmas * std,
    )


def predict(
    model: nn.Module,
    x: Any,
    *,
    samples: int = 30,
    seed: int = 0,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    batch_size: int = 256,
    draws: bool = False,
    max_bytes: int = 2 << 30,
    progress: bool = False,
) -> Any:
    """What the model says about `x`, averaged over `samples` draws of its weights.

    The draws depend on the seed alone, and are the same for every input.  Returns a `Predictive` for a categorical
    likelihood (the default), a `Regression` for a Homoscedastic or
    Heteroscedastic one, and the outputs themselves, [S, N, ...], for any other.

    Args:
        x: a tensor, a tuple of tensors or a dict of tensors, the examples along the first axis.
        draws: keep what each draw said.
        max_bytes: memory for drawn weights; sets beyond it are made again for each batch.
    """
    device = next((p.device for p in model.parameters()), None)
    inputs = [_to_device(batch, device) for batch in _slices(x, batch_size)]
    ensemble = Ensemble(model, samples=samples, seed=seed, max_bytes=max_bytes)
    reduce = reducer(Categorical() if likelihood is None else as_likelihood(likelihood), keep=draws)
    return reduce.join(
        [reduce(ensemble.outputs(*b.args, **b.kwargs)) for b in track(inputs, "predict", enabled=progress)]
    )


def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    samples: int = 30,
    seed: int = 0,
    ood: Iterable[Any] | None = None,
    max_bytes: int = 2 << 30,
    progress: bool = False,
) -> Evaluation:
    """How good and how honest the predictions are: accuracy, NLL, ECE, Brier ...; RMSE and NLL for regression.

    With `ood`, batches of foreign inputs, also how well uncertainty tells them apart: AUROC, AUPR and the
    false-positive rates at 85 % and 95 % true positives, by predictive entropy.  They are tensors, or batches as in
    `loader`: the last of a tuple, and a dict's labels, are left aside.  A deterministic model is evaluated in one pass.
    """
    likelihood = Categorical() if likelihood is None else as_likelihood(likelihood)
    ensemble = Ensemble(model, samples=samples, seed=seed, max_bytes=max_bytes)
    reduce = reducer(likelihood, keep=not isinstance(likelihood, Categorical))
    device = next((p.device for p in model.parameters()), None)
    parts, targets = [], []
    for number, raw in enumerate(track(loader, "evaluate", enabled=progress)):
        batch = unpack(raw, device)
        _require_finite(batch, number)
        parts.append(reduce(ensemble.outputs(*batch.args, **batch.kwargs)))
        targets.append(batch.target)
    if not parts:
        raise ValueError("The loader to evaluate on is empty. Pass one with at least one batch.")
    result = Evaluation(reduce.score(reduce.join(parts), torch.cat(targets)))
    if ood is not None:
        result |= _out_of_distribution(ensemble, reduce, reduce.join(parts), ood, device)
    return result


class Evaluation(dict[str, float]):
    """Metrics by name; also as attributes, and printable."""

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no metric {name!r}; there are {', '.join(self)}") from None

    def __str__(self) -> str:
        return "  ".join(f"{name} {value:.4f}" for name, value in self.items())


def _out_of_distribution(
    ensemble: Ensemble, reduce: Reducer, inside: Any, ood: Iterable[Any], device: torch.device | None
) -> dict[str, float]:
    if not isinstance(inside, Predictive):
        raise ValueError("ood= needs a categorical likelihood: it ranks inputs by predictive entropy.")
    parts = []
    for number, raw in enumerate(ood):
        batch = _inputs_of(raw, device)
        _require_finite(batch, number)
        parts.append(reduce(ensemble.outputs(*batch.args, **batch.kwargs)))
    if not parts:
        raise ValueError("ood= is empty. Pass batches of out-of-distribution inputs.")
    return ood_scores(inside, reduce.join(parts))


def ood_scores(inside: Predictive, outside: Predictive) -> dict[str, float]:
    """How well predictive entropy tells out-of-distribution inputs from those of the data."""
    return {
        "auroc": metrics.auroc(inside.entropy, outside.entropy),
        "aupr": metrics.aupr(inside.entropy, outside.entropy),
        "fpr85": metrics.fpr_at_tpr(inside.entropy, outside.entropy, 0.85),
        "fpr95": metrics.fpr_at_tpr(inside.entropy, outside.entropy, 0.95),
    }


# --- from the outputs of all draws to one answer ---------------------------------------------------------------


class Reducer:
    """Outputs of a batch, draw by draw -> an answer; answers of batches -> one; answer and targets -> metrics.

    This one knows nothing of the likelihood and keeps all outputs, [S, N, ...]; the score is the log-mean-exp NLL.
    """

    def __init__(self, likelihood: Likelihood, keep: bool) -> None:
        self.likelihood = likelihood
        self.keep = keep

    def __call__(self, outputs: Iterator[Any]) -> Any:
        return torch.stack([output_tensor(output) for output in outputs])

    def join(self, parts: Sequence[Any]) -> Any:
        return torch.cat(list(parts), dim=1)

    def score(self, answer: Any, target: Tensor) -> dict[str, float]:
        log_p = -torch.stack([self.likelihood.nll(output, target) for output in answer])  # [S, N]
        if log_p.shape[1] != len(target):
            raise ValueError(
                f"The likelihood gives {log_p.shape[1]} value{'s' * (log_p.shape[1] != 1)} for {len(target)} examples. "
                "An average over draws needs -ln p of each example: return them all, as with reduction='none'."
            )
        return {"nll": -_log_mean_exp(log_p).mean().item()}


class _Classes(Reducer):
    """Running means over draws: nothing of size S is kept unless asked for."""

    likelihood: Categorical

    def __call__(self, outputs: Iterator[Any]) -> Predictive:
        probs = entropies = torch.zeros(())
        kept, count = [], 0
        for output in outputs:
            logits = self.likelihood.logits(output).movedim(1, -1)
            p = logits.flatten(0, -2).double().softmax(-1)  # [N, C]
            probs, entropies, count = probs + p, entropies + torch.special.entr(p).sum(-1), count + 1
            if self.keep:
                kept.append(p)
        split = metrics.uncertainty_from_means(probs / count, entropies / count)
        return Predictive(
            probs=probs / count,
            entropy=split.total,
            aleatoric=split.aleatoric,
            epistemic=split.epistemic,
            draws=torch.stack(kept) if self.keep else None,
        )

    def join(self, parts: Sequence[Predictive]) -> Predictive:
        return Predictive(
            probs=torch.cat([p.probs for p in parts]),
            entropy=torch.cat([p.entropy for p in parts]),
            aleatoric=torch.cat([p.aleatoric for p in parts]),
            epistemic=torch.cat([p.epistemic for p in parts]),
            draws=torch.cat([p.draws for p in parts if p.draws is not None], dim=1) if self.keep else None,
        )

    def score(self, answer: Predictive, target: Tensor) -> dict[str, float]:
        target = target.flatten()
        counted = target != self.likelihood.ignore_index
        probs, labels = answer.probs[counted], target[counted]
        return {
            "accuracy": metrics.accuracy(probs, labels),
            "nll": metrics.nll(probs, labels),
            "ece": metrics.ece(probs, labels),
            "brier": metrics.brier(probs, labels),
            "entropy": answer.entropy[counted].mean().item(),
            "epistemic": answer.epistemic[counted].mean().item(),
        }


class _Normals(Reducer):
    """Means and noise of every draw; the total variance is E[sigma^2] + Var[mean]."""

    def _split(self, output: Any) -> tuple[Tensor, Tensor]:
        if isinstance(self.likelihood, Heteroscedastic):
            mean, sigma = self.likelihood.split(output)
            return mean.double(), sigma.double()
        assert isinstance(self.likelihood, Homoscedastic)
        mean = output_tensor(output).double()
        return mean, self.likelihood.sigma.detach().to(mean).expand_as(mean)

    def __call__(self, outputs: Iterator[Any]) -> Regression:
        pairs = [self._split(output) for output in outputs]
        means, sigmas = torch.stack([m for m, _ in pairs]), torch.stack([s for _, s in pairs])  # [S, N, ...]
        epistemic = means.var(0, correction=0)
        return Regression(
            mean=means.mean(0),
            var=epistemic + sigmas.square().mean(0),
            epistemic_var=epistemic,
            draws=means if self.keep else None,
            sigmas=sigmas if self.keep else None,
        )

    def join(self, parts: Sequence[Regression]) -> Regression:
        return Regression(
            mean=torch.cat([p.mean for p in parts]),
            var=torch.cat([p.var for p in parts]),
            epistemic_var=torch.cat([p.epistemic_var for p in parts]),
            draws=torch.cat([p.draws for p in parts if p.draws is not None], 1) if self.keep else None,
            sigmas=torch.cat([p.sigmas for p in parts if p.sigmas is not None], 1) if self.keep else None,
        )

    def score(self, answer: Regression, target: Tensor) -> dict[str, float]:
        assert answer.draws is not None and answer.sigmas is not None
        target = target.to(answer.mean).reshape(answer.mean.shape)
        z = (target - answer.draws) / answer.sigmas
        log_p = -0.5 * z.square() - answer.sigmas.log() - 0.5 * torch.log(torch.tensor(2 * torch.pi))
        log_p = log_p.flatten(2).sum(2) if log_p.ndim > 2 else log_p  # [S, N]
        return {
            "rmse": metrics.rmse(answer.mean, target),
            "nll": -_log_mean_exp(log_p).mean().item(),
            "sigma": answer.var.sqrt().mean().item(),
            "epistemic_sigma": answer.epistemic_var.sqrt().mean().item(),
        }


def reducer(likelihood: Likelihood, *, keep: bool) -> Reducer:
    if isinstance(likelihood, Categorical):
        return _Classes(likelihood, keep)
    if isinstance(likelihood, (Homoscedastic, Heteroscedastic)):
        return _Normals(likelihood, keep)
    return Reducer(likelihood, keep)


def _log_mean_exp(log_p: Tensor) -> Tensor:
    """ln of the mean over draws: [S, N] -> [N]."""
    return log_p.logsumexp(0) - torch.log(torch.tensor(float(len(log_p))))


# --- inputs ----------------------------------------------------------------------------------------------------


def _inputs_of(raw: Any, device: torch.device | None) -> Batch:
    """A batch of inputs, whose labels, if any, are left aside."""
    if isinstance(raw, Tensor):
        return _to_device(Batch((raw,), {}, None), device)
    if isinstance(raw, Mapping):
        return _to_device(Batch((), {k: v for k, v in raw.items() if k not in TARGET_KEYS}, None), device)
    return unpack(raw, device) if len(raw) > 1 else _to_device(Batch((raw[0],), {}, None), device)


def _slices(x: Any, size: int) -> Iterator[Batch]:
    args = (x,) if isinstance(x, Tensor) else tuple(x) if isinstance(x, (tuple, list)) else ()
    kwargs = dict(x) if isinstance(x, Mapping) else {}
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    if not tensors or len(tensors[0]) == 0:
        raise ValueError(
            "Nothing to predict: give a tensor (or a tuple or dict of them) with at least one example."
        )
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, got {size}.")
    _require_finite(Batch(args, kwargs, None), 0)
    for start in range(0, len(tensors[0]), size):
        part = slice(start, start + size)
        yield Batch(
            tuple(t[part] if isinstance(t, Tensor) else t for t in args),
            {k: t[part] if isinstance(t, Tensor) else t for k, t in kwargs.items()},
            None,
        )


def _to_device(batch: Batch, device: torch.device | None) -> Batch:
    if device is None:
        return batch
    return Batch(
        tuple(t.to(device) if isinstance(t, Tensor) else t for t in batch.args),
        {k: t.to(device) if isinstance(t, Tensor) else t for k, t in batch.kwargs.items()},
        batch.target,
    )


def _require_finite(batch: Batch, number: int) -> None:
    for name, t in (*enumerate(batch.args), *batch.kwargs.items()):
        if isinstance(t, Tensor) and t.is_floating_point() and not bool(torch.isfinite(t).all()):
            example = int((~torch.isfinite(t)).reshape(len(t), -1).any(1).nonzero()[0])
            raise ValueError(
                f"Input {name!r} of batch {number} has NaN or infinity, first in example {example}. "
                "Clean the data before predicting."
            )
