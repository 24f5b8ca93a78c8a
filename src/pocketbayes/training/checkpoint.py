"""The checkpoint of a training run: a killed run goes on from it and ends with the same bits."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import TensorDataset

from pocketbayes.data.loaders import innermost
from pocketbayes.errors import ArtifactError, ReproducibilityWarning
from pocketbayes.noise import Noise
from pocketbayes.posterior.weights import StochasticWeight, stochastic_weights, unwrap
from pocketbayes.runs import randomness, ranks
from pocketbayes.runs.checkpoint import checksum, load_checkpoint, save_checkpoint
from pocketbayes.runs.resume import require_same
from pocketbayes.training.compiled import CompiledForward
from pocketbayes.training.history import Epoch, History

if TYPE_CHECKING:
    from pocketbayes.training.loop import TrainingRun

ADVICE = "Call fit with the same arguments, or delete the file to start afresh."


@runtime_checkable
class Stateful(Protocol):
    """What has a state of its own to keep in checkpoints."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoints:
    """The checkpoint file of a run that has not begun; what it says of the run is found out once."""

    def __init__(self, path: Path, run: TrainingRun) -> None:
        self.path, self.run = path, run
        self.facts = _facts(run)

    def save(self) -> None:
        """Everything that the rest of the run depends on, in one file."""
        run, state, on_step = self.run, self.run.state, self.run.task.on_step
        tree = {
            "facts": self.facts,
            "threads": torch.get_num_threads(),
            "trained": run.trained(),
            "optimizer": run.optimizer.state_dict(),
            "schedule": _plain(run.schedule),
            "gradients": [p.grad for p in run.parameters()] if state.batch % run.settings.accumulate else [],
            "state": {**vars(state), "history": [tuple(e) for e in state.history.epochs]},
            "best_epoch": state.history.best_epoch,
            "random": randomness.state(),
            "on_step": on_step.state_dict() if isinstance(on_step, Stateful) else None,
        }
        save_checkpoint(self.path, tree)

    def resume(self) -> None:
        """Put the run where it was when the file was written; a bad file is refused before the model is touched."""
        run, path = self.run, self.path
        tree = ranks.once(lambda: load_checkpoint(path))
        with _malformed_is_an_artifact_error(path):
            facts, best = dict(tree["facts"]), tree["state"]["best"]
            held = [_shapes(run, tree["trained"]), *([] if best is None else [_shapes(run, best)])]
        require_same(path, facts, self.facts, advice=ADVICE)
        for shapes in held:
            require_same(path, shapes, _shapes(run, run.trained()), advice=ADVICE)
        with _malformed_is_an_artifact_error(path):
            _warn_of_what_differs(run.task.loader, int(tree["threads"]))
            state = _checked_state(tree, run)
            run.optimizer.load_state_dict(tree["optimizer"])
            run.schedule.load_state_dict({**run.schedule.state_dict(), **tree["schedule"]})
            for p, gradient in zip(run.parameters(), tree["gradients"], strict=False):
                if gradient is not None:
                    p.grad = gradient.to(p).reshape(p.shape)
            randomness.set_state(tree["random"])
            if isinstance(run.task.on_step, Stateful):
                run.task.on_step.load_state_dict(tree["on_step"])
        run.state = type(run.state)(**state)
        run.take(tree["trained"])


