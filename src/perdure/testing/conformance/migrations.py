"""The schema is applied once, and one that is not ours is left alone."""

from __future__ import annotations

import pytest

from perdure.errors import SchemaMismatch
from perdure.store import Store
from perdure.testing.conformance.harness import ACTOR, Harness, Unshared, a_run


class Migrations:
    """Opening a store brings the schema up to date, or refuses."""

    async def second(self, harness: Harness) -> Store:
        try:
            return await harness.open()
        except Unshared:
            pytest.skip("the schema ends with the store")

    async def test_opening_again_finds_everything_done(self, store: Store, harness: Harness) -> None:
        before = await harness.query("SELECT * FROM perdure_migrations")
        await store.create([a_run("r1")], ACTOR)
        other = await self.second(harness)
        assert await other.get("r1") is not None
        assert await harness.query("SELECT * FROM perdure_migrations") == before

    async def test_a_newer_schema_is_refused(self, store: Store, harness: Harness) -> None:
        await harness.execute(
            "INSERT INTO perdure_migrations (version, name, checksum, applied_at) VALUES (9999, '9999_new', 'x', 1)"
        )
        with pytest.raises(SchemaMismatch, match="9999_new"):
            await self.second(harness)

    async def test_an_altered_schema_is_refused(self, store: Store, harness: Harness) -> None:
        await harness.execute("UPDATE perdure_migrations SET checksum = 'x' WHERE version = 1")
        with pytest.raises(SchemaMismatch, match="0001"):
            await self.second(harness)
