"""Damage to single cells of a live database."""

from __future__ import annotations

from tests.stage import Stage


async def damage(stage: Stage, sql: str, **params: object) -> int:
    """Change rows behind everybody's back; how many."""
    assert stage.store is not None
    return await stage.store._write("damage", "", lambda tx: tx.execute(sql, params))