def _checked_state(tree: dict[str, Any], run: TrainingRun) -> dict[str, Any]:
    """How far the run was, with every number of its kind."""
    state = {
        **tree["state"],
        "history": History([Epoch(*e) for e in tree["state"]["history"]], tree["best_epoch"]),
    }
    kinds = {field.name: type(getattr(run.state, field.name)) for field in fields(run.state)}
    kinds["best"] = dict
    if set(state) != set(kinds):
        raise ValueError(f"its state should hold {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not (type(state[name]) is kind or (name == "best" and state[name] is None)):
            raise TypeError(f"{name} must be {kind.__name__}, got {type(state[name]).__name__}")
    numbers = [*state["epoch_nll"], *(value for epoch in state["history"].epochs for value in epoch[1:4])]
    if not all(type(value) is float for value in numbers):
        raise TypeError("nll, kl and temperature must be numbers")
    if not (0 <= state["epoch"] <= run.settings.epochs and 0 <= state["batch"] <= run.batches):
        raise ValueError(f"epoch {state['epoch']}, batch {state['batch']} are not of this run")
    return state


# --- what run it is ----------------------------------------------------------------------------------------------


def _facts(run: TrainingRun) -> dict[str, Any]:
    """What makes a run this one: settings, data, what is trained and how, in which shapes and types."""
    task, model = run.task, unwrap(run.task.model)
    facts = {**asdict(run.settings), "the number of batches": run.batches, "the data": _data(task.loader)}
    for name, part in (
        ("likelihood", task.likelihood),
        ("optimizer", run.optimizer),
        ("schedule", run.schedule),
    ):
        facts[f"the {name}"] = type(part).__name__
    facts["the schedule's settings"] = _short(_plain(run.schedule))
    facts["autocast"] = f"{task.autocast}{', compiled' * isinstance(task.forward, CompiledForward)}"
    facts |= {f"the noise of {site.path}": _noise(site.weight.noise) for site in stochastic_weights(model)}
    return facts | _shapes(run, run.trained())


def _shapes(run: TrainingRun, trained: dict[str, Any]) -> dict[str, Any]:
    """The shapes and types of what is trained, and the sigmas of priors."""
    priors = {n for n, m in unwrap(run.task.model).named_modules() if isinstance(m, StochasticWeight)}
    facts: dict[str, Any] = {}
    for part in ("model", "likelihood"):
        for name, value in trained[part].items():
            owner = name.removesuffix("._extra_state")
            if part == "model" and owner != name and owner in priors:
                facts[f"the prior's sigma in {owner}"] = f"{float(value):g}"
            elif isinstance(value, Tensor):
                facts[f"the shape of {name}"] = f"{tuple(value.shape)} {value.dtype}"
            else:
                facts[f"the kind of {name}"] = type(value).__name__
    return facts


def _plain(schedule: Any) -> dict[str, Any]:
    """The state of a schedule without its functions."""
    return {k: v for k, v in schedule.state_dict().items() if k != "lr_lambdas"}


def _noise(noise: Noise) -> str:
    """The family, and a digest of its parameters if it has any."""
    found = noise.to_dict()
    return f"{found.pop('family')} {_short(found)}".strip()


def _data(loader: Any) -> str:
    """A digest of data that lie in memory as tensors; otherwise what kind of data set it is."""
    loader = innermost(loader)
    dataset = getattr(loader, "dataset", loader)
    found = (
        dataset.tensors
        if isinstance(dataset, TensorDataset)
        else [vars(dataset)]
        if is_dataclass(dataset)
        else dataset
    )
    if not isinstance(found, (list, tuple)):
        return type(dataset).__name__
    return checksum(
        {str(i): leaf for i, leaf in enumerate(pytree.tree_leaves(list(found))) if isinstance(leaf, Tensor)}
    )


def _short(found: Any) -> str:
    """A digest of plain values, numbers and arrays."""
    if not found:
        return ""
    text = json.dumps(found, sort_keys=True, default=lambda array: hashlib.sha256(array).hexdigest())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def _malformed_is_an_artifact_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        RuntimeError,
        OverflowError,
    ) as error:
        raise ArtifactError(
            f"{path}: not a checkpoint of this run, or a malformed one ({type(error).__name__}: {error}). {ADVICE}"
        ) from error


def _warn_of_what_differs(loader: Any, threads: int) -> None:
    """Say why the rest of the run may not be, bit by bit, what it would have been."""
    loader, found = innermost(loader), []
    if not isinstance(getattr(loader, "dataset", None), Sized) and not isinstance(loader, (list, tuple)):
        found.append("the loader has no map-style data set, and may give its batches in another order")
    if getattr(loader, "persistent_workers", False):
        found.append(
            "its workers stay from epoch to epoch (persistent_workers), and so do their random numbers"
        )
    if any(
        getattr(part, "generator", None) is not None for part in (loader, getattr(loader, "sampler", None))
    ):
        found.append("the loader has a generator of its own, whose state no checkpoint holds")
    if threads != torch.get_num_threads():
        found.append(
            f"it ran on {threads} threads, now on {torch.get_num_threads()}, and sums round differently"
        )
    if found:
        warnings.warn(
            f"The resumed run may end with other bits: {'; '.join(found)}.",
            ReproducibilityWarning,
            stacklevel=5,
        )
