"""`pocketbayes report`: the page of a pocket file, built anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pocketbayes.cli.datasets import in_tensors, ood_data, test_data
from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.imports import is_path_to_function
from pocketbayes.cli.network import given_net, opened
from pocketbayes.cli.options import NETWORK, OUTPUT, Drawn, Seeded, WithFile, WithNoData, WithOod, image_size
from pocketbayes.cli.output import note_passes, say
from pocketbayes.cli.settings import argument, option
from pocketbayes.runs.files import require_writable

if TYPE_CHECKING:
    from torch import nn

    from pocketbayes.artifact.network_predictor import NetworkPredictor
    from pocketbayes.data import Examples


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Drawn, WithOod, WithNoData, WithFile, Seeded):
    """Those of `report`."""

    file: Path = argument("A pocket file.", "FILE")
    weights: Path | None = option(None, "The plain network's weights, for comparison.", "FILE", panel=NETWORK)
    record: Path | None = option(None, "What compress noted; FILE.json beside the pocket file.", "FILE.json")
    out: Path | None = option(
        None, "The page; FILE.html by default.", "FILE", panel=OUTPUT, names=["--out", "-o"]
    )
    figures: Path | None = option(None, "Write every figure there, as SVG and PNG.", "DIR", panel=OUTPUT)


@command(
    "report small.pocket",
    "report small.pocket --net mymodel:net --data mnist --weights net.safetensors --figures figures/",
)
def report(given: ReportOptions) -> Outcome:
    """Write the report page of a pocket file: one HTML file that needs no network.

    Data and the weights to compare with are those of the record of `pocketbayes compress`, unless given.
    """
    from pocketbayes.report.record import read_record

    record = read_record(given.record, given.file)
    given = _completed(given, dict(record.get("settings") or {}))
    if given.data is None:
        raise typer.BadParameter("Missing option '--data': no record beside the file names its data")
    page = given.out or given.file.with_suffix(".html")
    require_writable(page)
    model = opened(given.file, given.net)
    test = test_data(given.data, given, model.card, given.file)
    note_passes(len(test), given.samples)
    written = write_story(
        page,
        given.file,
        model,
        test,
        before=_before(given),
        ood=None if given.ood is None else ood_data(given.ood, given.folder, model.card),
        record=record or None,
        figures=given.figures,
        samples=given.samples,
        seed=given.seed,
    )
    told = {"file": str(given.file), "page": str(page), "figures": [str(path) for path in written[1:]]}
    return Outcome(told, lambda: say("\n".join(map(str, written))))


def write_story(
    page: Path,
    file: Path,
    predictor: NetworkPredictor,
    test: Examples,
    *,
    ood: Examples | None = None,
    figures: Path | None = None,
    **told: Any,
) -> list[Path]:
    """Write the page, and its figures to a folder if one is named; `told` is the rest of what `report.gather` takes."""
    from pocketbayes import report

    card = predictor.card
    told["likelihood"] = None if card.classes is not None else card.likelihood()
    told["ood"] = None if ood is None else in_tensors(ood).inputs()
    story = report.gather(predictor.model, file, in_tensors(test), **told)
    written = [report.write_page(page, story)]
    if figures is not None:
        written += report.write_figures(figures, story)
    return written


def _completed(given: ReportOptions, used: dict[str, Any]) -> ReportOptions:
    """What was not given, from the settings that the record notes: texts and numbers, and no code."""
    noted = {name: str(used[name]) for name in ("data", "ood", "folder", "weights") if used.get(name)}
    for name in ("data", "ood"):
        if getattr(given, name) is None and is_path_to_function(noted.get(name, "")):
            raise typer.BadParameter(
                f"the record names the function {noted[name]!r} for --{name}, and a record is not run. "
                f"If you trust that code, name it yourself: --{name} {noted[name]}"
            )
    size, targets = used.get("image_size"), used.get("targets")
    weights = Path(noted["weights"]) if "weights" in noted else None
    return replace(
        given,
        data=given.data or noted.get("data"),
        ood=given.ood or noted.get("ood"),
        folder=given.folder or (Path(noted["folder"]) if "folder" in noted else None),
        image_size=given.image_size or (image_size(str(size)) if size else None),
        targets=targets if given.targets == 1 and type(targets) is int else given.targets,
        weights=given.weights or (weights if weights is not None and weights.is_file() else None),
    )


def _before(given: ReportOptions) -> nn.Module | None:
    """The plain network that the file came from: the file's network with the weights to compare with."""
    from pocketbayes.artifact.open import open_network
    from pocketbayes.artifact.plain_weights import is_pocket, load_weights

    if given.weights is None or is_pocket(given.weights):
        return None
    network = open_network(given.file, given_net(given.net))
    load_weights(network, given.weights)
    return network.eval()
