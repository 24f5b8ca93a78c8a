"""A data set in tensors, held-out validation data, augmentation, and fast batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from pocketbayes.arrays import to_numpy
from pocketbayes.data.examples import Examples, divide, stratified_order

Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet(Examples, Dataset[tuple[Tensor, Tensor]]):
    """One split of a data set in tensors, raw, with what it takes to feed it to a network.

    Items and batches are scaled; for regression the targets are standardised too, by `target_scaling`.
    """

    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, examples: Examples) -> DataSet:
        """The same examples in tensors."""
        known = {f.name: getattr(examples, f.name) for f in fields(Examples)}
        return cls(**known | {part: torch.as_tensor(known[part]) for part in ("x", "y")})

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        one = torch.tensor([index])
        return self.inputs(one)[0], self.targets(one)[0]

    def inputs(self, index: slice | Tensor = slice(None)) -> Tensor:
        """Scaled inputs, float32."""
        scaled: Tensor = self.scaling.apply(self.x[index])
        return scaled

    def targets(self, index: slice | Tensor = slice(None)) -> Tensor:
        """Labels, or standardised targets."""
        return self.y[index] if self.target_scaling is None else self.target_scaling.apply(self.y[index])

    def batches(
        self,
        batch_size: int,
        shuffle: bool = False,
        augment: Transform | None = None,
        drop_last: bool = False,
    ) -> BatchLoader:
        """Scaled batches; `augment` sees the raw ones, so that padding is black."""
        scale = self.scaling.apply
        transform = scale if augment is None else lambda x: scale(augment(x))
        return BatchLoader(
            self.x, self.targets(), batch_size, shuffle=shuffle, transform=transform, drop_last=drop_last
        )


def hold_out(data: DataSet, fraction: float = 0.1, seed: int = 0) -> tuple[DataSet, DataSet]:
    """(training, validation): a random `fraction` of the examples set aside, from every class in proportion."""
    labels = to_numpy(data.y if data.classes is not None else torch.zeros(len(data)))
    kept, held = divide(stratified_order(labels, seed), fraction, data.name)
    return data.subset(torch.from_numpy(kept)), data.subset(torch.from_numpy(held))


def crop_flip(
    x: Tensor,
    padding: int = 4,
    flip: bool = True,
    size: int | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """A random window of each image [N, C, H, W] with a rim of zeros `padding` wide, and half of them mirrored.

    Windows are as large as the images, which shifts those by up to `padding` pixels, or `size` pixels high and wide:
    smaller images of things at the same scale.  Random numbers come from `generator`, or from torch's global one.
    """
    n, _, height, width = x.shape
    window = (height, width) if size is None else (size, size)
    rooms = [side + 2 * padding - seen + 1 for side, seen in zip((height, width), window, strict=True)]
    if min(rooms) < 1:
        raise ValueError(
            f"crop_flip: windows of {size} pixels do not fit into images of {height} x {width} with padding {padding}."
        )
    up, left = (torch.randint(0, room, (n,), generator=generator) for room in rooms)  # [N], [N]
    windows = (
        F.pad(x, (padding,) * 4).unfold(2, window[0], 1).unfold(3, window[1], 1)
    )  # a view [N, C, rooms, rooms, *window]
    x = windows[torch.arange(n), :, up, left]
    if not flip:
        return x
    mirrored = torch.rand(n, generator=generator) < 0.5
    return torch.where(mirrored.to(x.device).view(-1, 1, 1, 1), x.flip(3), x)


class BatchLoader:
    """Batches cut from tensors in memory: whole batches are indexed and transformed, nothing item by item.

    Like DataLoader it has a length, `batch_size`, `dataset` (whose length is the number of examples), and an
    order drawn from torch's global generator when iteration starts.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        transform: Transform | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"BatchLoader: batch_size must be at least 1, got {batch_size}.")
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(f"BatchLoader: {len(x)} inputs and {len(y)} targets.")
        if drop_last and len(x) < batch_size:
            raise ValueError(
                f"BatchLoader: drop_last leaves no batch of {batch_size} out of {len(x)} examples."
            )
        self.dataset = TensorDataset(x, y)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.transform = transform

    def __len__(self) -> int:
        n = len(self.dataset)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        # Drawn here and not in the generator below, which would wait for the first batch to be asked for.
        order = torch.randperm(len(self.dataset)) if self.shuffle else None
        return self._batches(order)

    def _batches(self, order: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.dataset.tensors
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            place = slice(start, start + self.batch_size)
            index = place if order is None else order[place].to(x.device)
            batch = x[index]
            yield batch if self.transform is None else self.transform(batch), y[index]
