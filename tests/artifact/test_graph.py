from __future__ import annotations

import copy
import lzma
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from pocketbayes.artifact import Plain, Pocket, Tied, decode, encode, graph, protobuf
from pocketbayes.errors import ArtifactError

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
BIAS = np.array([1, -2, 3], np.float32)
TENSORS = {"w": Plain(values=WEIGHT), "again": Tied(target="w"), "b": Plain(values=BIAS)}


def port(name: str, *sizes: int | None, dtype: int = 1) -> dict[str, Any]:
    dims = [{"dim_param": "N"} if size is None else {"dim_value": size} for size in sizes]
    return {"name": name, "type": {"tensor_type": {"elem_type": dtype, "shape": {"dim": dims}}}}


def node(operator: str, inputs: str, outputs: str, **attributes: int | list[int]) -> dict[str, Any]:
    found = [
        {"name": name, "i": value, "type": 2}
        if isinstance(value, int)
        else {"name": name, "ints": value, "type": 7}
        for name, value in attributes.items()
    ]
    return {"op_type": operator, "input": inputs.split(), "output": outputs.split(), "attribute": found}


def constant(name: str, values: Any) -> dict[str, Any]:
    array = np.asarray(values)
    return {
        "name": name,
        "dims": array.shape,
        "data_type": graph.DTYPES[array.dtype.name],
        "raw_data": array.tobytes(),
    }


MODEL: dict[str, Any] = {  # max(x W' + b, 0) [:, 1:], the weight under its second name
    "ir_version": 10,
    "opset_import": [{"version": 20}],
    "graph": {
        "node": [
            node("Gemm", "x 1 2", "3", transB=1),
            node("Relu", "3", "4"),
            node("Slice", "4 one end one", "5"),
        ],
        "initializer": [constant("one", [1]), constant("end", [9])],
        "input": [port("x", None, 4)],
        "output": [port("5", None, 2)],
    },
}


def pocket_with(model: dict[str, Any]) -> Pocket:
    return Pocket(tensors=dict(TENSORS), graph=graph.pack(model))


def changed(change: Callable[[dict[str, Any]], object]) -> Pocket:
    """The pocket whose graph was changed so."""
    model = copy.deepcopy(MODEL)
    change(model)
    return pocket_with(model)


def squeezed(data: bytes) -> Pocket:
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": 1 << 20, "lc": 2, "lp": 0, "pb": 0}]
    return Pocket(tensors=dict(TENSORS), graph=lzma.compress(data, lzma.FORMAT_RAW, filters=filters))


def test_a_graph_is_told_by_its_ports_and_by_the_tensors_that_it_reads() -> None:
    found = graph.read(pocket_with(MODEL))
    assert (found.opset, found.nodes) == (20, 3)
    assert found.inputs == [("x", "float32", (None, 4))] and found.outputs == [("5", "float32", (None, 2))]
    assert found.tensors == {"1": "w", "2": "b"}


def test_a_file_keeps_its_graph() -> None:
    data = encode(pocket_with(MODEL))
    assert data.sizes["GRAF"] == len(pocket_with(MODEL).graph) < 250
    assert decode(data.data).graph == pocket_with(MODEL).graph
    assert encode(decode(data.data)).data == data.data


def test_with_its_weights_inside_a_graph_is_an_onnx_model() -> None:
    pocket = pocket_with(MODEL)
    model = onnx.load_from_string(graph.read(pocket).with_weights(pocket, {"1": WEIGHT, "2": BIAS}))
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = np.maximum(x @ WEIGHT.T + BIAS, 0)[:, 1:]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6)


def test_onnx_runtime_takes_weights_from_outside() -> None:
    pocket = pocket_with(MODEL)
    options = onnxruntime.SessionOptions()
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(v) for v in (WEIGHT, BIAS)]
    options.add_external_initializers(["1", "2"], values)
    model = graph.read(pocket).with_weights(pocket)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": np.ones((1, 4), np.float32)})[0]
    np.testing.assert_allclose(found, np.maximum(WEIGHT.sum(1) + BIAS, 0)[None, 1:], rtol=1e-6)


def test_values_of_another_shape_are_refused() -> None:
    pocket = pocket_with(MODEL)
    with pytest.raises(ValueError, match=r"w: values of shape \(4, 3\), the file's tensor has \(3, 4\)"):
        graph.read(pocket).with_weights(pocket, {"1": WEIGHT.T, "2": BIAS})


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    assert graph.raw_data(np.array([1.0, -2.0], np.float32), "bfloat16") == b"\x80\x3f\x00\xc0"


