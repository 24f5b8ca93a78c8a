"""Several processes at one job, as torchrun starts them: who is who, and what they tell each other.

Every rank runs the same program, with the same network and the same loaders.  Batches are divided among them
(`data/loaders.py`: `part`) and what these add up to is summed; the first rank writes files and shows progress; all
else each does for itself, or the first for all.  What is here waits for all ranks, so all must come to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from pocketbayes.errors import RankError

if TYPE_CHECKING:
    from torch import Tensor, nn

Result = TypeVar("Result")
_NOTHING = object()


def _group() -> Any:
    """torch.distributed where there is a group of several processes; None elsewhere, without importing torch."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed if distributed.get_world_size() > 1 else None


def count() -> int:
    """How many processes work together."""
    group = _group()
    return 1 if group is None else int(group.get_world_size())


def number() -> int:
    """Which of them this is, from 0."""
    group = _group()
    return 0 if group is None else int(group.get_rank())


def is_first() -> bool:
    return number() == 0


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all ranks, in place: one message for each type and device."""
    import torch

    if (group := _group()) is None:
        return
    for kind in dict.fromkeys((t.dtype, t.device) for t in tensors):
        some = [t for t in tensors if (t.dtype, t.device) == kind]
        flat = torch.cat([t.detach().reshape(-1) for t in some])
        _together(partial(group.all_reduce, flat))
        for t, total in zip(some, flat.split([t.numel() for t in some]), strict=True):
            t.detach().copy_(total.view_as(t))


def average(tensors: Sequence[Tensor], weight: float = 1.0) -> None:
    """Replace each tensor by its mean over all ranks, in place; this one's has that weight."""
    import torch

    if count() == 1 or not tensors:
        return
    total = torch.tensor(weight, dtype=torch.float64, device=tensors[0].device)
    for t in tensors:
        t.detach().mul_(weight)
    add_up([*tensors, total])
    for t in tensors:
        t.detach().div_(total.to(t.dtype))


def gather(value: Result) -> list[Result]:
    """What every rank says, in their order."""
    if (group := _group()) is None:
        return [value]
    found: list[Any] = [None] * count()
    _together(lambda: group.all_gather_object(found, value))
    return found


def gather_in_turn(values: Sequence[Result]) -> list[Result]:
    """What all ranks found for their parts, in the order of the whole."""
    rounds: Iterator[Any] = zip_longest(*gather(list(values)), fillvalue=_NOTHING)
    return [value for value in chain.from_iterable(rounds) if value is not _NOTHING]


def once(function: Callable[[], Result]) -> Result:
    """What the first rank's call returns, or raises, on all ranks; the others do not call."""
    if (group := _group()) is None:
        return function()
    told: list[Any] = [None, None]
    if is_first():
        try:
            told = [function(), None]
        except Exception as error:
            told = [None, error]
    found = list(told)
    _together(lambda: group.broadcast_object_list(found))
    if found[1] is not None:
        raise told[1] or found[1]  # its own with its traceback
    return told[0] if is_first() else found[0]  # type: ignore[no-any-return]


def require_same(what: str, value: Any, advice: str) -> None:
    """Complain, on all ranks, if they do not agree about `value`."""
    found = gather(value)
    for rank, other in enumerate(found):
        if other != found[0]:
            raise RankError(f"{what}: rank 0 has {found[0]}, rank {rank} has {other}. {advice}")


def require_whole(model: nn.Module) -> None:
    """Complain about parameters of which a rank has a part only."""
    for name, parameter in model.named_parameters():
        if type(parameter.data).__name__ == "DTensor":
            raise ValueError(
                f"{name}: is divided among ranks (fully_shard), and pocketbayes needs it whole on each. Load what "
                "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, options=StateDictOptions("
                "full_state_dict=True)) returns into a network that is not; ranks then divide the data."
            )


def require_same_network(
    model: nn.Module,
    advice: str = "Seed all ranks alike before the network is built, or load the same weights on each.",
) -> None:
    """Complain, on all ranks, unless they have one network, to the bit."""
    require_whole(model)
    if count() > 1:
        from pocketbayes.runs.checkpoint import fingerprint

        require_same("the network (SHA-256)", fingerprint(model), advice)


def started_as() -> int:
    """Which of the processes this is that torchrun started, even if they work apart."""
    return int(os.environ.get("RANK", "0")) if "MASTER_ADDR" in os.environ else 0


@contextmanager
def joined() -> Iterator[None]:
    """In a program that torchrun started, the group of its processes; elsewhere nothing."""
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1 or "MASTER_ADDR" not in os.environ
    if alone or _group() is not None:
        yield
        return
    from torch import distributed

    distributed.init_process_group("gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _together(message: Callable[[], object]) -> None:
    try:
        message()
    except RuntimeError as error:
        raise RankError(
            f"rank {number()}: another process of this run has ended, or is at another point of the program. See what "
            f"the first one to fail says, and start all of them again ({str(error).splitlines()[0]})"
        ) from error
