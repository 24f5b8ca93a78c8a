"""The report page of a pocket file, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from pocketbayes.artifact.predictor import Predictor
    from pocketbayes.data import DataSet
    from pocketbayes.prediction.answering import Samples


def write_story(
    page: Path,
    file: Path,
    predictor: Predictor,
    test: DataSet,
    *,
    before: nn.Module | None = None,
    ood: DataSet | None = None,
    record: Mapping[str, Any] | None = None,
    figures: Path | None = None,
    samples: Samples = 30,
    seed: int = 0,
) -> list[Path]:
    """Write the page, and its figures to a folder if one is named; returns what was written."""
    from pocketbayes import report

    card = predictor.card
    story = report.gather(
        predictor.model,
        file,
        test,
        before=before,
        ood=None if ood is None else ood.inputs(),
        record=None if record is None else dict(record),
        samples=samples,
        seed=seed,
        likelihood=None if card.classes is not None else card.likelihood(),
    )
    written = [Path(report.write_page(page, story))]
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        written += report.write_figures(figures, story)
    return written
