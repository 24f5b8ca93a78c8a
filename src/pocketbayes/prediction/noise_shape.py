"""`shape_sensitivity`: is a posterior sensitive to the shape of its noise?  Device families against Gaussian noise.

Means and variances of the weights stay; only the law of z changes.  Every comparison is between independent draws, so
that Gaussian against Gaussian, the floor, shows what the draws alone do; draws that mirror each other are kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from pocketbayes.data.loaders import part
from pocketbayes.drawing import WhichDraw
from pocketbayes.likelihood import Likelihood
from pocketbayes.noise import (
    Bimodal,
    Gaussian,
    Laplace,
    Noise,
    SkewNormal,
    StudentT,
    TwoPoint,
    Uniform,
    predictive_distances,
)
from pocketbayes.posterior.draws import mix
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.weights import require_bayesian
from pocketbayes.posterior.with_noise import under_noise
from pocketbayes.prediction.answer import Predictive, Regression
from pocketbayes.prediction.answering import Answering, likelihood_for
from pocketbayes.prediction.evaluate import ask
from pocketbayes.prediction.inputs import device_of, labelled
from pocketbayes.runs.progress import track

if TYPE_CHECKING:
    import altair as alt

EMPTY = "shape_sensitivity: the loader is empty. Pass one with at least one batch."
SCORES = ("accuracy", "nll", "ece", "rmse")
FAMILIES: dict[str, Noise] = {
    "two-point": TwoPoint(),
    "bimodal 0.9": Bimodal(0.9),
    "uniform": Uniform(),
    "Laplace": Laplace(),
    "Student-t 3": StudentT(3.0),
    "skew-normal 10": SkewNormal(10.0),
}


class Interval(NamedTuple):
    """A mean over the repeats with its 95 % confidence interval, mean +- half."""

    mean: float
    half: float

    @staticmethod
    def of(values: Sequence[float]) -> Interval:
        """Student's interval for the mean of independent repeats."""
        from scipy.special import stdtrit

        x = torch.tensor(values, dtype=torch.float64)
        error = float(x.std()) / math.sqrt(len(x))
        return Interval(float(x.mean()), float(stdtrit(len(x) - 1, 0.975)) * error)

    @property
    def largest(self) -> float:
        """The largest size, of either sign, that the interval holds."""
        return abs(self.mean) + self.half

    @property
    def low(self) -> float:
        return self.mean - self.half

    def __str__(self) -> str:
        return f"{self.mean:+.5f} ± {self.half:.5f}"


@dataclass(frozen=True, kw_only=True)
class ShapeRow:
    """One family against Gaussian noise."""

    name: str
    distance: Interval  # D^2 between the predictives, mean over inputs, in units of the Gaussian one's sigma
    excess: Interval  # the same less the floor of the same repeat
    changes: dict[str, Interval]  # score of the family minus score of the Gaussian


