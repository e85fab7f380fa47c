"""Looking after those who wait for the end of a run, right after that has been written.

It need not succeed: what is missed here, because the worker or the database goes away, the next sweep finds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from perdure.core.model.run import Finish, Next, Run
from perdure.core.policy.singleton import single_of
from perdure.errors import StoreError
from perdure.store.contract import Store

logger = logging.getLogger("perdure.worker")


def name_after(run: Run, after: Next | None) -> str | None:
    """The singleton whose next run may begin, now that this one has been left so."""
    if run.options == "{}" or not isinstance(after, Finish):
        return None
    single = single_of(run.options)
    return None if single is None else single.name


async def succeed(names: Sequence[str], store: Store, actor: str) -> None:
    """Let the next ones begin."""
    try:
        await store.succeed(names, actor)
    except StoreError as error:
        logger.warning("cannot look after %s; the next sweep will: %s", ", ".join(names), error)
