"""Documents for people: sources of types by build, and reports of deploy checks."""

from __future__ import annotations

from perdure.core.model.documents import REPORTS_KEPT, SOURCES_KEPT, Document, DocumentKind
from perdure.store import Store
from perdure.testing.conformance.harness import ACTOR, SECOND, START, TYPE, Harness


def a_source(build: str = "1.0", body: str = '{"source":"async def f(): ..."}', type: str = TYPE) -> Document:
    """Make the source of a type."""
    return Document(kind=DocumentKind.SOURCE, name=type, build=build, body=body)


def a_report(id: str = "c1", body: str = '{"checked":1}') -> Document:
    """Make a report of a deploy check."""
    return Document(kind=DocumentKind.DEPLOY, name=id, build="1.0", body=body)


class Documents:
    """The latest few are kept, and unchanged ones are not written again."""

    async def test_a_source_is_stored_with_the_name_of_its_worker(self, store: Store) -> None:
        await store.save_sources([a_source(), a_source(type="other", body='{"doc":"O\'é\\\\n"}')], "w1")
        [one] = await store.documents(DocumentKind.SOURCE, TYPE, 10)
        assert (one.name, one.build, one.body, one.at, one.actor) == (TYPE, "1.0", a_source().body, START, "w1")
        [other] = await store.documents(DocumentKind.SOURCE, "other", 10)
        assert other.body == '{"doc":"O\'é\\\\n"}'

    async def test_an_unchanged_source_is_left_alone(self, store: Store, harness: Harness) -> None:
        for name in ("w1", "w2"):
            await store.save_sources([a_source()], name)
            harness.system.advance(1)
        [one] = await store.documents(DocumentKind.SOURCE, TYPE, 10)
        assert (one.at, one.actor) == (START, "w1")

    async def test_a_changed_source_of_the_same_build_replaces_it(self, store: Store, harness: Harness) -> None:
        await store.save_sources([a_source()], "w1")
        harness.system.advance(1)
        await store.save_sources([a_source(body="{}")], "w2")
        [one] = await store.documents(DocumentKind.SOURCE, TYPE, 10)
        assert (one.body, one.at) == ("{}", START + SECOND)

    async def test_the_sources_of_the_latest_builds_are_kept(self, store: Store, harness: Harness) -> None:
        for number in range(SOURCES_KEPT + 3):
            await store.save_sources([a_source(f"1.{number}")], f"w{number}")
            harness.system.advance(1)
        builds = [one.build for one in await store.documents(DocumentKind.SOURCE, TYPE, 100)]
        assert builds == [f"1.{number}" for number in range(SOURCES_KEPT + 2, 2, -1)]

    async def test_a_report_is_stored_once(self, store: Store, harness: Harness) -> None:
        for _ in range(2):
            await store.save_report(a_report(), ACTOR)
            harness.system.advance(1)
        [one] = await store.documents(DocumentKind.DEPLOY, None, 10)
        assert (one.name, one.build, one.at, one.actor) == ("c1", "1.0", START, ACTOR)
        [event] = await store.events("deploy:c1")
        assert (event.kind, event.actor) == ("deploy_checked", ACTOR)

    async def test_the_latest_reports_are_kept(self, store: Store, harness: Harness) -> None:
        for number in range(REPORTS_KEPT + 2):
            await store.save_report(a_report(f"c{number}"), ACTOR)
            harness.system.advance(1)
        names = [one.name for one in await store.documents(DocumentKind.DEPLOY, None, 100)]
        assert names == [f"c{number}" for number in range(REPORTS_KEPT + 1, 1, -1)]
        assert len(await store.documents(DocumentKind.DEPLOY, None, 3)) == 3
