"""Graphs in files: which of the networks in tests/zoo.py can be exported, and do they run as torch does?

Each network becomes Bayesian and goes into a file with its graph, without rounding. The file is read back without torch, and its
graph run by ONNX Runtime with the means of its weights and with a draw, on one, two and five inputs.

    python -m experiments.exporting
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from tests.zoo import ZOO, Animal, hugging_face, vision_transformers
from torch import Tensor, nn

import pocketbayes as pb
from experiments.markdown import measured, table
from experiments.record import RESULTS, versions, write_result
from pocketbayes.artifact import FLOAT32, decode, graph, mean_weights, sample_weights
from pocketbayes.artifact.portable import portable
from pocketbayes.likelihood import output_tensor

RESULT = RESULTS / "graph" / "zoo.json"
SEED, DRAW = 1, 2
BATCHES = (1, 2, 5)


def row(animal: Animal, folder: Path) -> dict[str, Any]:
    """What became of one network: its graph and how far its outputs are from torch's, or why there is none."""
    torch.manual_seed(0)
    model, inputs = pb.bayesianize(animal.build(), sigma=pb.Absolute(0.05)).eval(), animal.inputs()
    path = folder / "model.pocket"
    found: dict[str, Any] = {
        "name": animal.name,
        "weights": sum(p.numel() for p in animal.build().parameters()),
    }
    saved = pb.save(model, path, precision=FLOAT32, example=inputs)
    if saved.no_graph:
        return {**found, "reason": saved.no_graph}
    stored = graph.read(decode(path))
    found |= {"bytes": saved.sections["GRAF"], "nodes": stored.nodes}
    return {**found, "difference": max(differences(model, path, inputs))}


def differences(model: nn.Module, path: Path, inputs: tuple[Tensor, ...]) -> Iterator[float]:
    """The largest of each run, of the largest output."""
    pocket = decode(path)
    ways = (
        (pb.mean_weights(model), mean_weights(pocket)),
        (pb.one_draw(model, SEED, DRAW), sample_weights(pocket, SEED, DRAW)),
    )
    for way, weights in ways:
        session = onnxruntime.InferenceSession(portable(pocket, weights), providers=["CPUExecutionProvider"])
        names = [port.name for port in session.get_inputs()]
        with torch.no_grad(), way:
            for count in BATCHES:
                batch = [torch.cat([x] * count)[:count] for x in inputs]
                expected = output_tensor(model(*batch)).numpy()
                (answer,) = session.run(None, {n: x.numpy() for n, x in zip(names, batch, strict=True)})
                yield float(np.abs(answer - expected).max() / max(1.0, np.abs(expected).max()))


def exported(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in result["networks"] if "reason" not in one]


def headline(result: dict[str, Any]) -> str:
    """For RESULTS.md."""
    works = exported(result)
    return f"{len(works)} of {len(result['networks'])} as in torch."


def section(result: dict[str, Any]) -> str:
    """This experiment's part of its page."""
    rows = [
        (one["name"], f"{one['weights']:,}", one["nodes"], one["bytes"], f"{one['difference']:.0e}")
        for one in exported(result)
    ]
    others = "\n".join(f"- {one['name']}: {one['reason']}" for one in result["networks"] if "reason" in one)
    return f"""## Networks exported with their files

{measured(result, f"{result['minutes']:g} minutes on one core of a shared machine")}

The networks are those that `tests/posterior/test_zoo.py` holds to its laws. Each is made Bayesian and saved with an example in two copies, not rounded. The file is read without torch, and its graph run by ONNX Runtime with
the means of the weights and with draw {DRAW} of seed {SEED}, on {", ".join(map(str, BATCHES))} inputs; the difference to torch is the largest, as a fraction of the largest output (or of 1).

{table("| network | parameters | nodes | bytes in the file | difference |", rows)}

Without a graph, and why (the library's message):

{others}
"""


def main() -> None:
    torch.set_num_threads(1)
    started = time.monotonic()
    warnings.simplefilter("ignore")
    networks = []
    with tempfile.TemporaryDirectory() as folder:
        for animal in (*ZOO, *hugging_face(), *vision_transformers()):
            networks.append(row(animal, Path(folder)))
            print(networks[-1], flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    result = {
        "command": "python -m experiments.exporting",
        "minutes": round((time.monotonic() - started) / 60, 1),
        "versions": {"onnxruntime": onnxruntime.__version__, **versions()},
        "networks": networks,
    }
    write_result(RESULT, result)


if __name__ == "__main__":
    main()
