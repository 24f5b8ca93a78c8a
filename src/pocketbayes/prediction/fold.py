"""Surgery on a network's graph that leaves its function unchanged: norms folded, the fixed part split off."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, fx, nn

from pocketbayes.structure.tracer import LocalTracer

_FOLDABLE = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class Affine(NamedTuple):
    """What folding makes of a parameter: p * scale + shift."""

    scale: Tensor
    shift: Tensor | None

    def __call__(self, value: Tensor) -> Tensor:
        value = value * self.scale
        return value if self.shift is None else value + self.shift


def trace(plain: nn.Module) -> fx.GraphModule | None:
    """The clone as a graph, or None; an nn.Sequential is one even where its children cannot be traced.

    Nobody else may use `plain` meanwhile; everything else in the process may run.
    """
    for children_are_leaves in (False, True) if isinstance(plain, nn.Sequential) else (False,):
        try:
            return fx.GraphModule(plain, LocalTracer(children_are_leaves=children_are_leaves).trace(plain))
        except Exception:  # tracing runs the user's code on proxies: it may fail in any way
            continue
    return None


def fold_norms(graph: fx.GraphModule, random: set[int]) -> dict[int, Affine]:
    """Fold every BatchNorm that alone reads a convolution or linear layer into that layer, in place.

    Returns what became of each parameter, by id.  Norms whose own parameters are `random` stay.
    """
    modules = dict(graph.named_modules())
    targets = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    folded: dict[int, Affine] = {}
    for node in list(graph.graph.nodes):
        norm = modules.get(node.target) if node.op == "call_module" else None
        before = node.args[0] if node.args else None
        if not (isinstance(norm, nn.modules.batchnorm._BatchNorm) and isinstance(before, fx.Node)):
            continue
        layer = modules.get(str(before.target)) if before.op == "call_module" else None
        alone = len(before.users) == 1 and targets.count(before.target) == 1 and norm.running_var is not None
        if isinstance(layer, _FOLDABLE) and alone and not any(id(p) in random for p in norm.parameters()):
            folded |= _fold(layer, norm)
            node.replace_all_uses_with(before)
            graph.graph.erase_node(node)
    graph.recompile()
    return folded


def _fold(layer: nn.Module, norm: nn.modules.batchnorm._BatchNorm) -> dict[int, Affine]:
    """norm(w x + b) = (scale w) x + scale b + shift, scale = gamma / sqrt(var + eps), shift = beta - scale mean."""
    assert isinstance(norm.running_mean, Tensor) and isinstance(norm.running_var, Tensor)
    assert isinstance(layer.weight, nn.Parameter)
    scale = (norm.running_var + norm.eps).rsqrt() * (norm.weight if norm.affine else 1)
    shift = (norm.bias if norm.affine else 0) - scale * norm.running_mean
    affine = {id(layer.weight): Affine(scale.view(-1, *[1] * (layer.weight.ndim - 1)), None)}
    layer.weight.data = affine[id(layer.weight)](layer.weight.data)
    if isinstance(layer.bias, nn.Parameter):
        affine[id(layer.bias)] = Affine(scale, shift)
        layer.bias.data = affine[id(layer.bias)](layer.bias.data)
    else:
        layer.bias = nn.Parameter(shift)
    return affine


def split_prefix(graph: fx.GraphModule, random: set[int]) -> tuple[fx.GraphModule | None, fx.GraphModule]:
    """(what no random parameter touches, the rest); no prefix where it would compute nothing."""
    touched: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if any(arg in touched for arg in node.all_input_nodes) or _reads(graph, node, random):
            touched.add(node)
    fixed = [n for n in graph.graph.nodes if n not in touched and n.op != "output"]
    handed_over = [n for n in fixed if any(user in touched or user.op == "output" for user in n.users)]
    if not any(n.op.startswith("call") for n in fixed):
        return None, graph
    prefix, suffix = fx.Graph(), fx.Graph()
    left: dict[fx.Node, fx.Node] = {}
    right = {node: suffix.placeholder(node.name) for node in handed_over}
    for node in graph.graph.nodes:
        if node in touched or node.op == "output":
            right[node] = suffix.node_copy(node, lambda n: right[n])
        else:
            left[node] = prefix.node_copy(node, lambda n: left[n])
    prefix.output(tuple(left[node] for node in handed_over))
    return fx.GraphModule(graph, prefix), fx.GraphModule(graph, suffix)


def _reads(graph: fx.GraphModule, node: fx.Node, random: set[int]) -> bool:
    if node.op == "call_module":
        return any(id(p) in random for p in graph.get_submodule(str(node.target)).parameters())
    if node.op == "get_attr":
        owner: Any = graph
        for name in str(node.target).split("."):
            owner = getattr(owner, name)
        return id(owner) in random
    return False
