"""S drawn networks, run fast: what prediction stands on.

The draws are made once and run through a plain clone of the model: no parametrization is left in it, its norms are
folded into the layers before them, its convolutions are channels-last, and whatever does not depend on a random
weight is computed once for all draws.  Each of these is used only where it shows itself safe on the first batch, which
also tells whether the network writes into its inputs, so that every draw must have a copy of its own.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from pocketbayes.drawing import WhichDraw
from pocketbayes.posterior.convert import to_deterministic
from pocketbayes.posterior.draws import NumberedDraw
from pocketbayes.posterior.modes import modes_of
from pocketbayes.posterior.weights import Site, sites, stochastic_weights
from pocketbayes.prediction.fold import Affine, fold_norms, split_prefix, trace
from pocketbayes.prediction.layout import channels_last
from pocketbayes.runs.ranks import require_whole

_FILTERS = (
    threading.Lock()
)  # warning filters belong to the process: two threads that restore them would mix them up
VMAP_BATCH = 2  # up to this batch size one vectorised pass beats S passes (benchmarks/predict.py)


class Slot:
    """One stochastic weight and the parameter of the clone that receives its draws."""

    def __init__(self, site: Site, parameter: nn.Parameter) -> None:
        self.site = site
        self.parameter = parameter
        self.affine: Affine | None = None

    def draw(self, which: WhichDraw) -> Tensor:
        """The weight in a draw, the one that `one_draw(model, seed, number)` sees."""
        weight = self.site.weight
        value = weight.sample(self.site.original, NumberedDraw(which, {weight.index: self.site.path}))
        return value if self.affine is None else self.affine(value)


class Ensemble:
    """`samples` draws of a model, a function of the seed alone; call it with a batch for one output per draw.

    Draw s is of mode s mod M.  With samples="mean" each mode is run once as it is, at the means of its weights.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        samples: int | Literal["mean"] = 30,
        seed: int = 0,
        max_bytes: int = 2 << 30,
        fast: bool = True,
    ) -> None:
        require_whole(model)
        networks = modes_of(model)
        at_means = samples == "mean" or not stochastic_weights(model)
        self.samples = len(networks) if samples == "mean" or at_means else samples
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}.")
        self.modes = min(len(networks), self.samples)  # that are drawn from
        self._members = [
            _Member(
                network,
                [WhichDraw.of(seed, s, len(networks)) for s in range(mode, self.samples, len(networks))],
                at_means=at_means,
                max_bytes=max_bytes // self.modes,
                fast=fast,
            )
            for mode, network in enumerate(networks[: self.modes])
        ]

    def outputs(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """The model's output for each draw in turn, BatchNorm and dropout in evaluation mode."""
        return self._in_turn([member.outputs(args, kwargs) for member in self._members])

    def outputs_of(self, args: Any, kwargs: Any, wanted: Callable[[], Tensor]) -> Iterator[Any]:
        """The same for fewer examples from draw to draw: those that `wanted` gives before each, [n], until none."""
        return self._in_turn([member.outputs_of(args, kwargs, wanted) for member in self._members])

    def _in_turn(self, of_mode: list[Iterator[Any]]) -> Iterator[Any]:
        """A draw of each mode after the other, until one has none."""
        for number in range(self.samples):
            try:
                output = next(of_mode[number % self.modes])
            except StopIteration:
                return
            yield output


class _Member:
    """These draws of one mode."""

    def __init__(
        self, network: nn.Module, draws: list[WhichDraw], *, at_means: bool, max_bytes: int, fast: bool
    ) -> None:
        self._source = network
        self._draws = draws
        self._at_means = at_means
        self._max_bytes = max_bytes
        self._fast = fast
        self._vmap_works = fast
        self._sets: dict[WhichDraw, list[Tensor]] = {}
        self._stacked: dict[str, Tensor] | None = None
        self._prefix: fx.GraphModule | None = None
        self._net: nn.Module | None = None
        self._layout: Callable[[Tensor], Tensor] = _as_it_is
        self._writes = False  # into its inputs
        self._build()

    # --- the clone -------------------------------------------------------------------------------------------

    def _build(self) -> None:
        source = self._source
        weights = {id(s.weight): s for s in stochastic_weights(source)}
        self._plain = (to_deterministic(source) if weights else copy.deepcopy(source)).eval()
        self._slots: list[Slot] = []
        if self._at_means:
            return
        slots: dict[int, Slot] = {}
        for site in sites(source):
            key = id(site.weight)
            parameter = self._plain.get_parameter(site.path)
            slots.setdefault(key, Slot(weights[key], parameter))
        self._slots = list(slots.values())

    def _prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lay out, fold, split and check on the first batch; fall back to the plain clone where anything differs."""
        self._net = self._plain
        if not self._slots:
            return
        expected = self._try_layouts(args, kwargs)
        graph = trace(self._plain) if self._fast else None
        if graph is None:
            return
        random = {id(slot.parameter) for slot in self._slots}
        args, kwargs = self._laid_out(args, kwargs)
        try:
            folded = fold_norms(graph, random)
            prefix, net = split_prefix(graph, random)
            if prefix is not None:
                args, kwargs = prefix(*_copied(args), **_copied(kwargs)), {}
            result, writes = _watched(net, args, kwargs)
            same = _close(result, expected)
        except Exception:  # a traced graph may fail in any way; the plain clone is then the answer
            same = False
        if same:
            self._prefix, self._net, self._writes = prefix, net, self._writes or writes
            for slot in self._slots:
                slot.affine = folded.get(id(slot.parameter))
        else:
            self._build()
            self._net = self._plain

    def _try_layouts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The plain clone's output, channels-last if it can."""
        if self._fast:
            try:
                self._layout = channels_last
                for slot in self._slots:
                    slot.parameter.data = channels_last(slot.parameter.data)
                output, self._writes = _watched(self._plain, *self._laid_out(args, kwargs))
                return output
            except (
                RuntimeError
            ):  # perhaps a `view` that needs the other layout; if not, it is raised again below
                self._layout = _as_it_is
                self._build()
                self._net = self._plain
        output, self._writes = _watched(self._plain, args, kwargs)
        return output

    def _laid_out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return pytree.tree_map_only(Tensor, self._layout, (args, kwargs))  # type: ignore[no-any-return]

    # --- weights ---------------------------------------------------------------------------------------------

    def _weights(self, which: WhichDraw) -> list[Tensor]:
        """A draw, from the cache or made anew; the cache never exceeds `max_bytes`."""
        if which in self._sets:
            return self._sets[which]
        drawn = [self._layout(slot.draw(which)) for slot in self._slots]
        size = sum(w.nbytes for w in drawn)
        if (len(self._sets) + 1) * size <= self._max_bytes:
            self._sets[which] = drawn
        return drawn

    def _stack(self) -> dict[str, Tensor] | None:
        """All draws as one tensor a parameter, [S, *shape], if they fit."""
        if self._stacked is None:
            size = sum(slot.parameter.nbytes for slot in self._slots)
            if 2 * len(self._draws) * size > self._max_bytes:
                return None
            sets = [self._weights(which) for which in self._draws]
            assert self._net is not None
            names = {id(p): name for name, p in self._net.named_parameters()}
            self._stacked = {
                names[id(slot.parameter)]: torch.stack([drawn[i] for drawn in sets])
                for i, slot in enumerate(self._slots)
            }
        return self._stacked

    # --- outputs ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        """As of the `Ensemble`, for its own draws alone; so is what follows."""
        args, kwargs = self._begun(args, kwargs)
        yield from self._vectorised(args, kwargs) or (self._run(which, args, kwargs) for which in self._draws)

    @torch.no_grad()
    def outputs_of(self, args: Any, kwargs: Any, wanted: Callable[[], Tensor]) -> Iterator[Any]:
        whole, spec = pytree.tree_flatten(self._begun(args, kwargs))
        first = pytree.tree_map_only(Tensor, lambda t: t[:1] if t.ndim else t, (args, kwargs))
        axes = list(map(_other_axis, whole, pytree.tree_leaves(self._begun(*first))))
        for which in self._draws:
            if not len(at := wanted()):
                return
            taken = [
                t if i is None else t.index_select(i, at.to(t.device))
                for t, i in zip(whole, axes, strict=True)
            ]
            yield self._run(which, *pytree.tree_unflatten(taken, spec))

    def _begun(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The inputs as the network takes them: laid out, with all done that is the same in every draw."""
        if self._net is None:
            self._prepare(args, kwargs)
        args, kwargs = self._laid_out(args, kwargs)
        if self._prefix is not None:
            args, kwargs = self._prefix(*self._own(args), **self._own(kwargs)), {}
        return args, kwargs

    def _own(self, inputs: Any) -> Any:
        """To be written into where the network does."""
        return _copied(inputs) if self._writes else inputs

    def _run(self, which: WhichDraw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of one draw."""
        assert self._net is not None
        for slot, value in zip(self._slots, self._weights(which), strict=True):
            slot.parameter.data = value
        return self._net(*self._own(args), **self._own(kwargs))

    def _vectorised(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """All draws in one vmapped pass, for the smallest batches; None where vmap cannot."""
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.ndim > 0]
        if not (self._vmap_works and self._slots and tensors and max(map(len, tensors)) <= VMAP_BATCH):
            return None
        stacked = self._stack()
        net = self._net
        if stacked is None or net is None:
            return None

        def run(weights: dict[str, Tensor]) -> Any:
            return torch.func.functional_call(net, weights, self._own(args), self._own(kwargs))

        try:
            with _FILTERS, warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                batched = torch.vmap(run)(stacked)
        except Exception:  # no batching rule (recurrent layers), data-dependent control flow ...
            self._vmap_works = False
            return None
        leaves, spec = pytree.tree_flatten(batched)
        return [pytree.tree_unflatten([leaf[s] for leaf in leaves], spec) for s in range(len(self._draws))]


def _other_axis(a: Any, b: Any) -> int | None:
    """The first axis in which two tensors differ in size: that of the examples, for different numbers of them."""
    if not isinstance(a, Tensor):
        return None
    return next((i for i, (m, n) in enumerate(zip(a.shape, b.shape, strict=True)) if m != n), None)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _copied(inputs: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.clone, inputs)


def _watched(net: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """The output for a copy of the inputs, and whether it was written into."""
    theirs, spec = pytree.tree_flatten((args, kwargs))
    copies = _copied(theirs)
    args, kwargs = pytree.tree_unflatten(copies, spec)
    output = net(*args, **kwargs)
    pairs = [(a, b) for a, b in zip(theirs, copies, strict=True) if isinstance(a, Tensor)]
    return output, not all(torch.equal(a, b) for a, b in pairs)


def _close(a: Any, b: Any) -> bool:
    a_leaves, a_spec = pytree.tree_flatten(a)
    b_leaves, b_spec = pytree.tree_flatten(b)
    if a_spec != b_spec:
        return False
    pairs = [(x, y) for x, y in zip(a_leaves, b_leaves, strict=True) if isinstance(x, Tensor)]
    return all(
        x.shape == y.shape and bool((x - y).abs().max() <= 1e-4 * (1 + y.abs().max())) for x, y in pairs
    )