def test_a_file_without_a_graph_says_how_to_add_one() -> None:
    with pytest.raises(ArtifactError, match=r"no graph\. Write it with an example"):
        graph.read(Pocket(tensors=dict(TENSORS)))


# --- protocol buffers --------------------------------------------------------------------------------------------


def test_messages_are_written_as_onnx_writes_them() -> None:
    theirs = onnx.load_from_string(protobuf.write(MODEL, graph.MODEL))
    assert [n.op_type for n in theirs.graph.node] == ["Gemm", "Relu", "Slice"]
    assert theirs.graph.input[0] == onnx.helper.make_tensor_value_info("x", 1, ["N", 4])
    assert theirs.graph.node[0] == onnx.helper.make_node("Gemm", ["x", "1", "2"], ["3"], transB=1)
    end = onnx.helper.make_tensor("end", 7, [1], np.array([9], "<i8").tobytes(), raw=True)
    assert theirs.graph.initializer[1] == end
    assert theirs.SerializeToString(deterministic=True) == protobuf.write(MODEL, graph.MODEL)


def test_every_kind_of_field_is_read_as_it_was_written() -> None:
    attribute = {
        "name": "é",
        "f": -0.5,
        "i": -(1 << 63),
        "s": b"\xff",
        "floats": [1.0, 2.0],
        "ints": [-1, 0, (1 << 63) - 1],
        "strings": [b"", b"a"],
        "type": 1,
    }
    assert protobuf.read(protobuf.write(attribute, graph.ATTRIBUTE), graph.ATTRIBUTE, "") == attribute


# --- hostile graphs ----------------------------------------------------------------------------------------------


def first(model: dict[str, Any]) -> dict[str, Any]:
    return model["graph"]["node"][0]  # type: ignore[no-any-return]


