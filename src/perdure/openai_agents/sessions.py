"""Sessions whose items are in the workflow itself."""

from __future__ import annotations

from collections.abc import Iterable

from agents import TResponseInputItem
from agents.memory import SessionABC

from perdure.core.codec.snapshot import snapshot_all


class WorkflowSession(SessionABC):
    """The conversation of a workflow: `await runner.run(agent, text, session=session)` adds to it.

    The items are in memory, and replay makes them again. `session.items` is plain JSON, such as for
    `ctx.continue_as_new(chat(session.items))`.
    """

    def __init__(self, items: Iterable[TResponseInputItem] = (), session_id: str = "workflow") -> None:
        self.session_id = session_id
        self.items: list[TResponseInputItem] = list(items)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the last items, in order."""
        items = self.items if limit is None else self.items[-limit:] if limit > 0 else []
        (copies,), _, _ = snapshot_all((list(items),), {})
        return list(copies)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items."""
        self.items.extend(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the last item."""
        return self.items.pop() if self.items else None

    async def clear_session(self) -> None:
        """Remove all items."""
        self.items.clear()
