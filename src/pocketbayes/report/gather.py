"""`gather`: a pocket model, its file and test data into a `Story`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pocketbayes.artifact import Summary, inspect
from pocketbayes.data import DataSet
from pocketbayes.likelihood import Heteroscedastic, Homoscedastic, Likelihood, output_tensor
from pocketbayes.posterior.convert import to_deterministic
from pocketbayes.posterior.weights import require_bayesian
from pocketbayes.prediction.answering import Samples
from pocketbayes.report import weights
from pocketbayes.report.answers import classification, regression
from pocketbayes.report.record import from_record
from pocketbayes.report.story import Comparison, Story


def gather(
    model: nn.Module,
    file: str | os.PathLike[str],
    test: DataSet,
    *,
    before: nn.Module | None = None,
    ood: Tensor | None = None,
    record: Mapping[str, Any] | None = None,
    samples: Samples = 30,
    seed: int = 0,
    likelihood: Likelihood | None = None,
) -> Story:
    """All that the model, its file, the test data and the record of its making tell.

    Args:
        model: the posterior, as loaded from `file`.
        before: the plain network it came from, for comparison.
        ood: out-of-distribution inputs, scaled like the test data; for classification.
        record: what `pocketbayes compress` noted: stages, histories, settings, seed, versions, time.
        likelihood: of a regression; otherwise the `noise_sigma` of the file's metadata (in units of standardised
            targets), or heteroscedastic where there are two outputs for each target.
    """
    require_bayesian(model)
    summary = inspect(file)
    told = from_record(record)
    nets = {"after": model} if before is None else {"before": before, "after": model}
    if test.classes is not None:
        unsure = _number(summary.metadata.get("unsure"))
        judged = classification(nets, test, ood, unsure, samples, seed)
    else:
        noise = likelihood if likelihood is not None else _likelihood_of(summary, model, test)
        judged = regression(nets, test, noise, samples, seed)
    judged["table"] += _sizes(summary, model, before)
    told["facts"] |= _said_by_file(summary) | {"draws in a prediction": samples, "seed of the draws": seed}
    return Story(
        name=Path(file).name,
        data=test.name,
        samples=samples,
        classes=test.classes,
        sections=summary.sections,
        layers=tuple(t for t in summary.tensors if not t.kind.startswith("tied")),
        plane=weights.plane(model, seed),
        weights=weights.density(model, before, seed),
        **judged,
        **told,
    )


def _likelihood_of(summary: Summary, model: nn.Module, test: DataSet) -> Likelihood:
    """The noise that the file states, or that the network predicts; it is not guessed."""
    sigma = _number(summary.metadata.get("noise_sigma"))
    if sigma is not None and sigma > 0:
        return Homoscedastic(sigma)
    outputs = output_tensor(to_deterministic(model).eval()(test.inputs(slice(0, 1)))).shape[-1]
    if outputs == 2 * test.num_outputs:
        return Heteroscedastic()
    raise ValueError(
        "report: the noise of this regression is unknown. Pass likelihood=, or save the file with "
        'metadata={"noise_sigma": ...}, in units of the standardised targets.'
    )


def _number(value: Any) -> float | None:
    """The number that a file states, if it is one."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _sizes(summary: Summary, model: nn.Module, before: nn.Module | None) -> tuple[Comparison, ...]:
    """Bytes, those of the plain network in fp32; and trainable scalars."""
    plain = trainable = None
    if before is not None:
        trainable = float(sum(p.numel() for p in before.parameters()))
        plain = 4.0 * (trainable + sum(b.numel() for b in before.buffers()))
    after = float(sum(p.numel() for p in model.parameters()))
    return Comparison("bytes", plain, float(summary.total_bytes)), Comparison("scalars", trainable, after)


def _said_by_file(summary: Summary) -> dict[str, Any]:
    found = {
        "format": summary.version,
        "written by": f"pocketbayes {summary.library}",
        "components in the codebook": summary.codebook or None,
        "architecture": summary.architecture,
        "noise": summary.noise,
        "options": summary.options,
        "metadata": summary.metadata,
    }
    return {key: value for key, value in found.items() if value}
