"""The rule of suspects, which is written twice: for Python, and for a statement that judges many runs at once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import product

from perdure.store.sql.runs.claim import CLAIMS_AFTER, HOME_AFTER, IS_POISON, claims_after, home_after, is_poison

POISON_AFTER = 5


def test_sql_and_python_judge_a_lost_run_alike() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        asked = f"""
            SELECT {CLAIMS_AFTER}, {HOME_AFTER}, {IS_POISON.format(poison_after=POISON_AFTER)}
            FROM (SELECT 'w1' AS worker, ? AS claims, ? AS foreign_lease, ? AS alone, ? AS progressed)
        """
        for claims, foreign, alone, progressed in product(range(8), (False, True), (False, True), (False, True)):
            [answer] = database.execute(asked, (claims, foreign, alone, progressed))
            if foreign:
                expected = claims, "w1", is_poison(claims, POISON_AFTER)
            else:
                counted = claims_after(claims, alone=alone, progressed=progressed)
                expected = counted, home_after("w1", claims, alone=alone), False
            assert answer == expected
