"""The figures of a story, in the order of the page, and that of its training."""

from __future__ import annotations

import numpy as np

from pocketbayes.report import answer_figures as answers
from pocketbayes.report import weight_figures as weights
from pocketbayes.report.figure import Axis, Figure, Line, Mark, Panel, Rule, clean, short
from pocketbayes.report.story import Array, Run, Story


def figures(story: Story) -> list[Figure]:
    """All figures that the story has the numbers for."""
    found = (
        answers.reliability(story),
        answers.predicted(story),
        answers.coverage(story),
        answers.risk(story),
        answers.confidence(story),
        answers.entropies(story),
        weights.plane(story),
        weights.weights(story),
        weights.sections(story),
        weights.layers(story),
        training(story),
    )
    return [figure for figure in found if figure is not None]


# --- training --------------------------------------------------------------------------------------------------


def training(story: Story) -> Figure | None:
    """NLL and KL, epoch by epoch, with the stages marked."""
    panels = _panels(story.runs)
    if not panels:
        return None
    names = ", ".join(clean(run.stage, 40) for run in story.runs)
    epochs = sum(len(run.epoch) for run in story.runs)
    return Figure(
        name="training",
        title="Training, stage by stage",
        caption="The validation curve should fall and level off; where it climbs again, training went too far.",
        spoken=f"Training curves over {epochs} epochs, in stages: {names}.",
        panels=panels,
        height=220 * len(panels) + 60,
        wide=True,
    )


def _panels(runs: tuple[Run, ...]) -> tuple[Panel, ...]:
    """NLL above, KL below; either only where its numbers are known."""
    lengths = [len(run.epoch) for run in runs]
    starts, total = np.cumsum([0, *lengths])[:-1].tolist(), sum(lengths)
    nll = [
        *_curve(runs, "nll", "training NLL", "before"),
        *_curve(runs, "validation", "validation NLL", "after"),
    ]
    kl = _curve(runs, "kl", "KL", "blend")
    shown = [pair for pair in ((nll, "NLL (nats)"), (kl, "KL (nats)")) if pair[0]]
    panels = []
    for number, (marks, title) in enumerate(shown):
        names = [short(run.stage, 16) if number == 0 else "" for run in runs]
        rules = [Rule(x=start + 0.5, label=name) for start, name in zip(starts, names, strict=True)]
        epoch = Axis("epoch" if number == len(shown) - 1 else "", whole=True, limits=(0.5, total + 0.5))
        panels.append(Panel(epoch, Axis(title), (*rules, *marks)))
    return tuple(panels)


def _curve(runs: tuple[Run, ...], key: str, title: str, color: str) -> list[Mark]:
    """One number over the epochs of all runs, unless it is known for none."""
    if not runs:
        return []
    y: Array = np.concatenate([getattr(run, key) for run in runs])
    seen = np.isfinite(y)
    if not seen.any():
        return []
    epoch = np.arange(1, len(y) + 1)
    return [Line(x=epoch[seen], y=y[seen], name=title, color=color, markers=int(seen.sum()) < 40)]
