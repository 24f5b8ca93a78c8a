"""Make the rows of Tables 4, 5, 8 and 10 and of the frontier, several at a time, where a machine has the cores for it.

    python -m experiments.sharing.tables --data DIR --jobs 2                 # all that are missing, the most telling first
    python -m experiments.sharing.tables --data DIR --jobs 2 --match "table5 *" "frontier cifar10 best-*"

Each row is made by a process of its own with one thread, so that cores are used however small the network is.  Rows are
kept under --rows as the tables' own commands keep them; these then find them and write their results.  Killed and
started again, it goes on where it was.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatch
from functools import partial
from typing import Any

import torch

from experiments.sharing import frontier, table4, table5, table8, table10
from experiments.sharing.bench import Bench, arguments, bench_of

Work = dict[str, Callable[[], Any]]
FROM_POSTERIOR = ("table5 *", "table8 *", "table10 *", "table4 cifar10 posterior")


def all_of(rows: Callable[[Bench], Any], bench: Bench) -> list[Any]:
    """The rows of a table that makes one after the other."""
    return list(rows(bench))


def frontier_work(name: str, args: argparse.Namespace) -> Work:
    bench = bench_of(args, name, f"frontier-{name}")
    planned = frontier.parts(frontier.COURSES[name], len(bench.teachers()))
    return {
        f"frontier {name} {part}": partial(frontier.compressed, bench, part, how)
        for part, how in planned.items()
    }


def work(args: argparse.Namespace) -> Work:
    """What there is to make, by name, in the order in which it is made."""
    cifar10, mnist = bench_of(args), bench_of(args, "mnist", table4.FOLDERS["mnist"])
    ablations = {
        f"table5 {seed} {name}": partial(table5.ablated, cifar10, name, seed)
        for seed in range(table5.SEEDS)
        for name in table5.CONFIGURATIONS
    }
    thresholds = {f"table8 {tau}": partial(table8.row, cifar10, tau) for tau in table8.TAUS if tau != 0.2}
    return {
        **{name: make for name, make in ablations.items() if name.startswith("table5 0 ")},
        "table10 unmerged": partial(table10.unmerged_row, cifar10),
        "table4 cifar10 posterior": partial(all_of, table4.posterior_rows, cifar10),
        **frontier_work("cifar10", args),
        **thresholds,
        "table4 cifar10 scratch": partial(all_of, table4.scratch_rows, cifar10),
        "table4 mnist scratch": partial(all_of, table4.scratch_rows, mnist),
        **ablations,
        **frontier_work("mnist", args),
    }


def main() -> None:
    parser = arguments(__doc__, network=False)
    parser.add_argument("--jobs", type=int, default=2, help="rows made at a time")
    parser.add_argument("--match", nargs="+", default=["*"], help="make only what fits one of these patterns")
    parser.add_argument("--list", action="store_true", help="only say what there is to make")
    args = parser.parse_args()
    wanted = {
        name: make for name, make in work(args).items() if any(fnmatch(name, each) for each in args.match)
    }
    if not wanted:
        parser.error(f"nothing fits {' '.join(args.match)}. There are: {', '.join(work(args))}.")
    if args.list:
        print("\n".join(wanted))
        return
    if any(fnmatch(name, each) for name in wanted for each in FROM_POSTERIOR):
        torch.set_num_threads(args.jobs)
        bench_of(args).posterior()  # once, and before the rows that start from it
    with ProcessPoolExecutor(
        args.jobs, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)
    ) as pool:
        for done in as_completed([pool.submit(make) for make in wanted.values()]):
            done.result()


if __name__ == "__main__":
    main()
