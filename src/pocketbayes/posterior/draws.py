"""Which draw of the weights a forward pass sees.

In training a draw is named by one integer: weight i of draw `seed` takes its noise from a torch generator seeded by
(seed, i).  In prediction it is draw `number` of a seed, and its noise is what the file format says (docs/format.md):
the same bits in every program, on every device.  So a draw can be made again at any time (in the backward pass of
gradient checkpointing, in another process, in a prediction whose weights do not fit in memory) without being kept.
Every converted model has one `Draws`, shared by all its stochastic weights; a hook on the root opens a new draw for
each plain `model(x)`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pocketbayes.drawing import WhichDraw, tensor_number
from pocketbayes.noise import Noise
from pocketbayes.noise.counter import stream_on
from pocketbayes.posterior.modes import modes_of, using

_MASK = (1 << 64) - 1
CODEBOOK = -1  # the index of the codebook's own noise, used when draws are tied


def mix(*numbers: int) -> int:
    """A seed in [0, 2^63) that depends on all the numbers and their order (splitmix64, chained)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


class Draw:
    """One draw of all the weights: a seed, or None for the global generator, and the values made so far."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.values: dict[int, Tensor] = {}

    def generator(self, index: int, device: torch.device) -> torch.Generator | None:
        if self.seed is None:
            return None
        return torch.Generator(device).manual_seed(mix(self.seed, index))

    def z(self, noise: Noise, mu: Tensor, sigma: Tensor, index: int) -> Tensor:
        """The noise of weight `index`, in the shape of mu."""
        return noise.sample_at(mu, sigma, self.generator(index, mu.device))

    def value(self, index: int, make: Callable[[], Tensor]) -> Tensor:
        """The weight of that index in this draw: every site and every access sees the same tensor."""
        known = self.values.get(index)
        # One made under no_grad has no graph; made again from its seed it has, and is the same.
        lacks_graph = known is not None and torch.is_grad_enabled() and not known.requires_grad
        if known is None or (lacks_graph and self.seed is not None):
            known = self.values[index] = make()
        return known


class NumberedDraw(Draw):
    """A draw as the file format defines it; `names` are those of the tensors, by index."""

    def __init__(self, which: WhichDraw, names: Mapping[int, str]) -> None:
        super().__init__(which.seed)
        self.which = which
        self.names = {CODEBOOK: "", **names}

    def z(self, noise: Noise, mu: Tensor, sigma: Tensor, index: int) -> Tensor:
        if index not in self.names:
            raise ValueError("one_draw: a weight outside of the model that was given. Give the whole model.")
        tensor = tensor_number(self.names[index])
        return noise.z(stream_on(mu.device, self.which, tensor=tensor), mu, sigma)


class Replay(Draw):
    """A draw seen again in the backward pass.  Nothing is kept: inner backward passes free their graphs."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw.seed)
        self.draw = draw

    def z(self, noise: Noise, mu: Tensor, sigma: Tensor, index: int) -> Tensor:
        return self.draw.z(noise, mu, sigma, index)

    def value(self, index: int, make: Callable[[], Tensor]) -> Tensor:
        return make()


class MeanDraw(Draw):
    """Not a draw at all: the weights are their means."""

    def __init__(self) -> None:
        super().__init__(None)


class Draws:
    """The open draws of one model, a stack for each thread."""

    def __init__(self) -> None:
        self._thread = threading.local()
        # torch.compile and torch.export trace with one thread, and cannot trace a threading.local.
        self._traced: Draw | None = None
        self._means_open = 0  # a plain number, so that a compiled graph is guarded on it

    def __deepcopy__(self, memo: dict[int, Any]) -> Draws:
        return Draws()

    def __reduce__(self) -> tuple[type[Draws], tuple[()]]:
        return Draws, ()

    @property
    def _stack(self) -> list[Draw]:
        if not hasattr(self._thread, "stack"):
            self._thread.stack = []
        stack: list[Draw] = self._thread.stack
        return stack

    def current(self) -> Draw | None:
        """The draw that this thread is in; in a backward pass, the draw of the forward pass it belongs to."""
        if torch.compiler.is_compiling():
            return self._traced
        if self._stack:
            return self._stack[-1]
        # A weight asked for during backward is gradient checkpointing running its forward pass again.
        if torch._C._current_graph_task_id() != -1:
            replayed: Draw | None = getattr(self._thread, "backward", None)
            return replayed
        return None

    def open(self, draw: Draw) -> None:
        if torch.compiler.is_compiling():
            self._traced = draw
        else:
            self._stack.append(draw)
            self._means_open += isinstance(draw, MeanDraw)

    def close(self) -> Draw | None:
        if torch.compiler.is_compiling():
            self._traced = None
            return None
        draw = self._stack.pop()
        self._means_open -= isinstance(draw, MeanDraw)
        return draw

    def replay_in_backward(self, draw: Draw, output: Any) -> None:
        """When the gradient enters `output`, recomputed forward passes see `draw` again."""
        again = Replay(draw)

        def enter(_: Tensor) -> None:
            self._thread.backward = again

        for tensor in pytree.tree_leaves(output):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(enter)


