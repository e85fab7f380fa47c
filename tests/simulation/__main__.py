"""`python -m tests.simulation --seeds 0:1000`, or `--seed 42 --trace` to see one of them."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter

from tests.simulation.simulate import simulate


def main() -> int:
    """Simulate; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="from:to, without the last")
    parser.add_argument("--seed", type=int, help="just this one")
    parser.add_argument("--activities", action="store_true", help="worlds with activities, requeues and deletions")
    parser.add_argument("--limits", action="store_true", help="worlds with limits and breakers besides")
    parser.add_argument("--streams", action="store_true", help="worlds with activities whose steps emit")
    parser.add_argument("--clocks", action="store_true", help="worlds in which clocks differ from the database's")
    parser.add_argument("--ends", action="store_true", help="worlds with terminations, malformed messages and bugs")
    parser.add_argument("--once", action="store_true", help="worlds with steps that must not run twice")
    parser.add_argument("--others", action="store_true", help="worlds with runs that wait for other runs")
    parser.add_argument("--talks", action="store_true", help="worlds with refused questions and sticky events")
    parser.add_argument("--builds", action="store_true", help="worlds with workers of two builds")
    parser.add_argument("--outbox", action="store_true", help="worlds with events for other systems")
    parser.add_argument("--deeds", action="store_true", help="worlds with many transaction steps")
    parser.add_argument("--packing", action="store_true", help="worlds with histories that are packed early")
    parser.add_argument("--trace", action="store_true", help="show what happened")
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if options.seed is None else range(options.seed, options.seed + 1)
    sometimes: Counter[str] = Counter()
    failed = 0
    begun = time.monotonic()
    for seed in seeds:
        report = simulate(
            seed,
            keep_trace=options.trace,
            activities=options.activities,
            limits=options.limits,
            streams=options.streams,
            clocks=options.clocks,
            ends=options.ends,
            once=options.once,
            others=options.others,
            talks=options.talks,
            builds=options.builds,
            outbox=options.outbox,
            packing=options.packing,
            deeds=options.deeds,
        )
        sometimes += report.sometimes
        failed += bool(report.findings)
        for line in (*report.trace, *(f"seed {seed}: {finding}" for finding in report.findings)):
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if options.trace:
            sys.stdout.write(f"seed {seed}: trace {report.digest}\n")
        if seed % 50 == 0:
            gc.collect()
    for what, times in sorted(sometimes.items()):
        sys.stdout.write(f"{times:8} times {what}\n")
    elapsed = time.monotonic() - begun
    sys.stdout.write(f"{len(seeds)} seeds, {failed} with findings, {len(seeds) / elapsed:.1f} seeds/s\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
