"""`python -m tests.mutants [PACKAGE ...] [--seed N] [--each N]`: plant faults, one at a time, and list those that no
test notices.

Faults within functions are tried first in copies of one process that has all tests (`tests/mutants/forking.py`). Those
that are left, and those outside of functions, are tried in a process of their own. With servers (`python -m
tests.servers python -m tests.mutants ...`), the databases' tests are tried on faults of the store that the others
leave.
"""

from __future__ import annotations

import sys
from collections import Counter

import click

from tests.mutants.drawing import Fault, draw
from tests.mutants.planted import PLANTED
from tests.mutants.trying import KEPT, SOURCE, Result, Tests, Trial

PACKAGES = ("core", "replay", "store", "worker")
#: Not drawn from unless named: only tests with servers reach them.
OF_SERVERS = ("store/postgres", "store/mysql")


def faults(packages: tuple[str, ...], each: int, seed: int) -> list[Fault]:
    """Those that were thought of by hand, and those that are drawn."""
    by_hand = [one.fault((SOURCE / one.path).read_text(encoding="utf-8")) for one in PLANTED]
    return by_hand + [fault for package in packages for fault in draw(SOURCE, package, each, seed)]


@click.command()
@click.argument("packages", nargs=-1, type=click.Choice(PACKAGES + OF_SERVERS))
@click.option("--seed", default=16, show_default=True)
@click.option("--each", default=40, show_default=True, help="Faults of each package.")
@click.option("--draw", "only_draw", is_flag=True, help="List them and try none.")
def main(packages: tuple[str, ...], seed: int, each: int, *, only_draw: bool) -> None:
    """Plant faults and list those that no test notices."""
    chosen = faults(packages or PACKAGES, each, seed)
    if only_draw:
        print("\n".join(map(str, chosen)))
        return
    KEPT.mkdir(exist_ok=True)
    trial = Trial(Tests.known())
    for fault, result in trial.in_copies(chosen):
        print(f"{result.end:<10} {fault} | {result.by}", flush=True)
    results: list[Result] = []
    for number, fault in enumerate(chosen, 1):
        result = trial.of(fault)
        results.append(result)
        print(f"{number}/{len(chosen)} {result.end:<10} {fault}", flush=True)
    print(", ".join(f"{count} {end}" for end, count in Counter(result.end for result in results).most_common()))
    left = [result for result in results if result.end in ("survived", "unseen")]
    if left:
        print("No test notices:", *(f"  {result.fault} ({result.tests} tests)" for result in left), sep="\n")
        print("Write a test for each, or say in the source why it makes no difference: # equivalent: <kind>: <reason>")
        sys.exit(1)


if __name__ == "__main__":
    main()
