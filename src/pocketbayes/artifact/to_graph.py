"""A network as the graph that its file holds: exported by torch.onnx, its tensors by the rows of the file."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import util
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pocketbayes.arrays import Array, to_numpy
from pocketbayes.artifact import graph
from pocketbayes.artifact.graph import IR_VERSION
from pocketbayes.artifact.pocket import Pocket
from pocketbayes.artifact.portable import portable
from pocketbayes.artifact.protobuf import Message
from pocketbayes.artifact.to_pocket import to_pocket
from pocketbayes.errors import ArtifactError
from pocketbayes.likelihood import Batch, Categorical, Likelihood, output_tensor
from pocketbayes.posterior.convert import to_deterministic
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.weights import stochastic_weights, unwrap
from pocketbayes.prediction.inputs import device_of, slices
from pocketbayes.prediction.scales import scales_of
from pocketbayes.runs.files import write_atomically

_REGISTRY = "torch.onnx._internal.exporter._registration"  # a logger
OPSET = 20
NEEDED = ("onnx", "onnx_ir", "onnxruntime", "onnxscript")
TOLERANCE = 1e-3  # of the largest output: what the order of sums may change in a deep network


class Exported(NamedTuple):
    """A graph as a file holds it, or why there is none."""

    graph: bytes
    why_not: str = ""


def export_or_warn(pocket: Pocket, model: nn.Module, example: Any) -> Exported:
    """The graph of the pocket's model; a model that cannot be exported is worth a warning, no error."""
    try:
        return Exported(with_graph(pocket, model, example).graph)
    except ArtifactError as error:
        warnings.warn(f"The file will have no graph: {error}", stacklevel=3)
        return Exported(b"", str(error))


def with_graph(pocket: Pocket, model: nn.Module, example: Any) -> Pocket:
    """The pocket with the graph of its model.  ArtifactError, in one line, where the model cannot be exported.

    Args:
        example: inputs that the model takes, a tensor or a tuple or dict of them; two are enough. The graph takes any
            number.
    """
    missing = [name for name in NEEDED if util.find_spec(name) is None]
    if missing:
        raise ArtifactError(f"exporting it needs {', '.join(missing)}: pip install 'pocketbayes[export]'")
    plain = plain_of(model)
    try:
        batch = _two(plain, example)
        found = replace(pocket, graph=graph.pack(_message(_exported(plain, batch), list(pocket.tensors))))
        _require_same(found, plain, batch)
        return found
    except ArtifactError:
        raise
    except Exception as error:  # the exporter runs the user's code, which may fail in any way
        raise ArtifactError(_reason(error)) from error


def _reason(error: BaseException) -> str:
    """The first cause of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = str(error).split("\n\n")[0]
    return f"{type(error).__name__}: {' '.join(first.split())}"[:300]


def to_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    example: Any,
    seed: int | None = None,
    number: int = 0,
    likelihood: Likelihood | None = None,
) -> Path:
    """Write the network as a plain ONNX file, for any runtime: with the means of its weights, or with one draw.

    Args:
        model: a Bayesian model, at any stage; the means are those of its first mode.
        path: where the file goes.
        example: inputs that it takes, a tensor or a tuple or dict of them; two are enough. The file takes any number.
        seed, number: of the draw, the one that `one_draw(model, seed, number)` shows; without a seed, the means.
        likelihood: what the outputs are; classes by default, whose logits through the means are divided by the
            temperature that `calibrate` found for them.

    Returns:
        The path. The file has the network's inputs by their names, and `output`.

    Examples:
        >>> model = pb.bayesianize(pb.nets.mlp([4, 16, 3]))
        >>> path = pb.to_onnx(model, "mlp.onnx", example=torch.ones(1, 4))
        >>> path.stat().st_size < 1500
        True
    """
    pocket = with_graph(to_pocket(model), model, example)
    network = modes_of(model)[0] if seed is None else unwrap(model)
    plain = to_deterministic(network, seed, None if seed is None else number)
    tempered = seed is None and (likelihood is None or isinstance(likelihood, Categorical))
    temperature = scales_of(unwrap(model)).mean.temperature if tempered else 1.0
    write_atomically(path, portable(pocket, _values(plain), logit_temperature=temperature))
    return Path(path)


def plain_of(model: nn.Module) -> nn.Module:
    """A plain copy in evaluation mode, with the means of the weights; of several modes the first."""
    model = modes_of(model)[0]
    plain = to_deterministic(model) if stochastic_weights(model) else copy.deepcopy(model)
    return plain.eval()


def _exported(plain: nn.Module, batch: Batch) -> Any:
    """The network as onnx_ir has it, its tensors among the inputs so that nothing is computed from their values."""
    import onnxscript.optimizer

    leaves = pytree.tree_leaves(output := plain(*batch.args, **batch.kwargs))
    answer = next(place for place, leaf in enumerate(leaves) if leaf is output_tensor(output))
    logging.getLogger(_REGISTRY).addFilter(_not_of_torchvision)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        shapes = _shapes(plain, batch)
        program = torch.export.export(plain, batch.args, batch.kwargs, dynamic_shapes=shapes, strict=False)
        found: Any = torch.onnx.export(
            program, dynamo=True, opset_version=OPSET, optimize=False, verbose=False
        )
        main = found.model.graph
        for name in [n for n in main.initializers if n in plain.state_dict()]:
            value = main.initializers.pop(name)
            value.const_value = None
            main.inputs.append(value)
        main.outputs[:] = [main.outputs[answer]]
        onnxscript.optimizer.optimize_ir(found.model)
    return main


def _not_of_torchvision(record: logging.LogRecord) -> bool:
    """Whether a line is not one of those that torch logs where torchvision, which is not needed, is not installed."""
    return not str(record.msg).startswith("torchvision is not installed")


def _two(plain: nn.Module, example: Any) -> Batch:
    """Two examples: a dimension of one would be taken for a constant."""
    batch = next(slices(example, 2, device_of(plain)))

    def doubled(value: Tensor) -> Tensor:
        return torch.cat([value, value])[:2]

    args, kwargs = pytree.tree_map_only(Tensor, doubled, (batch.args, batch.kwargs))
    return Batch(args, kwargs, None)


def _shapes(plain: nn.Module, batch: Batch) -> dict[str, Any]:
    """That the first dimension of every input is free, by the names of the network's arguments."""
    given = inspect.signature(plain.forward).bind(*batch.args, **batch.kwargs).arguments
    free = {0: torch.export.Dim.DYNAMIC}
    return {
        name: pytree.tree_map(lambda v: free if isinstance(v, Tensor) else None, value)
        for name, value in given.items()
    }


