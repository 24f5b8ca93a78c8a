"""Linear layers and convolutions by their sizes, and the graph of a network whose layers are listed by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from pocketbayes.structure.network import Builder, Cell, NeuronGraph
from pocketbayes.structure.schemes import Weight

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class WeightedLayer(NamedTuple):
    """What is needed of a Linear or convolution, found without touching its (possibly random) weight."""

    weight: Weight
    inputs: int
    outputs: int
    groups: int
    bias: str | None


def weighted_layer(name: str, module: nn.Module) -> WeightedLayer | None:
    """Sizes of a Linear or convolution, None for another module."""
    prefix = f"{name}." if name else ""
    bias = f"{prefix}bias" if getattr(module, "bias", None) is not None else None
    if isinstance(module, nn.Linear):
        weight = Weight(f"{prefix}weight", (module.out_features, module.in_features))
        return WeightedLayer(weight, module.in_features, module.out_features, 1, bias)
    if isinstance(module, CONVOLUTIONS + TRANSPOSED):
        inputs, outputs, groups = module.in_channels, module.out_channels, module.groups
        transposed = isinstance(module, TRANSPOSED)
        sizes = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
        weight = Weight(f"{prefix}weight", (*sizes, *module.kernel_size), transposed)
        return WeightedLayer(weight, inputs, outputs, groups, bias)
    return None


def spread_over(cells: Sequence[Cell | None], positions: int, where: str) -> list[Cell | None]:
    """Each channel over its consecutive positions, as flattening lays them out."""
    copies, rest = divmod(positions, len(cells))
    if rest:
        raise ValueError(
            f"{where}: reads {positions} values, which {len(cells)} flattened channels cannot make up. "
            "Pass layers={name: (stream read, stream written), ...} instead."
        )
    if copies == 1:
        return list(cells)
    return [cell and (cell[0], (*cell[1], copy)) for cell in cells for copy in range(copies)]


def listed_graph(
    model: nn.Module,
    layers: Sequence[str] | Mapping[str, tuple[str, str]],
    odd: bool | Collection[str] = False,
) -> NeuronGraph:
    """The graph of layers given by hand: names in order, or name -> (stream it reads, stream it writes).

    Layers that write one stream are tied (a residual stream), streams nobody writes are the network's inputs and
    those nobody reads its outputs.  `odd` lists the streams that only odd functions touch (True: all of them).
    """
    if not isinstance(layers, Mapping):
        layers = {name: (f"stream {i}", f"stream {i + 1}") for i, name in enumerate(layers)}
    builder, found = Builder(), {name: _find_layer(model, name) for name in layers}
    streams: dict[str, list[Cell]] = {}
    outputs: dict[str, list[Cell]] = {}
    for name, (_, written) in layers.items():
        outputs[name] = builder.fresh(written, found[name].outputs)
        known = streams.setdefault(written, outputs[name])
        if len(known) != len(outputs[name]):
            raise ValueError(
                f"{name}: writes {len(outputs[name])} neurons to stream {written!r}, which has {len(known)}."
            )
        builder.tie(known, outputs[name])
    for name, (read, _) in layers.items():
        known = streams.setdefault(read, []) or builder.fresh(read, found[name].inputs, pinned=True)
        streams[read] = known
        cells = [cell for cell in spread_over(known, found[name].inputs, name) if cell]
        builder.layer(found[name].weight, found[name].groups, cells, outputs[name])
        if (bias := found[name].bias) is not None:
            builder.rider(bias, outputs[name])
    sources = {read for read, _ in layers.values()}
    for stream, cells in streams.items():
        if stream not in sources:
            builder.pin(cells)
        if not (odd is True or (odd is not False and stream in odd)):
            builder.not_odd(cells)
    return builder.build()


def _find_layer(model: nn.Module, name: str) -> WeightedLayer:
    modules = dict(model.named_modules())
    layer = weighted_layer(name, modules[name]) if name in modules else None
    if layer is None:
        what = type(modules[name]).__name__ if name in modules else "missing from the model"
        raise ValueError(f"{name}: must name a Linear or convolution layer, but it is {what}.")
    return layer
