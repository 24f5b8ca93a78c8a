"""Numbers, settings and facts in the words of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from pocketbayes.report.story import Comparison


class Measure(NamedTuple):
    """A row's title, what it means, and which way is better: +1, -1."""

    title: str
    meaning: str
    better: int
    kind: str = "number"


MEASURES = {
    "accuracy": Measure("accuracy", "right answers", +1, "percent"),
    "nll": Measure("NLL", "mean of −ln p(truth), nats", -1),
    "ece": Measure("ECE", "gap of confidence and accuracy", -1),
    "brier": Measure("Brier score", "squared error of probabilities", -1),
    "auroc": Measure("AUROC", "test data or out-of-distribution, 0.5 is chance", +1),
    "rmse": Measure("RMSE", "size of a typical error, in units of the data", -1),
    "bytes": Measure("bytes", "of the network: at 32 bits a number", -1, "count"),
    "scalars": Measure("trainable numbers", "", -1, "count"),
}
PLAIN = {
    "net": "network",
    "max_bytes": "budget (bytes)",
    "max_accuracy_drop": "budget (loss of validation accuracy)",
    "max_nll_rise": "budget (rise of validation NLL, nats)",
    "ood": "out-of-distribution data",
    "max_risk": "wrong answers allowed among the sure ones",
    "unsure": "not sure below a confidence of",
    "test_samples": "draws in the test",
    "samples": "draws in validation",
    "prior": "standard deviation of the prior",
    "sensitivity_batches": "batches that measure the Fisher information",
    "posterior_epochs": "epochs before sharing",
    "epochs": "epochs while sharing",
    "settling_epochs": "epochs with frozen labels",
    "lr": "learning rate",
    "rho_lr": "learning rate of ρ",
    "settling_lr": "learning rate with frozen labels",
    "distillation": "fraction of the teacher in the targets",
    "calibrate": "calibrate σ on validation data",
    "renew_every": "steps between assignments",
    "anneal": "fraction of the steps in which sharing tightens",
    "components": "Gaussians to share, at most",
    "tries": "trainings in the search for a budget",
    "noise_sigma": "noise σ",
}


class Change(NamedTuple):
    """What a score's change is called: the difference or a ratio, its error, and "better", "worse" or nothing."""

    said: str
    error: str = ""
    verdict: str = ""


def change(row: Comparison) -> Change:
    """The difference, or for sizes the ratio; a verdict only where it is known to be more than noise."""
    if row.before is None:
        return Change("")
    measure, difference, error = MEASURES[row.key], row.after - row.before, ""
    if measure.kind == "count":
        small, large = sorted((row.before, row.after))
        said, known = f"{'×' if difference > 0 else '÷'} {large / max(1.0, small):.1f}", difference != 0
    else:
        scale, digits = (100, 2) if measure.kind == "percent" else (1, 4)
        said = f"{scale * difference:+.{digits}f}".replace("-", "−")
        known = row.error is not None and abs(difference) > 2 * row.error
        error = "" if row.error is None else f"± {scale * 2 * row.error:.{digits}f}"
    better = difference * measure.better > 0
    return Change(said, error, ("better" if better else "worse") if known else "")


def score(number: float | None, key: str) -> str:
    """A score as the table shows it."""
    kind = MEASURES[key].kind
    if number is None or not math.isfinite(number):
        return "–"
    if kind == "percent":
        return percent(number, 2)
    return f"{number:,.0f}" if kind == "count" else f"{number:.4f}".replace("-", "−")


def percent(fraction: float, digits: int = 1) -> str:
    return f"{100 * fraction:.{digits}f}\N{NO-BREAK SPACE}%"


def plain_words(found: Mapping[str, Any]) -> dict[str, str]:
    """Settings and facts by their plain names; those that were not given are left out."""
    return {_name(key): _said(each) for key, each in found.items() if each not in (None, "", [], {})}


def _name(key: str) -> str:
    return PLAIN.get(key, str(key).replace("_", " "))


def _said(found: Any) -> str:
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, float):
        return f"{found:.6g}"
    if isinstance(found, Mapping):
        return ", ".join(f"{name} {said}" for name, said in plain_words(found).items())
    return ", ".join(map(_said, found)) if isinstance(found, (list, tuple)) else str(found)
