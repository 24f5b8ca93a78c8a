"""`pocketbayes report`: the page of a pocket file, built anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbayes.cli import options as o
from pocketbayes.cli.card import Card, open_pocket
from pocketbayes.cli.datasets import Data, requested
from pocketbayes.cli.entry import app, examples
from pocketbayes.cli.imports import is_path_to_function
from pocketbayes.cli.network import build, is_pocket, load_weights
from pocketbayes.cli.output import emit, say
from pocketbayes.cli.story import foreign_inputs, write_story
from pocketbayes.runs.files import require_writable

if TYPE_CHECKING:
    from torch import nn


@app.command(
    epilog=examples(
        "report small.pocket",
        "report small.pocket --data mnist --weights net.safetensors --figures figures/",
    )
)
def report(
    file: o.PocketFile,
    data: o.Data = None,
    net: o.Net = None,
    weights: o.Weights = None,
    record: Annotated[
        Path | None,
        typer.Option(
            "--record", metavar="FILE.json", help="What compress noted; FILE.json beside the pocket file."
        ),
    ] = None,
    out: o.Out = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIR",
            rich_help_panel=o.OUTPUT,
            help="Write every figure there, as SVG and PNG.",
        ),
    ] = None,
    folder: o.Folder = None,
    image_size: o.ImageSize = None,
    targets: o.Targets = 1,
    ood: o.Ood = None,
    samples: o.Samples = 30,
    seed: o.Seed = 0,
    config: o.Config = None,
    as_json: o.AsJson = False,
    debug: o.Debug = False,
) -> None:
    """Write the report page of a pocket file: one HTML file that needs no network.

    Data and the weights to compare with are those of the record of `pocketbayes compress`, unless given.
    """
    told = _read_record(record, file)
    used = {key: value for key, value in dict(told.get("settings") or {}).items() if value is not None}
    page = out or file.with_suffix(".html")
    require_writable(page)
    folder = folder or used.get("folder")
    noted, ood = (
        _named_data(used, key) if given is None else given for key, given in (("data", data), ("ood", ood))
    )
    request = requested(
        noted,
        folder=None if folder is None else Path(folder),
        image_size=image_size or used.get("image_size"),
        targets=used.get("targets", targets) if targets == 1 else targets,
    )
    model, card = open_pocket(file, net)
    test = Data(request, card.scaling, card.target_scaling).test
    card.require_fit(file, test)
    written = write_story(
        page,
        file,
        model,
        card,
        test,
        before=_before(weights, used.get("weights"), card),
        ood=foreign_inputs(ood, request.folder, card),
        record=told or None,
        samples=samples,
        seed=seed,
        figures=figures,
    )
    if as_json:
        emit({"file": str(file), "page": str(page), "figures": [str(path) for path in written[1:]]})
    else:
        for path in written:
            say(str(path))


def _read_record(path: Path | None, file: Path) -> dict[str, Any]:
    """The record given, or the one beside the file, or nothing."""
    if path is None and not file.with_suffix(".json").exists():
        return {}
    path = path or file.with_suffix(".json")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not the JSON that `pocketbayes compress` writes ({error}).") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: not the JSON that `pocketbayes compress` writes.")
    return found


def _named_data(used: dict[str, Any], key: str) -> str | None:
    """The data that the record names; a record is data too, so a function in it is not called."""
    spec = used.get(key)
    if spec is None or not is_path_to_function(str(spec)):
        return None if spec is None else str(spec)
    raise typer.BadParameter(
        f"the record names the function {spec!r} for --{key}, and a record is not run. "
        f"If you trust that code, name it yourself: --{key} {spec}"
    )


def _before(given: Path | None, noted: str | None, card: Card) -> nn.Module | None:
    """The plain network that the file came from; one that the record notes may be gone, one that is given may not."""
    path = (
        given if given is not None else Path(noted) if noted is not None and Path(noted).is_file() else None
    )
    if path is None or is_pocket(path):
        return None
    network = build(str(card.net), card.args)
    load_weights(network, path)
    return network.eval()