class OpenDraw:
    """Forward pre-hook of the root: a plain `model(x)` is one draw.  Remembers what was not converted and why."""

    def __init__(self, draws: Draws, skipped: dict[str, str]) -> None:
        self.draws = draws
        self.skipped = skipped  # parameter path -> reason

    def __call__(self, module: nn.Module, args: Any) -> None:
        draws = self.draws
        if torch.compiler.is_compiling():
            draws.open(MeanDraw() if draws._means_open else Draw(None))
        elif draws._stack:  # inside `one_draw` or `mean_weights`, or a root that calls itself
            draws.open(draws._stack[-1])
        elif (inherited := draws.current()) is not None:  # the whole root is being recomputed in backward
            draws.open(inherited)
        elif torch._C._functorch.peek_interpreter_stack() is not None:
            draws.open(Draw(None))  # vmap decides itself whether draws differ
        else:
            draws.open(Draw(int(torch.randint(2**63 - 1, ()))))


class CloseDraw:
    """Forward hook of the root, called after an exception too."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        draw = self.draws.close()
        if draw is not None and draw.seed is not None and torch.is_grad_enabled():
            self.draws.replay_in_backward(draw, output)


def draws_of(model: nn.Module) -> list[Draws]:
    """The `Draws` of every converted part of the model, each once, in order; of a part, those of its whole."""
    found = {id(hook.draws): hook.draws for _, hook in root_hooks(model)}
    for module in model.modules():
        if isinstance(draws := getattr(module, "draws", None), Draws):
            found.setdefault(id(draws), draws)
    return list(found.values())


def root_hooks(model: nn.Module) -> list[tuple[str, OpenDraw]]:
    """The hook of every converted part of the model, with the path of that part."""
    return [
        (path, hook)
        for path, module in model.named_modules()
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, OpenDraw)
    ]


class DrawsOfMode(NamedTuple):
    """The `Draws` of one converted part, and which mode of the model it belongs to."""

    mode: int
    draws: Draws


@contextmanager
def _opened(
    model: nn.Module, mode: AbstractContextManager[Any], make: Callable[[int, DrawsOfMode], Draw]
) -> Iterator[None]:
    """A draw for every converted part of every mode, while forward passes are of one mode."""
    found = (DrawsOfMode(m, draws) for m, one in enumerate(modes_of(model)) for draws in draws_of(one))
    with ExitStack() as stack:
        stack.enter_context(mode)
        for part, place in enumerate(found):
            place.draws.open(make(part, place))
            stack.callback(place.draws.close)
        yield


def one_draw(
    model: nn.Module, seed: int | None = None, number: int | None = None
) -> AbstractContextManager[None]:
    """Every forward pass within the block, and its backward pass, sees one draw of the weights.

    Of several modes, draw `number` is of mode number mod M; one without a number is of the mode that `Modes.using`
    chose, else of mode seed mod M.

    A compiled model draws by itself in every forward pass: call the module that was given to `torch.compile`.

    Args:
        model: a Bayesian model.
        seed: with it the draw is the same on every entry; without, it is taken from torch's global generator.
        number: with it, draw `number` of a prediction: `predict(model, x, seed=seed)` averages numbers 0, 1, 2 ...

    Returns:
        A context manager.

    Examples:
        >>> model, x = pb.bayesianize(pb.nets.mlp([4, 3])), torch.ones(1, 4)
        >>> with pb.one_draw(model, seed=1):
        ...     first, second = model(x), model(x)
        >>> torch.equal(first, second)
        True
    """
    from pocketbayes.posterior.weights import names_of  # which needs this module

    if type(model).__name__ == "OptimizedModule":
        warnings.warn(
            "one_draw has no hold on a compiled model, which draws anew in every forward pass. "
            "Use the module that was given to torch.compile.",
            stacklevel=2,
        )
    root = int(torch.randint(2**63 - 1, ())) if seed is None else seed
    if number is None:
        return _opened(
            model, using(model, root, unless_chosen=True), lambda part, place: Draw(mix(root, part))
        )

    which = WhichDraw.of(root, number, len(modes_of(model)))

    def numbered(part: int, place: DrawsOfMode) -> Draw:
        return NumberedDraw(which._replace(mode=place.mode), names_of(model, place.draws))

    return _opened(model, using(model, number), numbered)


def mean_weights(model: nn.Module) -> AbstractContextManager[None]:
    """Forward passes within the block are deterministic, through the means of the weights.

    Of several modes they are of the one that `Modes.using` chose, else of the first.

    Args:
        model: a Bayesian model.

    Returns:
        A context manager.

    Examples:
        >>> model, x = pb.bayesianize(pb.nets.mlp([4, 3])), torch.ones(1, 4)
        >>> with pb.mean_weights(model):
        ...     torch.equal(model(x), model(x))
        True
    """
    return _opened(model, using(model, 0, unless_chosen=True), lambda part, place: MeanDraw())
