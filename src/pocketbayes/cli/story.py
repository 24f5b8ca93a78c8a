"""The report page of a pocket file, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketbayes.cli.datasets import in_tensors

if TYPE_CHECKING:
    from torch import nn

    from pocketbayes.artifact.network_predictor import NetworkPredictor
    from pocketbayes.data import Examples
    from pocketbayes.prediction.average import Samples


def write_story(
    page: Path,
    file: Path,
    predictor: NetworkPredictor,
    test: Examples,
    *,
    before: nn.Module | None = None,
    ood: Examples | None = None,
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
        in_tensors(test),
        before=before,
        ood=None if ood is None else in_tensors(ood).inputs(),
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
