"""What better contexts could save: label bytes of our files under the coder, without contexts, and under mixed contexts.

    python -m experiments.sharing.codec

The mixture stands for what adaptive frequencies and more contexts could do: counts in every context, of the labels decoded so
far, each backed by those of its layer, and the product of their predictions with exponents that are learned on the way.
Nothing is stored.  Contexts are the neighbours in the kernel, as in the format and finer, how large the kernel, its channels
and the layer before were, the same cell of the kernels before, and the cell's place.  A decoder would have to do the same
sums for each label, so its bytes are a mark to compare with, and not an offer.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.markdown import measured, one_core, table
from experiments.record import RESULTS, command_line, versions, write_result
from experiments.sharing.train_network import MODELS
from pocketbayes.artifact import Pocket, Shared, codec, context, decode
from pocketbayes.artifact.codec import LabelLayout, layer_of

RESULT = RESULTS / "sharing/codec.json"
FILES = ("resnet20-cifar10", "resnet20-mnist")
BLOCK, LR = 32, 0.005
BINS = (0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 1.2, 1.6)  # of sizes, in root mean squares of the layer
EDGES = (-3.0, -1.5, -0.75, -0.25, 0.25, 0.75, 1.5, 3.0)  # of predictions
BACKING = 20.0  # labels that a context's layer, and a layer's network, count for


def layers_of(pocket: Pocket) -> list[Shared]:
    return [entry for entry in pocket.tensors.values() if isinstance(entry, Shared)]


def stored(pocket: Pocket, *, contexts: bool) -> int:
    """Bytes of the stream and of its tables; without contexts every layer has one table."""
    assert pocket.codebook is not None
    levels = context.levels_of(pocket.codebook.mu)
    layers = [
        (
            each.labels,
            layer_of(each.shape, each.labels.size) if contexts else LabelLayout(each.labels.size, (1, 1)),
        )
        for each in layers_of(pocket)
    ]
    coded = codec.encode(layers, levels)
    groups = sum(2 + len(each.tables) for each in coded.groupings)
    return coded.words.nbytes + groups + len(zlib.compress(coded.tables.T.tobytes(), 9))


# --- what a decoder knows ---------------------------------------------------------------------------------------


def before(values: Tensor, dim: int) -> Tensor:
    """The mean of those that come earlier along a dimension; 0 for the first."""
    sums = values.cumsum(dim) - values
    count = torch.arange(values.shape[dim]).clamp_min(1)
    return sums / count.view([-1 if d == dim else 1 for d in range(values.ndim)])


def contexts_of(entry: Shared, means: Tensor, last: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
    """The context of every label in each model, [out, in, cells], and the mean size of each output channel."""
    value = means[entry.labels.astype(np.int64)].view(*entry.shape[:2], -1)
    value = value / value.square().mean().sqrt().clamp_min(1e-9)
    size, shape = value.abs(), value.shape
    height, width = context.kernel_of(entry.shape)
    padded = nn.functional.pad(value.view(*shape[:2], height, width), (1, 0, 1, 0))
    left, up, corner = padded[..., 1:, :-1], padded[..., :-1, 1:], padded[..., :-1, :-1]
    slope = (2 * left + 2 * up - corner).reshape(shape)
    rows = size.mean(2, keepdim=True)
    output = before(size.flatten(1), 1).view(shape)
    entered = before(rows, 0).expand(shape)
    kernel = before(size, 2)
    place = torch.arange(shape[2]).expand(shape)
    found = {
        "kernel": bins(slope / 2, EDGES),
        "kernel, finer": bins((left + up - corner).reshape(shape), EDGES) * 9 + bins(slope / 2, EDGES),
        "size in the kernel": bins(kernel, BINS) * shape[2] + place,
        "output channel": bins(output, BINS),
        "input channel": bins(entered, BINS),
        "both channels": bins((output * entered).sqrt(), BINS) * 9 + bins(kernel, BINS),
        "place": place,
        "output before": bins(before(value, 0), tuple(e / 4 for e in EDGES)),
        "input before": bins(before(value, 1), tuple(e / 4 for e in EDGES)),
    }
    if last is not None and len(last) == shape[1]:
        found["layer before"] = bins((last / last.mean()).view(1, -1, 1).expand(shape), BINS)
    return found, size.mean((1, 2))


def bins(values: Tensor, edges: tuple[float, ...]) -> Tensor:
    return torch.bucketize(values.contiguous(), torch.tensor(edges))


def mixed(pocket: Pocket) -> float:
    """Bytes of the labels under the mixture."""
    assert pocket.codebook is not None
    means = torch.tensor(context.levels_of(pocket.codebook.mu).astype(np.float32))
    bits, last, seen = 0.0, None, torch.full((len(means),), 0.02)
    exponents: dict[str, Tensor] = {}
    for entry in layers_of(pocket):
        found, last = contexts_of(entry, means, last)
        names = ["layer", *found]
        chosen = torch.stack(
            [torch.zeros(entry.labels.size, dtype=torch.long), *map(torch.flatten, found.values())]
        )
        weight = torch.stack([exponents.get(name, torch.tensor(0.15)) for name in names]).requires_grad_()
        label = torch.from_numpy(entry.labels.astype(np.int64))
        bits += mixed_layer(label, chosen, weight, seen / seen.sum())
        seen += label.bincount(minlength=len(means))
        exponents |= dict(zip(names, weight.detach(), strict=True))
    return bits / 8


def mixed_layer(label: Tensor, chosen: Tensor, weight: Tensor, start: Tensor) -> float:
    """Bits of a layer's labels [N] with contexts [models, N], the first of them always 0; exponents [models] learn.

    `start` is how often the layers before used each symbol.
    """
    models = torch.arange(len(chosen))[:, None]
    counts = torch.zeros(len(chosen), int(chosen.max()) + 1, len(start))
    optimizer, bits = torch.optim.Adam([weight], LR), 0.0
    for rows in torch.arange(len(label)).split(BLOCK):
        here, truth = chosen[:, rows], label[rows]
        layer = counts[0, 0] + BACKING * start
        each = counts[models, here] + BACKING * layer / layer.sum()  # [models, n, symbols]
        logs = (each / each.sum(2, keepdim=True)).log()
        loss = cross_entropy(torch.einsum("m,mns->ns", weight, logs), truth)
        bits += loss.item() * len(rows) / math.log(2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ones = torch.ones(here.shape)
        counts.index_put_((models.expand_as(here), here, truth.expand_as(here)), ones, accumulate=True)
    return bits


def speed(pocket: Pocket) -> float:
    """Million labels a second that one core decodes, the fastest of 20 times."""
    assert pocket.codebook is not None
    levels = context.levels_of(pocket.codebook.mu)
    layouts = [layer_of(each.shape, each.labels.size) for each in layers_of(pocket)]
    coded = codec.encode(
        [(e.labels, layout) for e, layout in zip(layers_of(pocket), layouts, strict=True)], levels
    )
    times = []
    for _ in range(20):
        started = time.process_time()
        decoder = codec.Decoder(coded, levels)
        for layout, grouping in zip(layouts, coded.groupings, strict=True):
            decoder.layer(layout, grouping)
        times.append(time.process_time() - started)
    return sum(layout.size for layout in layouts) / min(times) / 1e6


def main() -> None:
    command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    rows = {}
    for name in FILES:
        pocket = decode(MODELS / f"{name}.pocket")
        rows[name] = {
            "labels": sum(each.labels.size for each in layers_of(pocket)),
            "speed": round(speed(pocket), 1),
            "bytes": {
                "a table for each layer": stored(pocket, contexts=False),
                "format 2: contexts in kernels": stored(pocket, contexts=True),
                "mixed contexts": round(mixed(pocket)),
            },
        }
        print(name, json.dumps(rows[name]), flush=True)
    result = {
        "command": "python -m experiments.sharing.codec",
        "rows": rows,
        "seconds": round(time.process_time() - started),
        "versions": versions(),
    }
    write_result(RESULT, result)


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    _, coded, best = result["rows"][FILES[0]]["bytes"].values()
    return f"labels {best / coded - 1:+.1%} by mixed contexts."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = result["rows"]
    lines = [
        [code, *(cell(rows[name], code) for name in rows)] for code in next(iter(rows.values()))["bytes"]
    ]
    speeds = ", ".join(f"{rows[name]['speed']:g} ({name})" for name in rows)
    return f"""## What better contexts could save

{measured(result, one_core(result["seconds"]))} Bytes of labels with their tables, and bits a label. The last row stands for adaptive frequencies and
for contexts from channels and the layer before, mixed with learned exponents; nothing of it is stored. That is too little for the work, so it is not in the format. Our coder decodes {speeds} million labels a second on one core.

{table(f"| labels coded by | {' | '.join(rows)} |", lines)}
"""


def cell(row: dict[str, Any], code: str) -> str:
    size = row["bytes"][code]
    coded = row["bytes"]["format 2: contexts in kernels"]
    return f"{size:,} ({8 * size / row['labels']:.3f}; {size / coded - 1:+.1%})"


if __name__ == "__main__":
    main()
