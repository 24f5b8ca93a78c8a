"""The graph that a file holds: the network as ONNX, without the values of its tensors.  Needs numpy alone.

A value whose name is a decimal number below the number of the file's rows is the tensor of that row; the reader adds
what it stands for. `read` checks a graph before anything else sees it: it is data, and may come from anywhere.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from pocketbayes.artifact import protobuf
from pocketbayes.artifact.numbers import Array
from pocketbayes.artifact.operators import GROWING, OPERATORS
from pocketbayes.artifact.pocket import Pocket, resolve
from pocketbayes.artifact.protobuf import Message, Schema
from pocketbayes.errors import ArtifactError

MAX_GRAPH = 1 << 20  # bytes, inflated
MAX_NODES = 1 << 16
MAX_RANK = 32
MAX_ELEMENTS = 1 << 28  # of a tensor that a graph asks for by number
MAX_INTEGER = 1 << 16  # in an attribute: strides, axes, units
OPSETS = range(18, 24)
IR_VERSION = 10
DTYPES = {  # by their numbers in ONNX
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "complex64": 14,
    "complex128": 15,
    "bfloat16": 16,
}
_NAMES = {number: name for name, number in DTYPES.items()}
_LZMA = [{"id": lzma.FILTER_LZMA1, "dict_size": MAX_GRAPH, "lc": 2, "lp": 0, "pb": 0}]

# --- what a graph may hold ---------------------------------------------------------------------------------------

TENSOR: Schema = {1: ("dims", [int]), 2: ("data_type", int), 8: ("name", str), 9: ("raw_data", bytes)}
ATTRIBUTE: Schema = {
    1: ("name", str),
    2: ("f", float),
    3: ("i", int),
    4: ("s", bytes),
    5: ("t", TENSOR),
    7: ("floats", [float]),
    8: ("ints", [int]),
    9: ("strings", [bytes]),
    20: ("type", int),
}
NODE: Schema = {1: ("input", [str]), 2: ("output", [str]), 4: ("op_type", str), 5: ("attribute", [ATTRIBUTE])}
DIMENSION: Schema = {1: ("dim_value", int), 2: ("dim_param", str)}
TENSOR_TYPE: Schema = {1: ("elem_type", int), 2: ("shape", {1: ("dim", [DIMENSION])})}
VALUE: Schema = {1: ("name", str), 2: ("type", {1: ("tensor_type", TENSOR_TYPE)})}
GRAPH: Schema = {
    1: ("node", [NODE]),
    2: ("name", str),
    5: ("initializer", [TENSOR]),
    11: ("input", [VALUE]),
    12: ("output", [VALUE]),
}
MODEL: Schema = {1: ("ir_version", int), 7: ("graph", GRAPH), 8: ("opset_import", [{2: ("version", int)}])}
ATTRIBUTE_TYPES = {"f": 1, "i": 2, "s": 3, "t": 4, "floats": 6, "ints": 7, "strings": 8}

# What the reader adds: a second graph of initializers, which every parser of protocol buffers merges with the first.
_EXTERNAL = {1: ("key", str), 2: ("value", str)}
_WEIGHT: Schema = {**TENSOR, 13: ("external_data", [_EXTERNAL]), 14: ("data_location", int)}
_WEIGHTS: Schema = {7: ("graph", {2: ("name", str), 5: ("initializer", [_WEIGHT])})}


class Port(NamedTuple):
    """An input or an output of the network."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]  # None where any size will do, such as that of the batch


class StoredGraph(NamedTuple):
    """A graph that was checked, and the file's tensors that it reads."""

    model: bytes  # an ONNX ModelProto in which the file's tensors have no values
    opset: int
    nodes: int
    inputs: list[Port]
    outputs: list[Port]
    tensors: dict[str, str]  # the file's tensors by their names in the graph, ties followed

    def with_weights(self, pocket: Pocket, values: Mapping[str, Array] | None = None) -> bytes:
        """The whole ModelProto.

        Without values the file's tensors are external data, which is how ONNX Runtime wants those that a session is
        given (`SessionOptions.add_external_initializers`); with values, by their names in the graph, they are inside.
        """
        weights = [
            _weight(pocket, name, path, None if values is None else values[name])
            for name, path in self.tensors.items()
        ]
        return self.model + protobuf.write({"graph": {"name": "pocket", "initializer": weights}}, _WEIGHTS)


