"""What every test shares: how hard Hypothesis looks. `make prove` sets PERDURE_PROVE and looks a hundred times harder."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

for name, examples in {"usual": 100, "prove": 10_000}.items():
    settings.register_profile(
        name, max_examples=examples, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("prove" if os.environ.get("PERDURE_PROVE") else "usual")
