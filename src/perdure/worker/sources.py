"""Sources of the workflows and activities that a worker serves, for people that read its runs."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Collection
from pathlib import PurePath
from typing import Any

import msgspec

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.model.documents import DOC_CHARACTERS, SOURCE_CHARACTERS, Document, DocumentKind, SourceText
from perdure.core.system import System
from perdure.store.contract import Store
from perdure.workflow.definition import Definition

logger = logging.getLogger("perdure.worker")


#: Seconds of work after which a worker stores its sources.
DELAY = 1.0


class SourceRegistration:
    """Stores the sources of a worker's types once it has begun to work, so that its first claims do not wait for them.

    To find the end of a function takes a millisecond or two, and a worker may serve hundreds of types.
    """

    def __init__(
        self,
        store: Store,
        system: System,
        health: LoopHealth,
        definitions: Collection[Definition[Any, Any]],
        build: str,
    ) -> None:
        self._store, self._system = store, system
        self._guard = LoopGuard("sources", system, health, logger)
        self._definitions, self._build = definitions, build
        self._task: asyncio.Task[None] | None = None

    def start(self, worker_id: str) -> None:
        """Store the sources after a while, unless they are being stored."""
        if self._definitions and (self._task is None or self._task.done()):
            self._task = self._system.spawn(self._save_later(worker_id), "perdure sources")

    async def finish(self, worker_id: str) -> None:
        """Store the sources now, if they were not stored yet: the worker stops."""
        task = self._task
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait([task])
        try:
            await self._save(worker_id)
        except Exception as error:
            logger.warning("worker %s could not store the sources of its types: %s", worker_id, error)

    async def _save_later(self, worker_id: str) -> None:
        await self._system.sleep(DELAY)
        await self._guard.keep_going(lambda: self._save(worker_id))

    async def _save(self, worker_id: str) -> None:
        found: list[Document] = []
        for definition in self._definitions:
            found.append(_document(definition, self._build))
            # Between two of them the loop has its turn.
            await self._system.sleep(0)
        await self._store.save_sources(found, worker_id)


def _document(definition: Definition[Any, Any], build: str) -> Document:
    """Make the document of a type. A function without source has its docstring only."""
    body = msgspec.json.encode(_source_of(definition)).decode()
    return Document(kind=DocumentKind.SOURCE, name=definition.type, build=build, body=body)


def _source_of(definition: Definition[Any, Any]) -> SourceText:
    doc = _storable(inspect.cleandoc(definition.__doc__ or ""))[:DOC_CHARACTERS]
    code: Any = getattr(definition, "source_of", None) or inspect.unwrap(definition.function)
    try:
        lines, first = inspect.getsourcelines(code)
        file = inspect.getsourcefile(code) or ""
    except (OSError, TypeError, SyntaxError, IndexError):
        # Code that was typed in, compiled or generated has no file.
        return SourceText(doc=doc)
    source = _storable("".join(lines))
    return SourceText(
        doc=doc,
        source=source[:SOURCE_CHARACTERS],
        file=_storable(PurePath(file).name),
        line=first,
        cut=len(source) > SOURCE_CHARACTERS,
    )


def _storable(text: str) -> str:
    """Replace what databases do not store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
