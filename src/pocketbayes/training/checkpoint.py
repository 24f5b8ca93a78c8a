"""The checkpoint of a training run: a killed run goes on from it and ends with the same bits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn

from pocketbayes.data.loaders import innermost
from pocketbayes.errors import ArtifactError, ReproducibilityWarning
from pocketbayes.posterior.weights import StochasticWeight, unwrap
from pocketbayes.runs import randomness
from pocketbayes.runs.checkpoint import load_checkpoint, save_checkpoint
from pocketbayes.runs.resume import require_same
from pocketbayes.training.history import Epoch, History

if TYPE_CHECKING:
    from pocketbayes.training.loop import TrainingRun

ADVICE = "Call fit with the same arguments, or delete the file to start afresh."


@runtime_checkable
class Stateful(Protocol):
    """What has a state of its own to keep in checkpoints."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def save(path: Path, run: TrainingRun) -> None:
    """Everything that the rest of the run depends on, in one file."""
    state, on_step = run.state, run.task.on_step
    tree = {
        "settings": asdict(run.settings),
        "batches": run.batches,
        "trained": run.trained(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": {k: v for k, v in run.schedule.state_dict().items() if k != "lr_lambdas"},
        "gradients": [p.grad for p in run.parameters()] if state.batch % run.settings.accumulate else [],
        "state": {**vars(state), "history": [tuple(e) for e in state.history.epochs]},
        "best_epoch": state.history.best_epoch,
        "random": randomness.state(),
        "on_step": on_step.state_dict() if isinstance(on_step, Stateful) else None,
    }
    save_checkpoint(path, tree)


def resume(path: Path, run: TrainingRun) -> None:
    """Put the run where it was when the checkpoint was written; a bad file is refused before the model is touched."""
    _warn_of_streams(run.task.loader)
    tree = load_checkpoint(path)
    with _malformed_is_an_artifact_error(path):
        was = _facts(tree["settings"], tree["batches"], tree["trained"], run.task.model)
    now = _facts(asdict(run.settings), run.batches, run.trained(), run.task.model)
    require_same(path, was, now, advice=ADVICE)
    with _malformed_is_an_artifact_error(path):
        run.optimizer.load_state_dict(tree["optimizer"])
        run.schedule.load_state_dict({**run.schedule.state_dict(), **tree["schedule"]})
        for p, gradient in zip(run.parameters(), tree["gradients"], strict=False):
            if gradient is not None:
                p.grad = gradient.to(p).reshape(p.shape)
        state = {
            **tree["state"],
            "history": History([Epoch(*e) for e in tree["state"]["history"]], tree["best_epoch"]),
        }
        run.state = type(run.state)(**state)
        randomness.set_state(tree["random"])
        if isinstance(run.task.on_step, Stateful):
            run.task.on_step.load_state_dict(tree["on_step"])
    run.take(tree["trained"])


def _facts(
    settings: dict[str, Any], batches: int, trained: dict[str, Any], model: nn.Module
) -> dict[str, Any]:
    """What makes a run this one: its settings, the length of an epoch, its tensors' shapes and its priors' sigmas."""
    priors = {n for n, m in unwrap(model).named_modules() if isinstance(m, StochasticWeight)}
    facts = {**settings, "the number of batches": batches}
    for part, tensors in trained.items():
        for name, value in tensors.items():
            owner = name.removesuffix("._extra_state")
            if part == "model" and owner != name and owner in priors:
                facts[f"the prior's sigma in {owner}"] = f"{float(value):g}"
            else:
                facts[f"the shape of {name}"] = tuple(value.shape) if isinstance(value, Tensor) else None
    return facts


@contextmanager
def _malformed_is_an_artifact_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise ArtifactError(
            f"{path}: not a checkpoint of this run, or a malformed one ({type(error).__name__}: {error}). {ADVICE}"
        ) from error


def _warn_of_streams(loader: Any) -> None:
    loader = innermost(loader)
    if not isinstance(getattr(loader, "dataset", None), Sized) and not isinstance(loader, (list, tuple)):
        warnings.warn(
            "The loader has no map-style data set: a resumed run may see its batches in another order.",
            ReproducibilityWarning,
            stacklevel=5,
        )
