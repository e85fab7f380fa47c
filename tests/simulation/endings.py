"""What became of runs that were terminated, and of messages that were set aside."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from perdure.core.codec.failure import Failure
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import ABANDONED, Run, Status
from perdure.workflow.saga import UNDO
from tests.simulation.ledger import Ledger
from tests.simulation.programs import REVERSIBLE

#: Runs that were ended without their code, when, and whether that raised their token. Pruning ends hidden runs, which
#: may be brought back and retried before they are deleted.
ENDED = """
CREATE TEMP TRIGGER keep_terminated AFTER UPDATE ON perdure_runs
WHEN OLD.finished_at = 0 AND NEW.status = 'failed' AND NEW.inbox_seq > OLD.inbox_seq
BEGIN INSERT INTO terminated
VALUES (NEW.id, NEW.generation, NEW.finished_at, NEW.token > OLD.token, NEW.deleted_at); END
"""
#: No code of such a run writes anything.
NO_RECORD = """
CREATE TEMP TRIGGER record_after_termination AFTER INSERT ON perdure_history
WHEN EXISTS (SELECT 1 FROM perdure_runs r, terminated t
  WHERE r.id = NEW.run_id AND t.id = r.id AND t.generation = r.generation)
BEGIN INSERT INTO overwritten VALUES ('history of the terminated run ' || NEW.run_id); END
"""
#: Children that a run had when it was terminated, of those that do not outlive it, and what they were told. A hidden
#: run that has begun its next generation since, or is deleted for good, may have started others and let go of these;
#: and a child that had ended may have been reopened since.
_CHILDREN = f"""
SELECT t.id, c.id, c.created_at > t.at, m.seq FROM temp.terminated t JOIN perdure_runs c ON c.parent_id = t.id
LEFT JOIN perdure_messages m ON m.run_id = c.id AND m.message_key = 'cancel:' || t.id
WHERE (c.finished_at = 0 OR c.finished_at > t.at) AND c.write_id NOT LIKE '{ABANDONED}%'
  AND (t.hidden = 0 OR (c.generation = 1
    AND EXISTS (SELECT 1 FROM perdure_runs r WHERE r.id = t.id AND r.generation = t.generation)))
"""
_SET_ASIDE = "SELECT run_id, position, payload FROM perdure_outputs WHERE kind = 'aside'"
_AGAIN = "SELECT run_id, message_key FROM perdure_messages WHERE message_key LIKE ' again:%'"
#: What was sent, without what was carried over.
_SENT = """
SELECT l.run_id, l.payload FROM temp.letters l JOIN perdure_messages m ON m.run_id = l.run_id AND m.seq = l.seq
WHERE l.kind = 'message' AND m.message_key NOT LIKE ' kept:%'
"""


class Endings:
    """See the module."""

    def __init__(
        self,
        query: Any,
        runs: Mapping[str, Run],
        records: Iterable[tuple[str, Iterable[Record]]],
        ledger: Ledger,
    ) -> None:
        self._query = query
        self._runs = runs
        self._ledger = ledger
        self._records: defaultdict[str, list[Record]] = defaultdict(list)
        for run_id, some in records:
            self._records[run_id] += some
        #: Runs that ended without their code.
        self.ended = {run_id for (run_id,) in query("SELECT id FROM temp.terminated")}

    def findings(self) -> Iterator[str]:
        """What is wrong with them."""
        yield from self._terminated()
        yield from self._children()
        yield from self._undos()
        yield from self._decisions()

    def _terminated(self) -> Iterator[str]:
        for run_id, raised in self._query("SELECT id, raised FROM temp.terminated"):
            if not raised:
                yield f"run {run_id} was terminated, and its token was not raised"
        for run_id, undo in self._ledger.terminated.items():
            run = self._runs[run_id]
            is_failed = run.status is Status.FAILED and "RunTerminated" in (run.error or "")
            self._ledger.sometimes["a run was terminated"] += is_failed and run_id in self.ended
            self._ledger.sometimes["a run was terminated with its undos"] += is_failed and run_id not in self.ended
            if not undo and not is_failed:
                yield f"run {run_id} was terminated, and is {run.status}: {run.error}"

    def _children(self) -> Iterator[str]:
        for parent, child, later, told in self._query(_CHILDREN):
            if later:
                yield f"run {child} was started by run {parent} after that was terminated"
            elif told is None:
                yield f"run {child} was not told that its parent {parent} was terminated"
            self._ledger.sometimes["a child was told of a termination"] += told is not None

    def _undos(self) -> Iterator[str]:
        """What a run that was terminated with its undos did at its top level is undone, all of it."""
        for run in self._runs.values():
            if run.status is not Status.FAILED or run.id in self.ended or run.generation > 1 or run.attempt > 1:
                continue
            failure = Failure.from_json(run.error or "{}")
            if not failure.type.endswith("RunTerminated") or failure.not_undone:
                continue
            done = {r.location: r for r in self._records[run.id] if r.kind is RecordKind.STEP}
            for location, record in done.items():
                if location.partition("#")[0] == REVERSIBLE and "/" not in location and not record.failed:
                    undone = done.get(location + UNDO)
                    self._ledger.sometimes["a termination undid a step"] += undone is not None
                    if undone is None:
                        yield f"{location} of run {run.id}, which was terminated with its undos, is not undone"

    def _decisions(self) -> Iterator[str]:
        again = {(run_id, int(key.rpartition(":")[2])) for run_id, key in self._query(_AGAIN)}
        sent = Counter((run_id, payload) for run_id, payload in self._query(_SENT))
        aside: Counter[tuple[str, str]] = Counter()
        of_run: Counter[str] = Counter()
        for run_id, number, payload in self._query(_SET_ASIDE):
            stored = msgspec.json.decode(payload, type=dict[str, Any])
            decision = stored.get("decision", "")
            aside[run_id, stored["payload"]] += 1
            of_run[run_id] += 1
            self._ledger.sometimes[f"a message that was set aside was {decision or 'left there'}"] += 1
            known = self._ledger.decisions.get((run_id, number))
            if known is not None and known != decision:
                yield f"message {number} of run {run_id} was to be {known}, and is {decision!r}"
            if ((run_id, number) in again) is not (decision == "delivered"):
                yield f"message {number} of run {run_id} is {decision!r}, and was not treated so"
        for what, times in aside.items():
            if times > sent[what]:
                yield f"message {what} was set aside {times} times, and came {sent[what]} times"
        for run_id in self._runs:
            recorded = sum(record.kind is RecordKind.ASIDE for record in self._records[run_id])
            if recorded != of_run[run_id]:
                yield f"run {run_id} has set aside {recorded} messages, and {of_run[run_id]} are there"
