"""Follow the neurons through a model's forward pass, traced by torch.fx."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from pocketbayes.structure import shapes
from pocketbayes.structure.layers import listed_graph, spread_over, weighted_layer
from pocketbayes.structure.network import Builder, Cell, NeuronGraph
from pocketbayes.structure.schemes import Weight
from pocketbayes.structure.shapes import Stream, Untraceable
from pocketbayes.structure.tracer import NORMS, LayerTracer, is_leaf, kind_of, ranks_of

SUMS = frozenset({"add", "iadd", "sub", "isub", "rsub"})
PRODUCTS = frozenset({"mul", "imul", "multiply", "div", "truediv", "itruediv"})
QUESTIONS = frozenset({"size", "getattr", "dim", "len"})  # about a tensor's shape
NUMBER = object()  # their answers, and what is computed from them


class TensorValue:
    """A parameter or buffer of the model in the forward pass, as it is or expanded over the batch."""

    def __init__(self, name: str, value: Tensor) -> None:
        self.name, self.value = name, value


def neuron_graph(
    model: nn.Module,
    layers: Sequence[str] | Mapping[str, tuple[str, str]] | None = None,
    odd: bool | Collection[str] = False,
    example: Tensor | None = None,
) -> NeuronGraph:
    """The graph of a model's neurons, from its forward pass; or of `layers`, given as for `listed_graph`.

    `example` is one input batch, needed only where the layers do not tell how many axes a tensor has.  Sign
    flips through a product of two streams (a gate) are counted for one of its factors only.
    """
    if layers is not None:
        return listed_graph(model, layers, odd)
    where = type(model).__name__
    if is_leaf(model):
        raise ValueError(f"{where}: a single layer has no hidden neurons. Pass the network it is a part of.")
    try:
        traced = fx.GraphModule(model, LayerTracer().trace(model))
    except Exception as error:  # tracing runs the user's code on proxies: it may fail in any way
        raise ValueError(f"{where}: torch.fx cannot trace its forward ({error}). {shapes.ADVICE}") from error
    walk = _Walk(model, ranks_of(traced, example))
    for node in traced.graph.nodes:
        walk.visit(node)
    return walk.builder.build()


def _weight_id(module: nn.Module) -> int:
    """Of the weight itself, or of what it is drawn from, which modules may share; else of its module."""
    weight = module._parameters.get("weight")
    if weight is None and parametrize.is_parametrized(module, "weight"):
        assert isinstance(module.parametrizations, nn.ModuleDict)
        weight = getattr(module.parametrizations["weight"], "original", None)
    return id(module if weight is None else weight)


class _Walk:
    """Visits node by node and finds what each stands for: a Stream, a TensorValue, a tuple, a number, or None.

    None is whatever depends on the network's input alone, whose channels stay in place.
    """

    def __init__(self, model: nn.Module, ranks: dict[str, int]) -> None:
        self.model, self.ranks = model, ranks
        self.builder = Builder()
        self.values: dict[fx.Node, Any] = {}
        # By the weight's id: layers that share a weight are one layer used twice.
        self.names: dict[int, str] = {}
        self.embedded: dict[int, list[Cell]] = {}

    def visit(self, node: fx.Node) -> None:
        args = fx.node.map_arg(node.args, lambda n: self.values[n])
        kwargs = fx.node.map_arg(node.kwargs, lambda n: self.values[n])
        try:
            value = self._value(node, args, dict(kwargs))
        except Untraceable as error:
            raise ValueError(f"{self._name(node)}: {error} {shapes.ADVICE}") from error
        if isinstance(value, Stream) and node.name in self.ranks:
            value = replace(value, rank=self.ranks[node.name])
        self.values[node] = value

    def _name(self, node: fx.Node) -> str:
        inside = f"{node.name} in {type(self.model).__name__}.forward"
        return str(node.target) if node.op == "call_module" else inside

    def _value(self, node: fx.Node, args: Any, kwargs: dict[str, Any]) -> Any:
        if node.op == "placeholder":
            return None
        if node.op == "get_attr":
            name = str(node.target)
            owner = self.model.get_submodule(name.rpartition(".")[0])
            value = getattr(owner, name.rpartition(".")[2])
            return TensorValue(name, value) if isinstance(value, Tensor) else None
        if node.op == "call_module":
            module = self.model.get_submodule(str(node.target))
            return self._module(str(node.target), module, (*args, *kwargs.values()))
        if node.op == "output":
            fx.node.map_aggregate(args, self._pin)
            return None
        name = str(getattr(node.target, "__name__", node.target))
        return self._function(name.replace("_", ""), args, kwargs)

    def _pin(self, value: Any) -> None:
        if isinstance(value, Stream):
            self.builder.pin(value.cells)

    # --- modules

    def _module(self, name: str, module: nn.Module, args: Any) -> Any:
        stream = args[0]
        if weighted_layer(name, module) is not None:
            return self._weighted(name, module, stream)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            cells = self.builder.fresh(name, module.embedding_dim)
            self.builder.rider(f"{name}.weight", cells, dim=-1)
            self.embedded[_weight_id(module)] = cells
            return Stream(tuple(cells), -1, None)
        if isinstance(module, nn.MultiheadAttention):
            return self._attention(name, module, args)
        if stream is None and (isinstance(module, NORMS) or not any(True for _ in module.parameters())):
            return None
        if not isinstance(stream, Stream):
            raise Untraceable(f"{type(module).__name__} cannot be followed.")
        if isinstance(module, NORMS):
            return self._norm(name, module, stream)
        if isinstance(module, nn.Flatten):
            return shapes.flatten(stream, module.start_dim, module.end_dim)
        if isinstance(module, nn.PReLU) and module.num_parameters > 1:
            self.builder.rider(f"{name}.weight", self._all_cells(stream.cells), flips=False)
        limits = (module.min_val, module.max_val) if isinstance(module, nn.Hardtanh) else ()
        return self._elementwise(kind_of(module).__name__.lower(), stream, limits)

    def _weighted(self, name: str, module: nn.Module, stream: Any) -> Stream:
        layer = weighted_layer(name, module)
        assert layer is not None
        axis = 1 - len(layer.weight.shape)
        rank = stream.rank if isinstance(stream, Stream) else None
        inputs = self._read(stream, layer.inputs, axis, name)
        outputs = self.builder.fresh(name, layer.outputs)
        self.builder.tie(self.embedded.get(_weight_id(module), inputs), inputs)
        weight = layer.weight._replace(name=self.names.setdefault(_weight_id(module), layer.weight.name))
        self.builder.layer(weight, layer.groups, inputs, outputs)
        if layer.bias is not None:
            self.builder.rider(layer.bias, outputs)
        return Stream(tuple(outputs), axis, rank if axis == -1 else len(layer.weight.shape))

    def _read(self, stream: Any, count: int, axis: int, name: str) -> list[Cell]:
        """The neurons that a layer reads."""
        if stream is None:
            return self.builder.fresh("input", count, pinned=True)
        if not isinstance(stream, Stream) or stream.axis != axis:
            raise Untraceable("its input does not have the neurons along the axis that it reads.")
        cells = spread_over(stream.cells, count, name) if stream.spread else list(stream.cells)
        if len(cells) != count:
            raise Untraceable(f"it reads {count} values, and {len(cells)} neurons arrive.")
        return [cell or self.builder.fresh(f"{name} zeros", 1, pinned=True)[0] for cell in cells]

    def _all_cells(self, cells: Sequence[Cell | None]) -> list[Cell]:
        present = [cell for cell in cells if cell]
        if len(present) < len(cells):
            raise Untraceable("channels of zeros arrive here, whose parameters would belong to no neuron.")
        return present

    def _norm(self, name: str, module: nn.Module, stream: Stream) -> Stream:
        """A norm over several neurons ties them to a stand-in for the whole, with which all change sign."""
        wholes, count = 0, len(stream.cells)
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            if stream.axis != -1 or len(module.normalized_shape) != 1:
                raise Untraceable("it normalises over other axes than the neurons'.")
            wholes, count = int(isinstance(module, nn.LayerNorm)), module.normalized_shape[0]
        elif isinstance(module, nn.GroupNorm):
            wholes = module.num_groups
        elif isinstance(module, nn.modules.batchnorm._NormBase):
            count = module.num_features
        cells = self._all_cells(spread_over(stream.cells, count, name) if stream.spread else stream.cells)
        whole = self.builder.fresh(f"{name} as a whole", wholes)
        if whole:
            self.builder.tie([whole[i * wholes // count] for i in range(count)], cells)
        for vector in ("weight", "bias", "running_mean", "running_var"):
            if getattr(module, vector, None) is not None:
                self.builder.rider(f"{name}.{vector}", cells, flips=vector in {"bias", "running_mean"})
        return stream

    def _attention(self, name: str, module: nn.MultiheadAttention, args: Any) -> tuple[Stream, None]:
        """Query and key neurons move in pairs, values alone, all of them within heads, and heads as a whole."""
        if any(arg != args[0] for arg in args[:3]) or module.in_proj_weight is None:
            raise Untraceable("only self-attention, with query = key = value, can be followed.")
        width, heads = module.embed_dim, module.num_heads
        inputs = self._read(args[0], width, -1, name)
        cells = [self.builder.fresh(f"{name} {part}", width) for part in ("query", "key", "value")]
        whole = self.builder.fresh(f"{name} heads", heads)
        projected = [cell for part in cells for cell in part]  # as the rows of in_proj_weight
        by_head = [whole[i * heads // width] for i in range(width)]
        self.builder.not_odd(whole)
        self.builder.tie(cells[0], cells[1])
        self.builder.tie(by_head, cells[0], signed=False)
        self.builder.tie(by_head, cells[2], signed=False)
        self.builder.layer(Weight(f"{name}.in_proj_weight", (3 * width, width)), 1, inputs, projected)
        if module.in_proj_bias is not None:
            self.builder.rider(f"{name}.in_proj_bias", projected)
        rank = args[0].rank if isinstance(args[0], Stream) else None
        return self._weighted(f"{name}.out_proj", module.out_proj, Stream(tuple(cells[2]), -1, rank)), None

    # --- functions and methods

    def _function(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if name in QUESTIONS:
            return NUMBER
        if name == "getitem" and isinstance(args[0], tuple):
            return args[0][args[1]]
        if name == "cat":
            return self._cat(args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0))
        operands = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Stream | TensorValue)]
        if name in SUMS | PRODUCTS and operands:
            return self._sum(*args[:2]) if name in SUMS else self._product(*args[:2])
        if name in {"expand", "repeat", "unsqueeze", "expandas"} and isinstance(args[0], TensorValue):
            return args[0]
        if not operands:  # of the input alone, unless it comes from numbers
            return NUMBER if args and args[0] is not None and any(arg is NUMBER for arg in args) else None
        if not isinstance(args[0], Stream) or len(operands) > 1:
            raise Untraceable(f"{name} cannot be followed.")
        if (move := shapes.MOVES.get(name)) is not None:
            return move(*args, **kwargs)
        named = [kwargs.get(key) for key in ("min", "min_val", "max", "max_val")]
        return self._elementwise(name, args[0], tuple(v for v in (*args[1:3], *named) if v is not None))

    def _elementwise(self, name: str, stream: Stream, limits: tuple[Any, ...] = ()) -> Stream:
        if not shapes.is_odd(name, limits):
            self.builder.not_odd(stream.cells)
        return stream

    def _sum(self, left: Any, right: Any) -> Any:
        if not isinstance(left, Stream):
            left, right = right, left
        if not isinstance(left, Stream):
            return None
        if isinstance(right, Stream):
            pairs = self._pairs(left, right)
            both = [(a, b) for a, b in pairs if a and b]
            self.builder.tie([a for a, _ in both], [b for _, b in both])
            return replace(left, cells=tuple(a or b for a, b in pairs), rank=left.rank or right.rank)
        self._meet(left, right, flips=True)
        return left

    def _product(self, left: Any, right: Any) -> Any:
        if isinstance(left, Stream) and isinstance(right, Stream):
            pairs = self._pairs(left, right)
            both = [(a, b) for a, b in pairs if a and b]
            self.builder.tie([a for a, _ in both], [b for _, b in both], signed=False)
            kept, gate = (left, right) if self.builder.may_be_odd(left.cells) else (right, left)
            self.builder.not_odd(gate.cells)
            cells = (cell if a and b else None for cell, (a, b) in zip(kept.cells, pairs, strict=True))
            return replace(kept, cells=tuple(cells))
        stream, other = (left, right) if isinstance(left, Stream) else (right, left)
        if not isinstance(stream, Stream):
            return None
        self._meet(stream, other, flips=False)
        zero = isinstance(other, int | float) and other == 0
        return replace(stream, cells=(None,) * len(stream.cells)) if zero else stream

    def _pairs(self, left: Stream, right: Stream) -> list[tuple[Cell | None, Cell | None]]:
        if left.axis != right.axis or left.spread != right.spread or len(left.cells) != len(right.cells):
            raise Untraceable("its two sides do not have their neurons at the same places.")
        return list(zip(left.cells, right.cells, strict=True))

    def _meet(self, stream: Stream, other: Any, flips: bool) -> None:
        """A stream plus (flips) or times something that has no neurons."""
        if other is None:  # the network's input, whose channels stay in place
            self.builder.pin(stream.cells)
        if isinstance(other, TensorValue):
            per_neuron = other.value.ndim >= -stream.axis and other.value.shape[stream.axis] > 1
            if per_neuron and isinstance(other.value, nn.Parameter) and not stream.spread:
                self.builder.rider(other.name, self._all_cells(stream.cells), stream.axis, flips)
            elif per_neuron:
                self.builder.pin(stream.cells)
        if flips and not (isinstance(other, TensorValue) and per_neuron):
            self.builder.not_odd(stream.cells)

    def _cat(self, values: Sequence[Any], dim: int) -> Any:
        streams = [value for value in values if isinstance(value, Stream)]
        if not streams:
            return None
        if shapes.index_of(streams[0], dim) == shapes.channel(streams[0]):
            if len(streams) < len(values) or any(s.spread or s.axis != streams[0].axis for s in streams):
                raise Untraceable("it joins neurons with something that has none.")
            return replace(streams[0], cells=shapes.numbered(sum((s.cells for s in streams), ())))
        for value in values:
            if isinstance(value, Stream):
                self._sum(streams[0], value)
            else:
                self._meet(streams[0], value, flips=True)
        return streams[0]
