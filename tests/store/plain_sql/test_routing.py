"""Prefixes and priorities mean the same in every database, in Python, in plain SQL and in a model of a few lines."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from perdure.core.model.claim import ClaimRequest
from perdure.core.routing import matches
from perdure.testing.conformance.harness import a_worker
from tests.store.plain_sql.places import Plain

#: Characters that LIKE, a collation or padding would get wrong.
NAMES = st.text(alphabet="aAb.%_ é𝒳ß", max_size=4)
PROVE = bool(os.environ.get("PERDURE_PROVE"))


class Ready(Struct, frozen=True):
    """A run that is ready."""

    type: str
    priority: int
    since: int


RUNS = st.lists(
    st.builds(Ready, NAMES, st.sampled_from([1, 100, 100, 101, -5]), st.integers(0, 20)), min_size=1, max_size=40
)
PATTERNS = st.one_of(NAMES.map(lambda text: f"{text}%"), NAMES.filter(lambda text: not text.endswith("%")))


def expected(runs: list[Ready], pattern: str, number: int, by_age: int) -> list[int]:
    """Return the runs that a claim takes, as positions in the list, in order."""
    meant = [place for place, run in enumerate(runs) if matches(pattern, run.type)]
    first = sorted(meant, key=lambda place: (runs[place].priority, runs[place].since, place))[: number - by_age]
    rest = sorted(set(meant) - set(first), key=lambda place: (runs[place].since, place))
    return first + rest[:by_age]


async def ready(plain: Plain, runs: list[Ready]) -> None:
    """Replace all runs with these, whose ids are their positions in the list."""
    for table in ("runs", "events", "registry"):
        await plain.execute(f"DELETE FROM {plain.tables}{table}")
    base = await plain.store.now() - 1_000_000
    rows = ", ".join(
        f"('{place:03}-ü𝒳', '{run.type}', {run.priority}, {base + run.since})" for place, run in enumerate(runs)
    )
    await plain.execute(f"INSERT INTO {plain.tables}runs (id, type, priority, wake_at) VALUES {rows}")
    types = ", ".join(f"('{type}')" for type in sorted({run.type for run in runs}))
    await plain.execute(f"INSERT INTO {plain.tables}registry (type) VALUES {types}")


def examples(count: int) -> settings:
    """Return settings for a number of examples, ten times as many for a proof. All examples share the tables."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=count * 10 if PROVE else count, suppress_health_check=checks)


@examples(20)
@given(runs=RUNS, pattern=PATTERNS, number=st.sampled_from([8, 16, 32]))
async def test_a_claim_by_plain_sql_takes_what_the_model_takes(
    plain: Plain, runs: list[Ready], pattern: str, number: int
) -> None:
    await ready(plain, runs)
    taken = [int(row["id"][:3]) for row in await plain.do("claim", types=pattern, number=number)]
    wanted = expected(runs, pattern, number, number // 8)
    assert sorted(taken) == sorted(wanted)
    if number >= len(wanted):
        assert [place for place in taken if place in wanted[: number - number // 8]] == wanted[: number - number // 8]


@examples(10)
@given(runs=RUNS, pattern=PATTERNS, number=st.integers(1, 7))
async def test_a_small_claim_goes_by_priority_or_gives_one_place_to_the_oldest(
    plain: Plain, runs: list[Ready], pattern: str, number: int
) -> None:
    await ready(plain, runs)
    taken = sorted(int(row["id"][:3]) for row in await plain.do("claim", types=pattern, number=number))
    assert taken in [sorted(expected(runs, pattern, number, by_age)) for by_age in (0, 1)]


@examples(10)
@given(runs=RUNS, pattern=PATTERNS, number=st.integers(1, 20), by_age=st.integers(0, 3))
async def test_a_claim_in_python_takes_what_the_model_takes(
    plain: Plain, runs: list[Ready], pattern: str, number: int, by_age: int
) -> None:
    await ready(plain, runs)
    by_age = min(by_age, number)
    types = tuple({run.type for run in runs if matches(pattern, run.type)})
    await plain.store.register(a_worker("w1"))
    request = ClaimRequest(worker="w1", nonce=os.urandom(8).hex(), limit=number, by_age=by_age, types=types)
    taken = [int(one.run.id[:3]) for one in (await plain.store.claim(request)).runs]
    assert taken == expected(runs, pattern, number, by_age)
