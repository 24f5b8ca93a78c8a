"""`fit`: a posterior by the ELBO; `fit_map`: its limit of vanishing sigma, one set of weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import count_examples
from pocketbayes.likelihood import Likelihood, as_likelihood
from pocketbayes.posterior.convert import reason_to_skip, to_deterministic
from pocketbayes.posterior.draws import mean_weights, one_draw
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.priors import GaussianPrior, scale_of
from pocketbayes.posterior.surgery import parameters_with_owners
from pocketbayes.posterior.weights import kl_divergence, require_bayesian, stochastic_weights, unwrap
from pocketbayes.training.compiled import CompiledForward, batch_size_of
from pocketbayes.training.history import Epoch, History, Settings
from pocketbayes.training.loop import OptimizerFactory, ScheduleFactory, Task, TrainingRun, train
from pocketbayes.training.temperature import Tempering, start_sigmas


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
    temperature: float | Literal["auto"] = 1.0,
    noise_cost: float = 0.03,
    anneal: float = 0.3,
    clip: float | None = None,
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    compiled: bool = False,
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

    The model is trained in place, before sharing and after it alike.  Random numbers come from `seed` alone, and the
    caller's generators are left as they were.  With `validation`, the model ends as it was after its best epoch by
    validation NLL.  With `checkpoint`, a killed run called again goes on where it was, and ends with the same bits as
    one that was never killed.  Of several modes each sees every batch, and the loss is the mean of theirs.

    Args:
        model: a network that `bayesianize` converted.
        loader: batches `(x, ..., y)`, or dicts with labels; with a length.
        epochs: passes over the loader.
        likelihood: `Categorical()` by default; `Homoscedastic(...)`, `Heteroscedastic()`, or a function of
            (output, target).
        num_data: examples in the training set; told by the loader's data set where it has a length.
        lr, rho_lr: Adam's learning rates for the means (and everything deterministic) and for rho (default 10 lr).
        optimizer, schedule: make another optimizer from parameter groups, and a schedule stepped after every step;
            by default Adam with a cosine to zero.
        samples: draws a step, of each mode.
        temperature: the final weight of the KL.  1 is the ELBO; less is a tempered ("cold") posterior, which large
            networks on few data often need.  "auto" is that of the noise cost, at most 1: found as `compress` does,
            and, once the KL has its weight, corrected a few times by what noise costs then.
        noise_cost: nats an example that drawing the weights may cost beside their means: with "auto" all the time, else
            at the start, where sigmas that `bayesianize` was not given are made smaller if they cost more.
        anneal: the fraction of all steps in which the weight of the KL rises from 0 to `temperature`.
        clip: largest norm of the gradient.
        accumulate: batches a step.
        autocast: the type that forward passes compute in, e.g. `torch.bfloat16`.
        compiled: compile forward passes and their gradients, which takes a minute or two: for longer training.
        validation: batches held out of training.
        patience: stop after so many epochs without a better validation NLL, counted once the KL has its final weight.
        validation_samples: draws in validation.
        checkpoint, checkpoint_seconds: a file, and how often it is written besides at every epoch.
        seed: of all random numbers.
        progress: show a bar on a terminal.
        on_step: called after each step with the fraction of all steps done; if it has `state_dict` and
            `load_state_dict`, its state is kept in checkpoints.
        on_epoch: called with each finished epoch.

    Returns:
        The epochs with their NLL (nats per example), KL (nats) and validation scores, and which was the best.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> model = pb.bayesianize(torch.nn.Linear(1, 2))
        >>> history = pb.fit(model, [(x, (x[:, 0] > 0).long())], epochs=50, lr=0.1, temperature=0.1)
        >>> history[-1].nll < history[0].nll
        True
    """
    require_bayesian(model)
    settings = Settings(
        epochs=epochs,
        num_data=num_data if num_data is not None else count_examples(loader),
        lr=lr,
        rho_lr=10 * lr if rho_lr is None else rho_lr,
        samples=samples,
        temperature=temperature,
        noise_cost=noise_cost,
        anneal=anneal,
        clip=clip,
        accumulate=accumulate,
        patience=patience,
        validation_samples=validation_samples,
        seed=seed,
    )
    likelihood = as_likelihood(likelihood)
    tempering = Tempering(
        model=unwrap(model),
        loader=loader,
        wanted=noise_cost,
        num_data=settings.num_data,
        likelihood=likelihood,
        validation=validation,
        samples=validation_samples,
        seed=seed,
    )
    task = Task(
        model=model,
        forward=CompiledForward(model, batch_size_of(loader)) if compiled else model,
        loader=loader,
        likelihood=likelihood,
        draw=partial(one_draw, unwrap(model)),
        penalty=kl_divergence,
        judged=lambda: model,
        validation=validation,
        autocast=autocast,
        start_sigmas=partial(
            start_sigmas, unwrap(model), loader, likelihood=likelihood, most=noise_cost, seed=seed
        ),
        tempering=tempering if temperature == "auto" else None,
        on_step=on_step,
    )
    run = partial(TrainingRun, task, settings, optimizer, schedule)
    return train(run, checkpoint, checkpoint_seconds, progress=progress, on_epoch=on_epoch)


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
    compiled: bool = False,
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
    Bayesian model the means are trained, under its own prior, its sigmas left alone and its fixed weights fixed.

    Args:
        model: any network; trained in place.
        loader: batches `(x, ..., y)`, or dicts with labels; with a length.
        epochs: passes over the loader.
        prior: of a plain model's weights, e.g. `ZeroMean(0.1)`.

    All other arguments are those of `fit`.

    Returns:
        The history, as of `fit`; its `kl` is -ln p(w) without its constant, nats.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> history = pb.fit_map(torch.nn.Linear(1, 2), [(x, (x[:, 0] > 0).long())], epochs=50, lr=0.1)
        >>> history[-1].nll < history[0].nll
        True
    """
    settings = Settings(
        epochs=epochs,
        num_data=num_data if num_data is not None else count_examples(loader),
        lr=lr,
        rho_lr=0.0,
        clip=clip,
        accumulate=accumulate,
        patience=patience,
        seed=seed,
    )
    task = Task(
        model=model,
        forward=CompiledForward(model, batch_size_of(loader)) if compiled else model,
        loader=loader,
        likelihood=as_likelihood(likelihood),
        draw=lambda _: mean_weights(model),
        penalty=negative_log_prior(model, prior),
        judged=lambda: to_deterministic(model) if stochastic_weights(model) else model,
        validation=validation,
        autocast=autocast,
        start_sigmas=lambda: None,
        tempering=None,
        on_step=None,
    )
    run = partial(TrainingRun, task, settings, optimizer, schedule)
    return train(run, checkpoint, checkpoint_seconds, progress=progress, on_epoch=on_epoch)


def negative_log_prior(model: nn.Module, prior: GaussianPrior | None) -> Callable[[nn.Module], Tensor]:
    """A function that returns -ln p(w) of the model up to a constant, nats: the sum of (w - m)^2 / (2 s^2),
    or its mean over several modes.
    """
    bayesian = stochastic_weights(model)
    if bayesian and prior is not None:
        raise ValueError("fit_map: a Bayesian model has its priors already. Leave prior= out.")
    if bayesian:
        return lambda _: (
            torch.stack(
                [_half_square(s.moments.mu, s.weight.prior_mu, s.weight.prior_sigma) for s in bayesian]
            ).sum()
            / len(modes_of(model))
        )
    weights = [p.tensor for p in parameters_with_owners(model) if _has_prior(p)]
    if prior is None or not weights:
        return lambda _: next(model.parameters()).new_zeros(())
    terms = [(w, prior.mean(w), scale_of(prior.sigma, w)) for w in weights]
    return lambda _: torch.stack([_half_square(*term) for term in terms]).sum() / len(modes_of(model))


def _has_prior(parameter: Any) -> bool:
    return reason_to_skip(parameter, where=None, biases=False, norms=False) is None


def _half_square(w: Tensor, mean: Tensor | None, sigma: float) -> Tensor:
    return 0.5 * ((w if mean is None else w - mean) / sigma).square().sum()
