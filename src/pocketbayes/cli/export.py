"""`pocketbayes export`: a pocket file as an ONNX model, or with the graph of its network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.network import given_net
from pocketbayes.cli.options import Options, WithNet
from pocketbayes.cli.output import say
from pocketbayes.cli.settings import argument, option
from pocketbayes.runs.files import require_writable, write_atomically


@dataclass(frozen=True, kw_only=True)
class ExportOptions(WithNet, Options):
    """Those of `export`."""

    file: Path = argument("A pocket file.", "FILE")
    out: Path = argument(
        "OUT.onnx, a model for any runtime; OUT.pocket, FILE with its network's graph.", "OUT"
    )
    seed: int | None = option(None, "Of the draw to export; without it, the means of the weights.", min=0)
    draw: int = option(0, "Which draw of that seed.", min=0)


@command(
    "export small.pocket small.onnx",
    "export small.pocket draw7.onnx --seed 0 --draw 7",
    "export old.pocket new.pocket --net mymodel:net",
)
def export(given: ExportOptions) -> Outcome:
    """Write a pocket file's network as a plain ONNX model, or give the file the graph that this needs.

    An ONNX model has the means of the weights, and divides a classifier's logits by the temperature that the file has
    for them; or it has one draw of the weights. That takes neither torch nor the network, if the file has its graph.
    """
    require_writable(given.out)
    if given.out.suffix == ".onnx":
        write_atomically(given.out, _onnx(given))
    elif given.out.suffix == ".pocket":
        _add_graph(given)
    else:
        raise typer.BadParameter(f"OUT {given.out}: the name must end in .onnx or .pocket")
    size, draw = given.out.stat().st_size, None if given.seed is None else given.draw
    told = {"file": str(given.file), "out": str(given.out), "bytes": size, "seed": given.seed, "draw": draw}
    return Outcome(told, lambda: say(f"{given.out}: {size:,} bytes"))


def _onnx(given: ExportOptions) -> bytes:
    from pocketbayes.artifact import decode, mean_weights, sample_weights
    from pocketbayes.artifact.portable import portable
    from pocketbayes.prediction.scales import read_scales

    pocket = decode(given.file)
    if given.seed is not None:
        return portable(pocket, sample_weights(pocket, given.seed, given.draw))
    classes = pocket.metadata.get("classes") is not None
    temperature = read_scales(pocket.metadata).mean.temperature if classes else 1.0
    return portable(pocket, mean_weights(pocket), logit_temperature=temperature)


def _add_graph(given: ExportOptions) -> None:
    import torch

    from pocketbayes.artifact.card import read_card
    from pocketbayes.artifact.open import open_network
    from pocketbayes.artifact.reader import decode
    from pocketbayes.artifact.store import graphed, write

    network, pocket = open_network(given.file, given_net(given.net)), decode(given.file)
    card = read_card(given.file, pocket.metadata)
    write(graphed(pocket, network, torch.zeros(2, *card.shape), str(given.file)), given.out)