def _weight(pocket: Pocket, name: str, path: str, values: Array | None) -> Message:
    entry = resolve(pocket, path)
    found = {"name": name, "dims": entry.shape, "data_type": DTYPES[entry.dtype]}
    if values is None:
        return {**found, "data_location": 1, "external_data": [{"key": "location", "value": "pocket"}]}
    if values.shape != tuple(entry.shape):
        raise ValueError(f"{path}: values of shape {values.shape}, the file's tensor has {entry.shape}.")
    return {**found, "raw_data": raw_data(values, entry.dtype)}


def raw_data(values: Array, dtype: str) -> bytes:
    """As ONNX has it: little-endian, and bfloat16 as the upper half of float32."""
    if dtype == "bfloat16":
        return (np.ascontiguousarray(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<")).tobytes()


# --- bytes -------------------------------------------------------------------------------------------------------


def pack(model: Message) -> bytes:
    """The section of a file."""
    plain = protobuf.write(model, MODEL)
    if len(plain) > MAX_GRAPH:
        raise ArtifactError(f"its graph takes {len(plain):,} bytes, at most {MAX_GRAPH:,}")
    return lzma.compress(plain, format=lzma.FORMAT_RAW, filters=_LZMA)


def _inflate(section: bytes) -> bytes:
    engine = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_LZMA)
    try:
        plain = engine.decompress(section, MAX_GRAPH + 1)
    except lzma.LZMAError as error:
        raise ArtifactError(f"graph: not an LZMA stream ({error})") from error
    _need(len(plain) <= MAX_GRAPH, f"more than {MAX_GRAPH:,} bytes")
    _need(engine.eof and not engine.unused_data, "its stream does not end where the section does")
    return plain


def read(pocket: Pocket) -> StoredGraph:
    """The graph of a pocket, checked: ArtifactError if there is none, or one that this library would not write."""
    if not pocket.graph:
        raise ArtifactError(
            "the file has no graph. Write it with an example, pb.save(..., example=x), or add one: "
            "pb.add_graph, or `pocketbayes export FILE OUT.pocket`"
        )
    plain = _inflate(pocket.graph)
    model = protobuf.read(plain, MODEL, "graph")
    graph = model.get("graph", {"node": [], "initializer": [], "input": [], "output": []})
    opsets = [opset.get("version") for opset in model["opset_import"]]
    _need(model.get("ir_version") == IR_VERSION, f"ir_version must be {IR_VERSION}")
    _need(len(opsets) == 1 and opsets[0] in OPSETS, f"operators of {opsets}, one of {OPSETS} can be read")
    _need(0 < len(graph["node"]) <= MAX_NODES, f"1 to {MAX_NODES:,} nodes, got {len(graph['node']):,}")
    _need("name" not in graph, "it has a name")
    inputs, outputs = _ports(graph["input"]), _ports(graph["output"])
    _need(bool(inputs) and bool(outputs), "it needs inputs and outputs")
    return StoredGraph(plain, opsets[0], len(graph["node"]), inputs, outputs, _walk(pocket, graph))


# --- checks ------------------------------------------------------------------------------------------------------


def _ports(values: list[Message]) -> list[Port]:
    found = []
    for value in values:
        kind = value.get("type", {}).get("tensor_type", {})
        dims = kind.get("shape", {}).get("dim", ())
        _need(kind.get("elem_type") in _NAMES, f"{value.get('name')!r} has an unknown type")
        _need(len(dims) <= MAX_RANK, f"{value.get('name')!r} has {len(dims)} dimensions")
        sizes = tuple(None if "dim_param" in d else d.get("dim_value") for d in dims)
        _need(all(size is None or 0 <= size <= MAX_ELEMENTS for size in sizes), "a size out of range")
        found.append(Port(value.get("name", ""), _NAMES[kind["elem_type"]], sizes))
    return found


def _walk(pocket: Pocket, graph: Message) -> dict[str, str]:
    """Every value is defined once and before it is used; returns the file's tensors among them."""
    rows = list(pocket.tensors)
    constants = dict(_constants(graph["initializer"]))
    known, used = set(constants), dict[str, str]()

    def define(name: str) -> None:
        _need(
            bool(name) and name not in known and _row(name, rows) is None, f"{name[:80]!r} is defined twice"
        )
        known.add(name)

    for value in graph["input"]:
        define(value.get("name", ""))
    _need(len(known) == len(graph["initializer"]) + len(graph["input"]), "two constants of one name")
    for node in graph["node"]:
        for name in filter(None, node["input"]):
            row = _row(name, rows)
            _need(name in known or row is not None, f"{name[:80]!r} is used before it is defined")
            if row is not None:
                used[name] = _owner(pocket, row)
        _check_node(node, constants)
        for name in filter(None, node["output"]):
            define(name)
    for value in graph["output"]:
        _need(value.get("name") in known, "an output that nothing computes")
    return used


def _row(name: str, rows: list[str]) -> str | None:
    """The tensor that a name stands for."""
    short = name.isascii() and name.isdecimal() and len(name) <= 9 and name == str(int(name))
    return rows[int(name)] if short and int(name) < len(rows) else None


def _owner(pocket: Pocket, name: str) -> str:
    resolve(pocket, name)
    return getattr(pocket.tensors[name], "target", name)


def _constants(tensors: list[Message]) -> Iterator[tuple[str, Array]]:
    for tensor in tensors:
        _need(bool(tensor.get("name")), "a constant without a name")
        yield tensor["name"], _constant(tensor)


def _constant(tensor: Message) -> Array:
    """The numbers of a constant, flat; those of bfloat16 as integers."""
    dims, dtype = tensor["dims"], _NAMES.get(tensor.get("data_type", 0), "complex64")
    _need(not dtype.startswith("complex"), "a constant of an unknown type")
    _need(len(dims) <= MAX_RANK and all(0 <= d <= MAX_ELEMENTS for d in dims), "a constant's shape")
    stored = np.dtype("uint16" if dtype == "bfloat16" else dtype).newbyteorder("<")
    data, size = tensor.get("raw_data", b""), math.prod(dims) * stored.itemsize
    _need(len(data) == size, f"a constant has {len(data)} bytes, not {size}"[:200])
    return np.frombuffer(data, stored)


def _check_node(node: Message, constants: Mapping[str, Array]) -> None:
    operator = node.get("op_type", "")
    _need(operator in OPERATORS, f"the operator {operator[:80]!r} is not one that networks need")
    _need(bool(node["output"]), f"{operator} has no output")
    for attribute in node["attribute"]:
        _check_attribute(operator, attribute)
    for place in GROWING.get(operator, ()):
        if place < len(node["input"]) and (values := constants.get(node["input"][place])) is not None:
            _need(_asks_for(operator, values) <= MAX_ELEMENTS, f"{operator} asks for too large a tensor")


def _check_attribute(operator: str, attribute: Message) -> None:
    name = attribute.get("name", "")[:80]
    given = {key: attribute[key] for key in ATTRIBUTE_TYPES if attribute.get(key) not in (None, [])}
    kinds = {ATTRIBUTE_TYPES[key] for key in given}
    _need(len(given) <= 1 and kinds <= {attribute.get("type")}, f"{operator}: {name!r} has the wrong type")
    _need(attribute.get("type") in ATTRIBUTE_TYPES.values(), f"{operator}: {name!r} has an unknown type")
    if "t" in given:
        _constant(given["t"])
    integers: list[Any] = [*given.get("ints", ()), given.get("i", 0)]
    _need(all(abs(i) <= MAX_INTEGER for i in integers), f"{operator}: {name!r} is too large")


def _asks_for(operator: str, values: Array) -> float:
    """How many elements a constant shape, count or padding asks for, or how many times more."""
    numbers = np.abs(values.astype(np.float64))
    _need(bool(np.isfinite(numbers).all()), f"{operator}: a size that is not finite")
    if (
        operator == "Range"
    ):  # counts and steps are whole, so that no more numbers lie between than the limit says
        _need(bool((numbers == np.floor(numbers)).all()), "Range in steps that are not whole numbers")
    return float(numbers.sum() if operator == "Pad" else np.maximum(numbers, 1).prod())


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ArtifactError(f"graph: {otherwise}")
