"""The report page of a pocket file, and its figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pocketbayes.cli.card import Card
    from pocketbayes.data import DataSet


def write_story(
    path: Path,
    file: Path,
    model: nn.Module,
    card: Card,
    test: DataSet,
    *,
    before: nn.Module | None = None,
    ood: Tensor | None = None,
    record: Mapping[str, Any] | None = None,
    samples: int = 30,
    seed: int = 0,
    figures: Path | None = None,
) -> list[Path]:
    """Write the page to `path`, and its figures to a folder if one is named; returns what was written."""
    from pocketbayes import report

    story = report.gather(
        model,
        file,
        test,
        before=before,
        ood=ood,
        record=None if record is None else dict(record),
        samples=samples,
        seed=seed,
        likelihood=None if card.classes is not None else card.likelihood(),
    )
    written = [Path(report.write_page(path, story))]
    if figures is not None:
        figures.mkdir(parents=True, exist_ok=True)
        written += report.write_figures(figures, story)
    return written


def foreign_data(spec: str, folder: Path | None, card: Card) -> DataSet:
    """Another data set, scaled as the network expects its inputs."""
    from pocketbayes.cli.datasets import Data, Request

    data = Data(Request(spec, folder), card.scaling).test
    if data.shape != card.shape:
        raise ValueError(f"--ood {spec}: inputs of shape {data.shape}, the network takes {card.shape}.")
    return data


def foreign_inputs(spec: str | None, folder: Path | None, card: Card) -> Tensor | None:
    """Its inputs, where one is named."""
    return None if spec is None else foreign_data(spec, folder, card).inputs()
