"""`crash_everywhere` on sample workflows: 20 have one planted mistake, and 20 are correct."""

from __future__ import annotations

import sys

import pytest

from perdure.testing import CrashReport, crash_everywhere
from tests.testing.samples import right, wrong_effects, wrong_memory
from tests.testing.samples.services import Sample

WRONG = [*wrong_effects.SAMPLES, *wrong_memory.SAMPLES]
RIGHT = right.SAMPLES


def test_there_are_twenty_samples_of_each_kind() -> None:
    assert (len(WRONG), len(RIGHT)) == (20, 20)
    assert all(sample.finds for sample in WRONG)


@pytest.mark.parametrize("sample", WRONG, ids=lambda sample: sample.name)
async def test_a_planted_mistake_is_found_with_its_location(sample: Sample) -> None:
    report = await crash(sample)
    assert any(finding.kind == sample.finds and sample.at in finding.location for finding in report.findings), report


@pytest.mark.parametrize("sample", RIGHT, ids=lambda sample: sample.name)
async def test_nothing_is_reported_on_a_correct_workflow(sample: Sample) -> None:
    report = await crash(sample)
    assert report.ok, report
    assert report.isolated
    assert report.crashes


async def crash(sample: Sample) -> CrashReport:
    world = sys.modules[sample.call.__module__].WORLD
    return await crash_everywhere(sample.call(), workflows=sample.workflows, world=world, messages=sample.messages)
