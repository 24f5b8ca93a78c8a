"""Weights that are constants: the entries of a tensor that have no posterior."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class FixedEntries(nn.Module):
    """Puts the free weights of a tensor, flat, among the fixed ones: zeros, +-c, or a constant each.

    Free weights alone have moments, a prior, noise and a label; whoever reads the tensor sees it whole.
    """

    mask: Tensor
    free: Tensor
    fixed: Tensor
    signs: Tensor | None
    values: Tensor | None

    def __init__(
        self,
        mask: Tensor,
        *,
        rule: dict[str, Any],
        values: Tensor | None = None,
        signs: Tensor | None = None,
        c: Tensor | None = None,
    ) -> None:
        """`mask` [*shape] is True where a weight is fixed; `values` or `signs` [fixed]; a Parameter `c` is trained."""
        super().__init__()
        self.rule = rule  # what the file keeps in place of the mask
        self.register_buffer("mask", mask)
        self.register_buffer("values", values)
        self.register_buffer("signs", signs)
        if isinstance(c, nn.Parameter):
            self.c: Tensor | None = c
        else:
            self.register_buffer("c", c)
        self._find()

    def _find(self) -> None:
        """Flat positions of free and fixed weights, which follow from the mask."""
        flat = self.mask.reshape(-1)
        self.register_buffer("free", (~flat).nonzero()[:, 0], persistent=False)
        self.register_buffer("fixed", flat.nonzero()[:, 0], persistent=False)

    @property
    def count(self) -> int:
        """How many weights are fixed."""
        return len(self.fixed)

    def constants(self) -> Tensor | None:
        """The fixed weights [fixed]; None for zeros."""
        return self.values if self.c is None or self.signs is None else self.c * self.signs

    def expand(self, free: Tensor) -> Tensor:
        """The whole tensor [*shape] around its free weights [free]."""
        whole = free.new_zeros(self.mask.numel()).index_copy(0, self.free, free)
        if (constants := self.constants()) is not None:
            whole = whole.index_copy(0, self.fixed, constants.to(whole))
        return whole.view(self.mask.shape)

    def take(self, whole: Tensor) -> Tensor:
        """The free weights [free] of a whole tensor [*shape]."""
        return whole.reshape(-1)[self.free]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._find()
