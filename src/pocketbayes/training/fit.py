"""`fit`: a posterior by the ELBO; `fit_map`: its limit of zero width, one set of weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import count_examples
from pocketbayes.likelihood import Likelihood
from pocketbayes.posterior.convert import reason_to_skip, to_deterministic
from pocketbayes.posterior.draws import mean_weights
from pocketbayes.posterior.priors import GaussianPrior, scale_of
from pocketbayes.posterior.surgery import parameters_with_owners
from pocketbayes.posterior.weights import require_bayesian, stochastic_weights
from pocketbayes.runs import randomness
from pocketbayes.training.history import Epoch, History, Settings
from pocketbayes.training.loop import OptimizerFactory, Run, ScheduleFactory


def fit(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    epochs: int,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    num_data: int | None = None,
    lr: float = 1e-3,
    rho_lr: float | None = None,
    optimizer: OptimizerFactory | None = None,
    schedule: ScheduleFactory | None = None,
    samples: int = 1,
    temperature: float = 1.0,
    anneal: float = 0.3,
    clip: float | None = None,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    validation: Iterable[Any] | None = None,
    patience: int | None = None,
    validation_samples: int = 8,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    seed: int = 0,
    progress: bool = True,
    on_step: Callable[[float], None] | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> History:
    """Train the posterior: minimise mean NLL + (temperature / num_data) KL over the loader's batches.

    Random numbers come from `seed` alone, and the caller's generators are left as they were.  With `validation`, the
    model ends as it was after its best epoch by validation NLL.  With `checkpoint`, a killed run called again goes on
    where it was, and ends with the same bits as one that was never killed.

    Args:
        likelihood: `Categorical()` by default; `Gaussian(...)`, `Heteroscedastic()`, or a function of (output, target).
        num_data: examples in the training set; told by the loader's data set where it has a length.
        lr, rho_lr: Adam's learning rates for the means (and everything deterministic) and for rho (default 10 lr).
        optimizer, schedule: make another optimizer from parameter groups, and a schedule stepped after every step;
            by default Adam with a cosine to zero.
        samples: draws a step.
        temperature: the final weight of the KL.  1 is the ELBO; less is a tempered ("cold") posterior, which large
            networks on few data often need: choose it on validation data.
        anneal: the share of all steps in which the weight of the KL rises from 0 to `temperature`.
        clip: largest norm of the gradient.  accumulate: batches a step.  autocast: e.g. `torch.bfloat16`.
        patience: stop after so many epochs without a better validation NLL, counted once the KL has its final weight.
        checkpoint: a file, written at every epoch and every `checkpoint_seconds`.
        on_step: called after each step with the share of all steps done; if it has `state_dict` and
            `load_state_dict`, its state is kept in checkpoints.  on_epoch: called with each finished epoch.
    """
    require_bayesian(model)
    settings = Settings(
        epochs=epochs,
        num_data=num_data if num_data is not None else count_examples(loader),
        lr=lr,
        rho_lr=10 * lr if rho_lr is None else rho_lr,
        samples=samples,
        temperature=temperature,
        anneal=anneal,
        clip=clip,
        accumulate=accumulate,
        patience=patience,
        validation_samples=validation_samples,
        seed=seed,
    )
    run = Run(model, loader, settings, likelihood, optimizer, schedule, autocast, validation, checkpoint)
    run.on_step = on_step
    with randomness.forked():
        return run.go(checkpoint_seconds, progress, on_epoch)


def fit_map(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    epochs: int,
    prior: GaussianPrior | None = None,
    likelihood: Likelihood | Callable[[Any, Any], Tensor] | None = None,
    num_data: int | None = None,
    lr: float = 1e-3,
    optimizer: OptimizerFactory | None = None,
    schedule: ScheduleFactory | None = None,
    clip: float | None = None,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    validation: Iterable[Any] | None = None,
    patience: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 60.0,
    seed: int = 0,
    progress: bool = True,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> History:
    """Train one set of weights, the mode of the posterior: minimise mean NLL - ln p(w) / num_data.

    A plain model is trained as it is, with `prior` on the weights that `bayesianize` would convert, or with none.  Of a
    Bayesian model the means are trained, under its own prior, its widths left alone and its fixed weights fixed.  All
    else is as in `fit`; the history's `kl` is -ln p(w) without its constant.
    """
    settings = Settings(
        epochs=epochs,
        num_data=num_data if num_data is not None else count_examples(loader),
        lr=lr,
        rho_lr=0.0,
        samples=1,
        temperature=1.0,
        anneal=0.0,
        clip=clip,
        accumulate=accumulate,
        patience=patience,
        validation_samples=1,
        seed=seed,
    )
    run = Run(model, loader, settings, likelihood, optimizer, schedule, autocast, validation, checkpoint)
    run.draw = lambda _: mean_weights(model)
    run.penalty = negative_log_prior(model, prior)
    if stochastic_weights(model):
        run.judged = lambda: to_deterministic(model)
    with randomness.forked():
        return run.go(checkpoint_seconds, progress, on_epoch)


def negative_log_prior(model: nn.Module, prior: GaussianPrior | None) -> Callable[[], Tensor]:
    """A function that returns -ln p(w) up to a constant, in nats: sum of (w - m)^2 / (2 s^2) over the weights."""
    bayesian = stochastic_weights(model)
    if bayesian and prior is not None:
        raise ValueError("fit_map: a Bayesian model has its priors already. Leave prior= out.")
    if bayesian:
        return lambda: torch.stack(
            [_half_square(s.moments.mu, s.weight.prior_mu, s.weight.prior_sigma) for s in bayesian]
        ).sum()
    weights = [p.tensor for p in parameters_with_owners(model) if _has_prior(p)]
    if prior is None or not weights:
        return lambda: next(model.parameters()).new_zeros(())
    terms = [(w, prior.mean(w), scale_of(prior.sigma, w)) for w in weights]
    return lambda: torch.stack([_half_square(*term) for term in terms]).sum()


def _has_prior(parameter: Any) -> bool:
    return reason_to_skip(parameter, where=None, biases=False, norms=False) is None


def _half_square(w: Tensor, mean: Tensor | None, sigma: float) -> Tensor:
    return 0.5 * ((w if mean is None else w - mean) / sigma).square().sum()
