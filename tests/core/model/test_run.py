"""Seeds of runs."""

from __future__ import annotations

from perdure.core.model.run import kept_seed, root_generation


def test_a_run_that_was_reopened_or_forked_continues_the_generation_that_its_seed_names() -> None:
    assert root_generation("s", 1) == 1
    assert root_generation("s", 3) == 3
    assert root_generation(kept_seed("s", 3, 4), 4) == 3
    assert root_generation(kept_seed("s", 3, 1), 1) == 3