@dataclass(frozen=True, kw_only=True)
class ShapeReport:
    """What `shape_sensitivity` found.  Print it for the table and the verdicts; `plot()` shows it."""

    rows: tuple[ShapeRow, ...]
    floor: ShapeRow  # Gaussian against Gaussian, other draws
    scores: dict[str, Interval]  # of the Gaussian posterior itself
    inputs: int
    samples: int
    repeats: int
    tolerance: float

    def verdict(self, row: ShapeRow) -> str:
        """One sentence for the designer of the device."""
        nll = row.changes["nll"]
        seen = "can be told apart" if row.excess.low > 0 else "cannot be told apart"
        if nll.largest <= self.tolerance:
            said = f"the network is not sensitive to it: NLL changes by at most {nll.largest:.4f} nats"
        elif nll.low > self.tolerance:
            said = f"the network is sensitive to it: NLL rises by {nll.mean:.4f} ± {nll.half:.4f} nats"
        elif nll.mean + nll.half < -self.tolerance:
            said = f"the network is better for it: NLL falls by {-nll.mean:.4f} ± {nll.half:.4f} nats"
        else:
            said = f"undecided: NLL changes by {nll}; use more samples or repeats"
        return f"{row.name}: {said}; the predictions {seen} from those under Gaussian noise"

    def __str__(self) -> str:
        names = list(self.scores)
        width = max(len(row.name) for row in (*self.rows, self.floor)) + 2
        head = f"{'noise':<{width}}{'distance':>20}" + "".join(f"{name:>22}" for name in names)
        lines = [
            f"{self.inputs:,} inputs, {self.samples} draws, {self.repeats} repeats; ± is a 95 % interval",
            "under Gaussian noise: " + ", ".join(f"{name} {self.scores[name].mean:.4f}" for name in names),
            head,
        ]
        for row in (self.floor, *self.rows):
            cells = "".join(f"{row.changes[name]!s:>22}" for name in names)
            lines.append(f"{row.name:<{width}}{row.distance!s:>20}{cells}")
        return "\n".join([*lines, *(self.verdict(row) for row in self.rows)])

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a JSON file: every interval is [mean, half]."""
        rows = {
            row.name: {
                "distance": list(row.distance),
                "excess": list(row.excess),
                "changes": {name: list(change) for name, change in row.changes.items()},
            }
            for row in (self.floor, *self.rows)
        }
        return {
            "rows": rows,
            "scores": {name: list(score) for name, score in self.scores.items()},
            "verdicts": {row.name: self.verdict(row) for row in self.rows},
            "inputs": self.inputs,
            "samples": self.samples,
            "repeats": self.repeats,
            "tolerance": self.tolerance,
        }

    def plot(self) -> alt.HConcatChart:
        """Left, distances with the floor as a band; right, what the NLL does, with the tolerance as a band.

        A chart of Altair's, which shows itself in a notebook; `.save("shape.svg")` writes it.
        """
        import altair as alt

        distances = {row.name: row.distance for row in self.rows}
        changes = {row.name: row.changes["nll"] for row in self.rows}
        floor = (self.floor.distance.low, sum(self.floor.distance))
        tolerance = (-self.tolerance, self.tolerance)
        return alt.hconcat(
            _intervals(distances, floor, "Gaussian floor", "energy distance to Gaussian noise / sigma"),
            _intervals(changes, tolerance, "tolerance", "change of the NLL (nats)"),
        )


def _intervals(found: Mapping[str, Interval], band: tuple[float, float], said: str, title: str) -> Any:
    """Means with their intervals by name, the first on top, over a band that stands for no difference."""
    import altair as alt

    rows = [
        {"family": name, "mean": i.mean, "low": i.mean - i.half, "high": i.mean + i.half}
        for name, i in found.items()
    ]
    y = alt.Y("family:N", sort=None, title=None)
    shade = alt.Chart(alt.InlineData(values=[{"from": band[0], "to": band[1], "said": said}])).mark_rect()
    colour = alt.Color("said:N", title=None, legend=alt.Legend(orient="top"), scale=alt.Scale(range=["#ddd"]))
    marks = alt.Chart(alt.InlineData(values=rows))
    return alt.layer(
        shade.encode(alt.X("from:Q", title=title), colour, x2="to"),
        marks.mark_rule().encode(y, x="low:Q", x2="high"),
        marks.mark_circle(size=50, opacity=1).encode(y, x="mean:Q"),
    ).properties(width=300, height=alt.Step(28))


class _Outcome(NamedTuple):
    """What one set of draws says."""

    draws: Tensor  # [S, N, ...] class probabilities, or outputs
    scores: dict[str, float]


def shape_sensitivity(
    model: nn.Module,
    loader: Iterable[Any],
    families: Mapping[str, Noise] | Sequence[Noise] | None = None,
    *,
    samples: int = 100,
    repeats: int = 5,
    seed: int = 0,
    likelihood: Likelihood | None = None,
    tolerance: float = 0.01,
    progress: bool = False,
) -> ShapeReport:
    """Whether a network is sensitive to the shape of its weights' noise: its predictions under each noise family,
    against those under Gaussian noise.

    Means and variances of the weights stay.  In every repeat each family, and once more the Gaussian (the floor), is
    compared with fresh draws under Gaussian noise: energy distance between the predictive samples, mean over the
    inputs and divided by their mean sigma, and the differences of accuracy, NLL and ECE, or of RMSE and NLL.  The
    intervals are over the repeats: they hold for these inputs.  The model is as before afterwards.

    Args:
        model: a network that `bayesianize` converted.
        loader: batches `(x, ..., y)`, or dicts with labels, to judge on.
        families: by name, or a sequence; two-point, bimodal, uniform, Laplace, Student-t and skew-normal by default.
        samples: draws of the weights in each comparison, 4 or more; of M modes 2M or more.
        repeats: comparisons of each family, with draws of their own.
        seed: of the draws.
        likelihood: `Categorical()` by default.
        tolerance: the change of NLL in nats up to which the verdict is that the network is not sensitive.
        progress: show a bar on a terminal.

    Returns:
        A report with a row for each family; print it for the table and the verdicts.

    Examples:
        >>> import torch, pocketbayes as pb
        >>> model = pb.bayesianize(torch.nn.Linear(4, 3))
        >>> batches = [(torch.randn(20, 4), torch.randint(3, (20,)))]
        >>> report = pb.shape_sensitivity(model, batches, {"signs": pb.noise.TwoPoint()}, samples=10, repeats=2)
        >>> [row.name for row in report.rows], report.inputs
        (['signs'], 20)
    """
    named = _named(families)
    require_bayesian(model)
    modes = len(modes_of(model))
    _require_counts(samples, repeats, tolerance, modes)
    likelihood, batches = likelihood_for(model, likelihood), list(loader)
    everyone = {"Gaussian again": Gaussian(), **named}
    found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in everyone}
    own: list[dict[str, float]] = []
    for repeat in track(range(repeats), "shape sensitivity", enabled=progress):
        reference = _outcome(model, batches, Gaussian(), likelihood, samples, mix(seed, repeat, 0))
        own.append(reference.scores)
        for name, noise in everyone.items():
            other = _outcome(model, batches, noise, likelihood, samples, mix(seed, repeat, 1))
            found[name].append(_compare(reference, other, modes))
    rows = [_row(name, values, found["Gaussian again"]) for name, values in found.items()]
    return ShapeReport(
        rows=tuple(rows[1:]),
        floor=rows[0],
        scores={name: Interval.of([s[name] for s in own]) for name in own[0]},
        inputs=reference.draws.shape[1],
        samples=samples,
        repeats=repeats,
        tolerance=tolerance,
    )


def _outcome(
    model: nn.Module, batches: list[Any], noise: Noise, likelihood: Likelihood, samples: int, seed: int
) -> _Outcome:
    with under_noise(model, noise):
        answering = Answering(model, likelihood=likelihood, samples=samples, seed=seed, keep=True)
        answer, targets = ask(answering, labelled(part(batches), device_of(model)), empty=EMPTY)
    scores = answering.reduce.score(answer, torch.cat(targets))
    draws = answer.draws if isinstance(answer, Predictive | Regression) else answer
    assert isinstance(draws, Tensor)
    return _Outcome(draws, {name: scores[name] for name in SCORES if name in scores})


def _compare(reference: _Outcome, other: _Outcome, modes: int) -> tuple[float, dict[str, float]]:
    """(D^2 in units of the reference's sigma, differences of the scores)."""
    sigma = reference.draws.double().var(0).flatten(1).sum(1).sqrt().mean()
    ours, theirs = (_apart(draws, modes) for draws in (reference.draws, other.draws))
    distance = torch.stack([predictive_distances(a, b).mean() for a in ours for b in theirs]).mean()
    changes = {name: other.scores[name] - score for name, score in reference.scores.items()}
    return float(distance / sigma), changes


def _apart(draws: Tensor, modes: int) -> list[Tensor]:
    """The first draws of all pairs, and the second ones: each of them independent of one another."""
    mirrored = torch.tensor([WhichDraw.of(0, s, modes).mirrored for s in range(len(draws))])
    return [draws[~mirrored], draws[mirrored]]


def _row(
    name: str, values: list[tuple[float, dict[str, float]]], floor: list[tuple[float, dict[str, float]]]
) -> ShapeRow:
    return ShapeRow(
        name=name,
        distance=Interval.of([distance for distance, _ in values]),
        excess=Interval.of([a - b for (a, _), (b, _) in zip(values, floor, strict=True)]),
        changes={key: Interval.of([changes[key] for _, changes in values]) for key in values[0][1]},
    )


def _named(families: Mapping[str, Noise] | Sequence[Noise] | None) -> dict[str, Noise]:
    if families is None:
        return FAMILIES
    if isinstance(families, Noise):
        families = [families]
    for noise in families.values() if isinstance(families, Mapping) else families:
        if not isinstance(noise, Noise):
            raise ValueError(
                f"shape_sensitivity: a family must be a pocketbayes.noise.Noise, got {noise!r}. Use e.g. Bimodal(0.9)."
            )
    named = dict(families) if isinstance(families, Mapping) else {_name(f): f for f in families}
    if not named:
        raise ValueError("shape_sensitivity: no families to compare. Leave families out for the usual ones.")
    return named


def _name(noise: Noise) -> str:
    """The family with its numbers; without arrays, which a device's samples have."""
    shown = {k: v for k, v in noise.to_dict().items() if isinstance(v, int | float)}
    return type(noise).__name__ + (f"({', '.join(f'{v:g}' for v in shown.values())})" if shown else "")


def _require_counts(samples: int, repeats: int, tolerance: float, modes: int) -> None:
    least = max(4, 2 * modes)
    if samples < least or repeats < 2:
        raise ValueError(
            f"shape_sensitivity: needs {least} or more samples and 2 or more repeats, got {samples} and {repeats}."
        )
    if not tolerance > 0:
        raise ValueError(f"shape_sensitivity: tolerance must be positive, got {tolerance} nats.")