def _require_same(pocket: Pocket, plain: nn.Module, batch: Batch) -> None:
    """The graph must answer as the network does, whatever the number of inputs."""
    import onnxruntime

    options, quiet = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.log_severity_level = quiet.log_severity_level = 4
    whole = portable(pocket, _values(plain))
    session = onnxruntime.InferenceSession(whole, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    for count in (2, 1):
        args, kwargs = pytree.tree_map_only(Tensor, itemgetter(slice(count)), (batch.args, batch.kwargs))
        inputs = [t.cpu().numpy() for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        with torch.no_grad():
            expected = output_tensor(plain(*args, **kwargs)).cpu()
        answer = torch.from_numpy(session.run(None, dict(zip(names, inputs, strict=True)), quiet)[0])
        atol = TOLERANCE * float(expected.abs().nan_to_num().max())
        if not torch.allclose(answer, expected, rtol=0, atol=atol, equal_nan=True):
            raise ArtifactError(f"its graph answers {count} inputs otherwise than the network")


def _values(plain: nn.Module) -> dict[str, Array]:
    return {name: to_numpy(tensor) for name, tensor in plain.state_dict().items()}


# --- as a message ------------------------------------------------------------------------------------------------


def _message(main: Any, rows: list[str]) -> Message:
    """The graph with numbers for names: those of rows, then one for each constant and each value computed."""
    numbers = {name: str(row) for row, name in enumerate(rows)}
    inputs = [value for value in main.inputs if value.name not in numbers]
    names = {id(value): numbers[value.name] for value in main.inputs if value.name in numbers}
    names |= {id(value): value.name for value in inputs}

    def name(value: Any) -> str:
        return "" if value is None else names.setdefault(id(value), str(len(rows) + len(names)))

    constants = [_constant(name(value), value.const_value) for value in main.initializers.values()]
    nodes = [_node(node, name) for node in main]
    return {
        "ir_version": IR_VERSION,
        "opset_import": [{"version": OPSET}],
        "graph": {
            "node": nodes,
            "initializer": constants,
            "input": [_port(value, name(value)) for value in inputs],
            "output": [_port(value, name(value)) for value in main.outputs],
        },
    }


def _port(value: Any, name: str) -> Message:
    dims = [{"dim_value": size} if isinstance(size, int) else {} for size in value.shape or ()]
    kind = {"elem_type": int(value.dtype)} | ({} if value.shape is None else {"shape": {"dim": dims}})
    return {"name": name, "type": {"tensor_type": kind}}


def _constant(name: str, tensor: Any) -> Message:
    found = {"dims": tuple(tensor.shape), "data_type": int(tensor.dtype), "raw_data": tensor.tobytes()}
    return {"name": name, **found} if name else found


def _node(node: Any, name: Callable[[Any], str]) -> Message:
    if node.domain:
        raise ArtifactError(
            f"it uses the operator {node.domain}::{node.op_type}, which is none of ONNX's own"
        )
    defaults = dict(_defaults(node))
    return {
        "op_type": node.op_type,
        "input": [name(value) for value in node.inputs],
        "output": [name(value) if value.uses() or value.is_graph_output() else "" for value in node.outputs],
        "attribute": [
            _attribute(key, attribute)
            for key, attribute in sorted(node.attributes.items())
            if key not in defaults or attribute.value != defaults[key]
        ],
    }


def _defaults(node: Any) -> Iterator[tuple[str, Any]]:
    """What attributes are where they are left out."""
    import onnx

    for key, attribute in onnx.defs.get_schema(node.op_type, OPSET).attributes.items():
        if attribute.default_value.type:
            value = onnx.helper.get_attribute_value(attribute.default_value)
            yield key, value.decode() if isinstance(value, bytes) else value
    if node.op_type == "Conv":
        attributes = node.attributes
        yield "kernel_shape", attributes["kernel_shape"].value if "kernel_shape" in attributes else None
        for key, one in (("strides", 1), ("dilations", 1), ("pads", 0)):
            yield key, (one,) * len(attributes[key].value) if key in attributes else None


def _attribute(key: str, attribute: Any) -> Message:
    kind = int(attribute.type)
    field = next((field for field, number in graph.ATTRIBUTE_TYPES.items() if number == kind), None)
    if field is None:
        raise ArtifactError(f"its graph has an attribute {key!r} of a kind that files do not hold")
    value = attribute.value
    if field in ("s", "strings"):
        value = value.encode() if field == "s" else [text.encode() for text in value]
    return {"name": key, "type": kind, field: _constant("", value) if field == "t" else value}
