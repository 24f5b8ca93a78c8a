"""What `compress` did, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
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

    @property
    def warnings(self) -> list[str]:
        """What is wrong with the file by validation data."""
        return warnings_of(self.stages[0].metrics, self.stages[-2].metrics, self.bytes) if self.saved else []

    def __str__(self) -> str:
        lines = [str(stage) for stage in self.stages]
        if self.sharing is not None:
            lines.append(str(self.sharing))
        if self.saved is not None:
            lines.append(f"{self.saved}, {self.plain_bytes / self.saved.total:.1f} times smaller than fp32")
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def told(metrics: dict[str, float]) -> str:
    """The scores that a line has room for."""
    return "  ".join(f"{k} {v:.4f}" for k, v in metrics.items() if k in ("accuracy", "nll", "ece", "rmse"))


def warnings_of(before: Mapping[str, float], after: Mapping[str, float], size: int) -> list[str]:
    """What is wrong with a file that was written all the same: the network is no longer what it was."""
    if before.get("accuracy", 0.0) - after.get("accuracy", 0.0) > 0.05:
        fell = f"accuracy fell from {before['accuracy']:.3f} to {after['accuracy']:.3f}"
    elif after.get("rmse", 0.0) > 1.5 * before.get("rmse", float("inf")):
        fell = f"the RMSE rose from {before['rmse']:.4g} to {after['rmse']:.4g}"
    else:
        return []
    return [
        f"{fell} in {size:,} bytes, which are too few for this network. Ask for more (--max-bytes, max_bytes=), or say "
        "what may be lost (--max-accuracy-drop or --max-nll-rise, max_accuracy_drop= or max_nll_rise=)"
    ]
