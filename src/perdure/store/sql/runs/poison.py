"""Runs that may have killed their workers: who is suspected, how many are tried together, and when one is set aside.

A run is a suspect after `SUSPECT_AFTER` claims in a row that led to nothing. Suspects are taken by a worker that holds nothing else. Those that one
worker lost with its life (its id is still their `home`) are tried together: first all of them, since most deaths are no run's fault, and after the
death of such a group, which their home says, too, half of it at a time. So each death of a group halves what may have caused it, until the culprit dies
alone. Only that counts towards setting it aside: a sweep takes back the count of a claim that ended in company.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from perdure.core.model.run import SUSPECT_AFTER, Reason
from perdure.errors import WorkflowError
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import failure, to_json

#: How the home of runs begins that were suspects when their worker died with several of them.
_TRIED = "tried:"

_SET_ASIDE = """
UPDATE perdure_runs
SET status = 'blocked', reason = 'poison', error = :error, worker = NULL, home = NULL, token = token + 1, marked = 0,
    wake_at = :now, lease_until = 0
WHERE id = :run_id AND status IN ('pending', 'waiting', 'running')
"""


class Suspect(Struct, frozen=True, gc=False):
    """A ready run that may have killed its workers."""

    run_id: str
    claims: int
    #: The worker that died with it last, as `home_after` has it.
    home: str | None


def is_suspect(claims: int, *, progressed: bool) -> bool:
    """Whether a run may only be taken by a worker that holds nothing else."""
    return claims >= SUSPECT_AFTER and not progressed


def is_poison(claims: int, poison_after: int) -> bool:
    """Whether a suspect is to be set aside. It has died alone at least once by then."""
    return claims >= max(poison_after, SUSPECT_AFTER + 1)


def group(suspects: Sequence[Suspect], limit: int) -> list[str]:
    """The suspects to be tried together, by their ids: the first one and those that died with it."""
    if not suspects:
        return []
    home = suspects[0].home
    members = [one.run_id for one in suspects if one.home == home]
    number = (len(members) + 1) // 2 if home is not None and home.startswith(_TRIED) else len(members)
    return members[: max(1, min(number, limit))]


def claims_after(claims: int, *, alone: bool, progressed: bool) -> int:
    """The count of claims without progress after the death of a worker of ours, which held nothing else (`alone`) or other runs, too."""
    if progressed:
        return 0
    return claims if alone or claims <= SUSPECT_AFTER else claims - 1


def home_after(worker: str, claims: int, *, alone: bool) -> str:
    """The home of a run after the death of a worker of ours. No worker that lives is called so: it is left to none."""
    return worker if alone or claims <= SUSPECT_AFTER else _TRIED + worker


#: `is_poison` (of a worker in another language, which is given a suspect alone), `claims_after` and `home_after` as SQL, over the columns of a
#: lost run, `foreign_lease`, `alone` and `progressed`.
IS_POISON = f"(foreign_lease AND claims >= {{poison_after}} AND claims > {SUSPECT_AFTER})"
CLAIMS_AFTER = f"""CASE
    WHEN foreign_lease THEN claims
    WHEN progressed THEN 0
    WHEN alone OR claims <= {SUSPECT_AFTER} THEN claims
    ELSE claims - 1
  END"""
HOME_AFTER = f"CASE WHEN foreign_lease OR alone OR claims <= {SUSPECT_AFTER} THEN worker ELSE '{_TRIED}' || worker END"


async def set_aside(tx: Transaction, run_id: str, claims: int) -> str:
    """Block a run whose row is locked, until a person unblocks it; the error that is written, as JSON."""
    error = failure(
        WorkflowError,
        f"Run {run_id!r} was claimed {claims} times in a row and each time its worker went away before anything was "
        "recorded, the last times with nothing else to do. Look at what the run does first, then unblock it.",
    )
    await tx.execute(_SET_ASIDE, {"run_id": run_id, "error": error, "now": tx.now})
    tx.note(run_id, "blocked", to_json({"reason": Reason.POISON.value}))
    return error