def adds(*nodes: dict[str, Any], **constants: Any) -> Callable[[dict[str, Any]], object]:
    def change(model: dict[str, Any]) -> None:
        model["graph"]["node"] += nodes
        model["graph"]["initializer"] += [constant(name, values) for name, values in constants.items()]

    return change


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a loop": (lambda m: first(m).update(op_type="Loop"), "'Loop' is not one"),
    "random numbers": (lambda m: first(m).update(op_type="RandomNormal"), "is not one"),
    "an operator of nobody": (lambda m: first(m).update(op_type="os.system"), "is not one"),
    "no output": (lambda m: first(m).update(output=[]), "no output"),
    "a cycle": (lambda m: first(m).update(input=["4", "1"]), "'4' is used before it is defined"),
    "a tensor that the file lacks": (lambda m: first(m).update(input=["x", "9"]), "'9' is used before"),
    "a value defined twice": (adds(node("Relu", "x", "4")), "'4' is defined twice"),
    "a value in place of a tensor": (adds(node("Relu", "x", "0")), "'0' is defined twice"),
    "an input in place of a constant": (
        lambda m: m["graph"]["input"].append(port("one", 1)),
        "defined twice",
    ),
    "two constants of one name": (adds(one=[2]), "two constants"),
    "an output of nothing": (lambda m: m["graph"]["output"].append(port("6", 1)), "nothing computes"),
    "no input": (lambda m: m["graph"]["input"].clear(), "needs inputs"),
    "no node": (lambda m: m["graph"]["node"].clear(), "1 to 65,536 nodes"),
    "an old set of operators": (lambda m: m["opset_import"][0].update(version=1), "operators of"),
    "no set of operators": (lambda m: m["opset_import"].clear(), "operators of"),
    "another IR": (lambda m: m.update(ir_version=3), "ir_version"),
    "no graph": (lambda m: m.pop("graph"), "1 to 65,536 nodes"),
    "an enormous constant": (
        lambda m: m["graph"]["initializer"][0].update(dims=[1 << 40]),
        "a constant's shape",
    ),
    "a constant cut short": (lambda m: m["graph"]["initializer"][0].update(dims=[2]), "8 bytes, not 16"),
    "a negative size": (lambda m: m["graph"]["initializer"][0].update(dims=[-1, -1]), "a constant's shape"),
    "an unknown type": (lambda m: m["graph"]["initializer"][0].update(data_type=8), "unknown type"),
    "an input of text": (lambda m: m["graph"]["input"].append(port("t", 1, dtype=8)), "unknown type"),
    "enormous strides": (adds(node("MaxPool", "x", "6", strides=[1 << 30])), "'strides' is too large"),
    "an attribute of another type": (
        lambda m: first(m)["attribute"][0].update(type=1),
        "'transB' has the wrong type",
    ),
    "an attribute of two types": (
        lambda m: first(m)["attribute"][0].update(f=1.0),
        "'transB' has the wrong type",
    ),
    "an enormous shape": (
        adds(node("ConstantOfShape", "n", "6"), n=[1 << 20, 1 << 20]),
        "too large a tensor",
    ),
    "an enormous expansion": (adds(node("Expand", "x n", "6"), n=[1 << 40]), "too large"),
    "an enormous tiling": (adds(node("Tile", "x n", "6"), n=[1 << 20, 1 << 9]), "too large"),
    "an enormous range": (adds(node("Range", "z n one", "6"), z=0, n=1 << 40), "too large"),
    "a range in tiny steps": (adds(node("Range", "z o n", "6"), z=0.0, o=1.0, n=1e-30), "not whole"),
    "an enormous image": (adds(node("Resize", "x n n", "6"), n=np.float32([1e6, 1e6])), "too large"),
    "an endless image": (adds(node("Resize", "x n n", "6"), n=np.float32([np.inf])), "not finite"),
    "enormous borders": (adds(node("Pad", "x n", "6"), n=[1 << 30, 0, 0, 0]), "too large"),
    "enormous depth": (adds(node("OneHot", "x n one", "6"), n=1 << 40), "too large"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_graph_is_refused(what: str) -> None:
    change, message = HOSTILE[what]
    with pytest.raises(ArtifactError, match=message):
        graph.read(changed(change))


EXTRA = {  # fields that ONNX has and a graph in a file may not
    "external data": (
        lambda m: m.graph.initializer[0].external_data.add(key="location", value="/etc/passwd"),
        "field 13",
    ),
    "a place for external data": (lambda m: setattr(m.graph.initializer[0], "data_location", 1), "field 14"),
    "another domain": (lambda m: setattr(m.graph.node[0], "domain", "com.microsoft"), "field 7"),
    "operators of another domain": (
        lambda m: m.opset_import.add(domain="com.microsoft", version=1),
        "field 1 ",
    ),
    "a graph in an attribute": (
        lambda m: m.graph.node[0].attribute.add(name="body", type=5).g.node.add(op_type="Relu"),
        "field 6",
    ),
    "a function": (lambda m: m.functions.add(name="f"), "field 25"),
    "a sparse tensor": (lambda m: m.graph.sparse_initializer.add(), "field 15"),
    "metadata": (lambda m: m.metadata_props.add(key="a", value="b"), "field 14"),
    "numbers beside the raw ones": (lambda m: m.graph.initializer[0].int64_data.append(1), "field 7"),
}


@pytest.mark.parametrize("what", EXTRA)
def test_what_a_graph_has_no_use_for_is_refused(what: str) -> None:
    change, message = EXTRA[what]
    model = onnx.load_from_string(protobuf.write(MODEL, graph.MODEL))
    change(model)
    with pytest.raises(ArtifactError, match=f"{message}.*does not belong"):
        graph.read(squeezed(model.SerializeToString()))


BROKEN = {
    "a field cut off": (b"\x3a\x05\x0a", "cut off"),
    "an endless integer": (b"\x08" + b"\xff" * 11, "ten bytes"),
    "another wire type": (b"\x0d\x00\x00\x00\x00", "wire type"),
    "one field twice": (b"\x08\x0a\x08\x0a", "twice"),
    "a name that is no text": (b"\x3a\x03\x12\x01\xff", "not UTF-8"),
    "a multitude of empty messages": (b"\x42\x00" * (1 << 18), "parts"),
    "too many bytes": (b"\x12\x00" * (1 << 20), "more than 1,048,576 bytes"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_bytes_are_refused(what: str) -> None:
    data, message = BROKEN[what]
    with pytest.raises(ArtifactError, match=message):
        graph.read(squeezed(data))


def test_a_section_that_does_not_inflate_is_refused() -> None:
    whole = pocket_with(MODEL)
    for section in (b"x", whole.graph[:-9], whole.graph + b"\0"):
        with pytest.raises(ArtifactError, match=r"LZMA|stream"):
            graph.read(replace(whole, graph=section))


def test_a_bomb_takes_little_memory_and_time() -> None:
    bomb, started = squeezed(b"\x42\x00" * (1 << 24)), time.perf_counter()
    assert len(bomb.graph) < 10_000
    tracemalloc.start()
    with pytest.raises(ArtifactError):
        graph.read(bomb)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20 and time.perf_counter() - started < 2
    tracemalloc.stop()


def test_damaged_bytes_give_an_error_or_a_graph_that_passes_every_check() -> None:
    data, rng = protobuf.write(MODEL, graph.MODEL), random.Random(0)
    refused = 0
    for _ in range(3000):
        broken = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        try:
            graph.read(squeezed(bytes(broken)))
        except ArtifactError:
            refused += 1
    assert refused > 1500
