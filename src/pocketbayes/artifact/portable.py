"""A pocket's network as a plain ONNX model for any runtime: its means, or one draw of it.  Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from pocketbayes.artifact import graph, protobuf
from pocketbayes.artifact.graph import DTYPES, MODEL
from pocketbayes.artifact.numbers import Array
from pocketbayes.artifact.pocket import Pocket, resolve
from pocketbayes.artifact.protobuf import Message


def portable(pocket: Pocket, values: Mapping[str, Array], *, logit_temperature: float = 1.0) -> bytes:
    """An ONNX model of the pocket's graph with these values of its tensors, by name.

    Its output is called `output`: what the network answers, divided by the temperature.
    """
    if not 0 < logit_temperature < float("inf"):
        raise ValueError(f"logit_temperature must be positive, got {logit_temperature}.")
    stored = graph.read(pocket)
    model = protobuf.read(stored.model, MODEL, "graph")
    main = model["graph"]
    answer = main["output"][0]
    names = {**stored.tensors, answer["name"]: "output" if logit_temperature == 1 else "logits"}
    for node in main["node"]:
        for side in ("input", "output"):
            node[side] = [names.get(name, name) for name in node[side]]
    main["output"] = [{**answer, "name": "output"}]
    main["name"] = "pocketbayes"
    main["initializer"] += [
        _tensor(path, values[path], resolve(pocket, path).dtype)
        for path in dict.fromkeys(stored.tensors.values())
    ]
    if logit_temperature != 1:
        kind = stored.outputs[0].dtype
        main["initializer"].append(_tensor("logit_temperature", np.asarray(logit_temperature), kind))
        inputs = ["logits", "logit_temperature"]
        main["node"].append({"op_type": "Div", "input": inputs, "output": ["output"]})
    return protobuf.write(model, MODEL)


def _tensor(name: str, values: Array, dtype: str) -> Message:
    return {
        "name": name,
        "dims": values.shape,
        "data_type": DTYPES[dtype],
        "raw_data": graph.raw_data(values, dtype),
    }
