"""What `compress` did, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pocketbayes.artifact.store import Saved
from pocketbayes.sharing.share import SharingReport
from pocketbayes.training.history import History


class StageReport(NamedTuple):
    """One stage: how long it took and what the validation data say after it."""

    name: str
    seconds: float
    metrics: dict[str, float]  # empty without validation data
    note: str

    def __str__(self) -> str:
        return f"{self.name:10s} {self.seconds:7.1f} s  {told(self.metrics)}  {self.note}".rstrip()


@dataclass(kw_only=True)
class CompressionReport:
    """What `compress` did, stage by stage, and what came of it; printable."""

    stages: list[StageReport] = field(default_factory=list)
    histories: dict[str, History] = field(default_factory=dict)  # training curves, by stage
    sharing: SharingReport | None = None
    saved: Saved | None = None
    plain_bytes: int = 0  # of the network's numbers in fp32

    @property
    def bytes(self) -> int:
        """Of the file."""
        assert self.saved is not None
        return self.saved.total

    def __str__(self) -> str:
        lines = [str(stage) for stage in self.stages]
        if self.sharing is not None:
            lines.append(str(self.sharing))
        if self.saved is not None:
            lines.append(f"{self.saved}, {self.plain_bytes / self.saved.total:.1f} times smaller than fp32")
        return "\n".join(lines)


def told(metrics: dict[str, float]) -> str:
    """The scores that a line has room for."""
    return "  ".join(f"{k} {v:.4f}" for k, v in metrics.items() if k in ("accuracy", "nll", "ece", "rmse"))
