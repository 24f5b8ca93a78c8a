"""A forward pass as a graph, by torch.fx, while everything else in the process may run."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from pocketbayes.structure.layers import CONVOLUTIONS, TRANSPOSED

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class LocalTracer(fx.Tracer):
    """fx's tracer without its side effects on other threads.

    `fx.Tracer.trace` replaces methods of nn.Module itself, so any module that runs meanwhile is recorded, or fails.
    Here only the modules of `root` record, each through a class of its own that it has while it is traced.
    """

    def __init__(self, *, children_are_leaves: bool = False) -> None:
        super().__init__()
        self.children_are_leaves = children_are_leaves
        self.parameters: dict[str, fx.Proxy] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.children_are_leaves or super().is_leaf_module(m, module_qualified_name)

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        self.root, self.graph = root, fx.Graph()
        modules = dict(root.named_modules())
        self.submodule_paths = {module: name for name, module in modules.items()}
        self.tensor_attrs = {
            value: f"{path}.{name}".lstrip(".")
            for path, module in modules.items()
            for name, value in vars(module).items()
            if isinstance(value, Tensor)
        }
        classes = {module: type(module) for module in modules.values()}
        forward, inputs = self.create_args_for_root(type(root).forward, True, concrete_args)
        try:
            for module, cls in classes.items():
                module.__class__ = self._recording(cls)
            self.create_node("output", "output", (self.create_arg(forward(*inputs)),), {})
        finally:
            for module, cls in classes.items():
                module.__class__ = cls
        return self.graph

    def _recording(self, cls: Any) -> type[nn.Module]:
        """The class, but its calls and its parameters become nodes of the graph."""

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.call_module(module, partial(cls.__call__, module), args, kwargs)

        def attribute(module: nn.Module, name: str) -> Any:
            return self.getattr(name, cls.__getattr__(module, name), self.parameters)

        methods = {"__module__": cls.__module__, "__call__": call, "__getattr__": attribute}
        return type(cls.__name__, (cls,), methods)


class LayerTracer(LocalTracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m)


def is_leaf(module: nn.Module) -> bool:
    """Layers and torch's own modules; containers are walked through."""
    known = isinstance(module, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, *NORMS))
    return known or (
        kind_of(module).__module__.startswith("torch.nn.modules") and not isinstance(module, nn.Sequential)
    )


def kind_of(module: nn.Module) -> type:
    """The module's class, under the one that a parametrisation may have put over it."""
    return next(kind for kind in type(module).__mro__ if kind.__module__ != "torch.nn.utils.parametrize")


def ranks_of(traced: fx.GraphModule, example: Tensor | None) -> dict[str, int]:
    """How many axes the tensor of each node has, by running the example through."""
    if example is None:
        return {}
    from torch.fx.passes.shape_prop import ShapeProp

    training = [module for module in traced.modules() if module.training]
    traced.eval()
    try:
        with torch.no_grad():
            ShapeProp(traced).propagate(example)
    finally:
        for module in training:
            module.training = True
    metas = {node.name: node.meta.get("tensor_meta") for node in traced.graph.nodes}
    return {name: len(meta.shape) for name, meta in metas.items() if hasattr(meta, "shape")}
