"""Write RESULTS.md from the result files beside the experiments:  python -m experiments.results

An experiment is a module here with `RESULT`, the path of its json file, and `section(result)`, its part of the page.
One that was not run yet has no part.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from pocketbayes.runs.files import write_atomically

PAGE = Path(__file__).parent.parent / "RESULTS.md"
EXPERIMENTS = (
    "digits_calibration",
    "digits_frontier",
    "frontier",
    "table4",
    "table5",
    "table6",
    "table7",
    "table8",
    "table10",
    "tabular",
    "mixture_likelihood",
    "structure_1d",
    "structure_uci",
    "structure_digits",
    "structure_resnet20",
    "noise_width",
    "noise_regression",
    "noise_faces",
    "noise_open_cases",
    "noise_resnet20",
)
INTRODUCTION = """# Results

Written by `python -m experiments.results` from the json files in `experiments/`, not by hand. Each part names the
command that measures it again, [docs/data.md](docs/data.md) the data that it needs. ± is one standard error; ECE is a fraction (0.01 is 1 %), NLL is in nats.
"The paper" is [the one of the part's subject](README.md#references): on sharing, on structure or on noise.
"""


def page() -> str:
    """The whole of RESULTS.md."""
    parts = [INTRODUCTION]
    for name in EXPERIMENTS:
        experiment = importlib.import_module(f"experiments.{name}")
        if experiment.RESULT.exists():
            parts.append(experiment.section(json.loads(experiment.RESULT.read_text())))
    return "\n".join(parts)


def main() -> None:
    write_atomically(PAGE, page().encode())


if __name__ == "__main__":
    main()
