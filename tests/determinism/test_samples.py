"""The sample workflows: all of them run, 30 have one planted mistake, and 30 are correct."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import RunFailed
from perdure.errors import Diverged, NeverAwaited, NotInWorkflow
from perdure.lint import lint, python_files
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


#: Mistakes that `perdure lint` does not see, and why.
UNSEEN_BY_LINT = {"jitter_strategies": "the function is picked from a table while the workflow runs"}


@pytest.mark.parametrize("name", WRONG)
def test_lint_finds_the_planted_mistake_and_nothing_else(name: str) -> None:
    found = {(Path(finding.path).resolve(), finding.line) for finding in lint(files_of("wrong", name))}
    assert found == (set() if name in UNSEEN_BY_LINT else set(marked_lines("wrong", name)))


def test_lint_finds_at_least_twenty_eight_of_the_thirty_mistakes() -> None:
    assert len(WRONG) - len(UNSEEN_BY_LINT) >= 28


@pytest.mark.parametrize("name", RIGHT)
def test_lint_reports_nothing_on_a_correct_sample(name: str) -> None:
    assert lint(files_of("right", name)) == []


def test_lint_reports_the_same_when_all_samples_are_given_at_once() -> None:
    folder = Path(__file__).parent / "samples"
    found = {(Path(finding.path).resolve(), finding.line) for finding in lint(python_files([folder]))}
    planted = {line for name in WRONG if name not in UNSEEN_BY_LINT for line in marked_lines("wrong", name)}
    assert found == planted


#: Mistakes that `Environment(strict=True)` does not see, and why.
UNSEEN_BY_STRICT = {"stubborn_consumer": "a run that cannot be cancelled is deterministic all the same"}

#: Errors of the mistakes that are no `NotInWorkflow` with the line at fault.
OTHER_ERRORS = {
    "dedupe_by_address": Diverged,
    "fraud_check": NeverAwaited,
    "next_reviewer": Diverged,
    "notify_regions": Diverged,
    "reconcile": Diverged,
    "seen_customers": Diverged,
    "sequence_numbers": Diverged,
    "shard_of_customer": Diverged,
    "step_of_a_result": TypeError,
    "tell_another_run": NotInWorkflow,
    "thumbnails": NotInWorkflow,
    "welcome_mail": NeverAwaited,
}


async def strictly(kind: str, name: str) -> object:
    sample = module_of(kind, name)
    try:
        async with Environment(sample.WORKFLOWS, strict=True) as env:
            return await sample.drive(env)
    except RunFailed as error:
        assert error.__cause__ is not None
        raise error.__cause__ from None


@pytest.mark.parametrize("name", [name for name in WRONG if name not in UNSEEN_BY_STRICT])
async def test_a_strict_environment_finds_the_planted_mistake(name: str) -> None:
    with pytest.raises(OTHER_ERRORS.get(name, NotInWorkflow)) as caught:
        await strictly("wrong", name)
    if name not in OTHER_ERRORS:
        ((path, line),) = marked_lines("wrong", name)
        assert f"at {path}:{line} " in str(caught.value)


@pytest.mark.parametrize("name", UNSEEN_BY_STRICT)
async def test_a_mistake_that_a_strict_environment_cannot_see_is_found_by_lint(name: str) -> None:
    assert await strictly("wrong", name)
    assert name not in UNSEEN_BY_LINT


@pytest.mark.parametrize("name", RIGHT)
async def test_a_strict_environment_accepts_a_correct_sample(name: str) -> None:
    assert await strictly("right", name)
