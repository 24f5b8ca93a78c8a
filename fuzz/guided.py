"""The same mutants, led by coverage:  python -m fuzz.guided pocket -atheris_runs=100000

A mutant is made by choices at random.  Here libFuzzer makes them (atheris, on Linux: `pip install -e ".[fuzz]"`): the
bytes of its input are the choices, and those that reach new code of the library are varied further.  What comes through
ends the run and is kept as guided-TARGET.  Options after the target are libFuzzer's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["pocketbayes"]):
    from fuzz.judge import Judge, peak_megabytes
    from fuzz.targets import TARGETS, warm_up


class Choices(Random):
    """Random choices that follow given bytes, and after the last of them a generator of the same seed."""

    def __new__(cls, given: bytes) -> Choices:
        return super().__new__(cls, 0)

    def __init__(self, given: bytes) -> None:
        super().__init__(0)
        self.given, self.at = given, 0

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        taken = self.given[self.at : self.at + size]
        self.at += size
        if len(taken) < size:
            return super().getrandbits(k)
        return int.from_bytes(taken, "little") >> (8 * size - k)

    def random(self) -> float:
        return self.getrandbits(53) / (1 << 53)


def main() -> None:
    name, *options = sys.argv[1:] or ["pocket"]
    if name not in TARGETS:
        raise SystemExit(f"{name}: no target; there are {', '.join(TARGETS)}")
    target = TARGETS[name]
    with TemporaryDirectory() as folder:
        warm_up(target, name, 0, Path(folder))
        judge = Judge(target.clean)

        def one(given: bytes) -> None:
            mutant = target.make(Choices(given), Path(folder))
            judge.base = peak_megabytes()  # what libFuzzer keeps of earlier inputs is not the mutant's
            if (wrong := judge(mutant.attempt)) is not None:
                Path(f"guided-{name}").write_bytes(mutant.data)
                raise RuntimeError(wrong)

        atheris.Setup([sys.argv[0], "-max_len=256", *options], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
