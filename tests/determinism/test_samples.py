"""The sample workflows: all of them run, 30 have one planted mistake, and 30 are correct."""

from __future__ import annotations

import pytest

from perdure.testing import Environment
from tests.determinism.samples import RIGHT, WRONG, files_of, marked_lines, module_of


def test_there_are_thirty_samples_of_each_kind() -> None:
    assert (len(WRONG), len(RIGHT)) == (30, 30)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_sample_has_one_planted_mistake(name: str) -> None:
    assert len(marked_lines("wrong", name)) == 1


@pytest.mark.parametrize("name", RIGHT)
async def test_a_correct_sample_completes_and_survives_a_restart(name: str) -> None:
    sample = module_of("right", name)
    assert not marked_lines("right", name)
    async with Environment(sample.WORKFLOWS) as env:
        assert await sample.drive(env)
        await env.restart()
        assert (await env.engine.check()).ok


@pytest.mark.parametrize(("kind", "name"), [("wrong", name) for name in WRONG] + [("right", name) for name in RIGHT])
def test_a_sample_is_as_long_as_real_code(kind: str, name: str) -> None:
    lines = sum(len(path.read_text().splitlines()) for path in files_of(kind, name))
    assert 15 <= lines <= 60
