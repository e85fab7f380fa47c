"""Types of runs, and the workers that serve them."""

from __future__ import annotations

from perdure.core.model.run_orders import Pause, PauseKind
from perdure.core.routing import TypeInfo
from perdure.store import Store
from perdure.testing.conformance.harness import ACTOR, SECOND, START, Harness, a_worker

MAIL = TypeInfo(type="mail.v1", description="Sends mail.")
SHOP = TypeInfo(type="Mail.v1", kind="workflow", description="ß")


class Registry:
    """Workers say what they serve; whether a type is enabled is said by the pauses."""

    async def test_what_a_worker_serves_is_known_in_the_order_of_types(self, store: Store) -> None:
        assert await store.types() == []
        await store.register(a_worker(), [MAIL, SHOP])
        found = await store.types()
        assert [(one.type, one.kind, one.runtime, one.description) for one in found] == [
            ("Mail.v1", "workflow", "python", "ß"),
            ("mail.v1", "activity", "python", "Sends mail."),
        ]
        assert [(one.enabled, one.registered_at) for one in found] == [(True, START)] * 2

    async def test_what_is_there_in_the_same_words_is_left_alone_and_other_words_replace_it(
        self, store: Store, harness: Harness
    ) -> None:
        await store.register(a_worker("w1"), [MAIL, SHOP])
        harness.system.advance(1)
        changed = TypeInfo(type="mail.v1", description="")
        await store.register(a_worker("w2"), [changed, SHOP])
        shop, mail = await store.types()
        assert (shop.registered_at, mail.registered_at) == (START, START + SECOND)
        assert (mail.runtime, mail.description) == ("python", "")

    async def test_a_type_belongs_to_the_first_runtime_unless_a_worker_shares_it(self, store: Store) -> None:
        other = TypeInfo(type="mail.v1", runtime="node")
        assert await store.register(a_worker("w1"), [MAIL, SHOP]) == ()
        assert await store.register(a_worker("w2"), [other]) == ("mail.v1",)
        assert [one.runtime for one in await store.types()] == ["python", "python"]
        assert await store.register(a_worker("w3"), [TypeInfo(type="mail.v1", runtime="shared")]) == ()
        assert await store.register(a_worker("w2"), [other]) == await store.register(a_worker("w1"), [MAIL]) == ()
        assert [one.runtime for one in await store.types()] == ["python", "shared"]

    async def test_a_worker_that_serves_nothing_new_writes_nothing_but_itself(self, store: Store) -> None:
        await store.register(a_worker("w1"), [MAIL])
        before = await store.types()
        await store.register(a_worker("w1"), [MAIL])
        await store.register(a_worker("w2"))
        assert await store.types() == before
        assert [worker.id for worker in await store.workers()] == ["w1", "w2"]

    async def test_a_paused_type_is_not_enabled_and_a_queue_of_that_name_says_nothing_of_it(self, store: Store) -> None:
        await store.register(a_worker(), [MAIL, SHOP])
        await store.pause(Pause(kind=PauseKind.TYPE, name="mail.v1"), ACTOR)
        await store.pause(Pause(kind=PauseKind.QUEUE, name="Mail.v1"), ACTOR)
        assert [one.enabled for one in await store.types()] == [True, False]
        await store.resume(PauseKind.TYPE, "mail.v1", ACTOR)
        assert [one.enabled for one in await store.types()] == [True, True]
