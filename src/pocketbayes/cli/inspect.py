"""`pocketbayes inspect`: where the bytes of a pocket file go."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from pocketbayes.cli.entry import Outcome, command
from pocketbayes.cli.options import Options
from pocketbayes.cli.output import console, rows_table, say
from pocketbayes.cli.settings import argument

if TYPE_CHECKING:
    from pocketbayes.artifact import Summary, TensorSummary
    from pocketbayes.artifact.summary import GraphSummary


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Options):
    """Those of `inspect`."""

    file: Path = argument("A pocket file.", "FILE")


@command("inspect model.pocket --json")
def inspect(given: InspectOptions) -> Outcome:
    """Show where the bytes of a pocket file go, without building the model and without torch."""
    from pocketbayes.artifact import inspect as summarise

    summary = summarise(given.file)
    return Outcome(_summary_json(summary), lambda: _show(given.file, summary))


def _show(file: Path, summary: Summary) -> None:
    from pocketbayes.artifact.summary import SECTIONS

    shown = console()
    sections = (
        (name, SECTIONS.get(name, ""), f"{size:,}", f"{size / summary.total_bytes:.1%}")
        for name, size in summary.sections.items()
    )
    say(f"{file}: {summary.total_bytes:,} bytes, format {summary.version}, written by {summary.library}")
    shown.print(rows_table(("section", "holds", "bytes", "fraction"), sections, left=2))
    shown.print(_tensors_table(summary.tensors))
    for title, value in _notes(summary):
        say(f"{title}: {value}")


def _summary_json(summary: Summary) -> dict[str, Any]:
    tensors = [{**t._asdict(), "bits_per_weight": t.bits_per_weight} for t in summary.tensors]
    graph = summary.graph and {
        **summary.graph._asdict(),
        "inputs": [port._asdict() for port in summary.graph.inputs],
        "outputs": [port._asdict() for port in summary.graph.outputs],
    }
    return {**summary._asdict(), "graph": graph, "tensors": tensors}


def _tensors_table(tensors: Sequence[TensorSummary]) -> Table:
    """A row a tensor; columns of counts only where a tensor has any."""
    counts = [name for name in ("fixed", "outliers", "blends") if any(getattr(t, name) for t in tensors)]
    rows = []
    for t in tensors:
        bits = ("", "") if t.kind.startswith("tied") else (f"{t.bits_per_weight:.2f}", f"{t.bits / 8:,.0f}")
        shape = "x".join(map(str, t.shape))
        rows.append((t.name, t.kind, shape, *bits, *(f"{getattr(t, name):,}" for name in counts)))
    return rows_table(("tensor", "kind", "shape", "bits a weight", "bytes", *counts), rows, left=3)


def _told(graph: GraphSummary | None) -> str:
    if graph is None:
        return "none: predictions need torch and the network's code; `pocketbayes export` adds one"
    ports = ", ".join(
        f"{json.dumps(port.name)} {port.dtype} {'x'.join('N' if size is None else str(size) for size in port.shape)}"
        for port in graph.inputs
    )
    return f"{graph.bytes:,} bytes, {graph.nodes:,} nodes of ONNX opset {graph.opset}, takes {ports}"


def _notes(summary: Summary) -> Iterable[tuple[str, str]]:
    """What a file says beside its numbers, as JSON, which shows control characters by their codes."""
    yield "graph", _told(summary.graph)
    yield "codebook", f"{summary.codebook:,} components, {summary.tables:,} frequency tables"
    for title in ("noise", "architecture", "options", "metadata"):
        if value := getattr(summary, title):
            yield title, json.dumps(value)
