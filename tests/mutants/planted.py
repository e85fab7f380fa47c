"""Faults that were thought of by hand, each of which breaks a promise: the text, and what it becomes."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutants.drawing import Fault, Functions


class Planted(NamedTuple):
    """A fault by its words."""

    name: str
    path: str
    was: str
    becomes: str

    def fault(self, text: str) -> Fault:
        """As those that are drawn are."""
        assert text.count(self.was) == 1, (
            f"{self.name}: {self.was!r} is there {text.count(self.was)} times in {self.path}"
        )
        start = text.index(self.was)
        line = text.count("\n", 0, start) + 1
        return Fault(
            self.path, line, Functions(text).at(line), self.name, start, start + len(self.was), self.was, self.becomes
        )


PLANTED = (
    Planted("a record is known by its number alone", "perdure/store/sql/turn.py",
        "if there and there[0] == record_row(turn, record):", "if there:"),
    Planted("a late release of a former lease frees the permit of a step", "perdure/store/sql/limits/admit_steps.py",
        "AND location = :place AND token <= :token", "AND location = :place AND :token = :token"),
    Planted("a late release of a former lease frees the permit of a run", "perdure/store/sql/limits/gates.py",
        "if token <= tokens[run_id]", "if run_id in tokens"),
    Planted("a lease is its token alone", "perdure/store/sql/turn.py",
        "tuple(rows[0]) == (Status.RUNNING.value, lease.token, lease.nonce)",
        "rows[0][:2] == (Status.RUNNING.value, lease.token)"),
    Planted("a terminated run keeps its token", "perdure/store/sql/runs/terminate.py",
        "token = token + 1, worker = NULL", "worker = NULL"),
    Planted("a repeated order to terminate is a second one", "perdure/store/sql/runs/terminate.py",
        'if await tx.fetch(KNOWN, {"run_id": run_id, "key": key}):\n        return OrderOutcome.DONE', "pass"),
    Planted("the children of a terminated run go on", "perdure/store/sql/runs/terminate.py",
        'await stop_children(tx, run_id, "terminated")', "pass"),
    Planted("the parent of a terminated run is not told", "perdure/store/sql/runs/terminate.py",
        "word = message_to_parent(run_id, parent_id, location, generation, error, failed=True)", "word = None"),
    Planted("a terminated run that is tried again is not undone", "perdure/store/sql/runs/terminate.py",
        "if undo and (started_at != 0 or attempt > 1):", "if undo and started_at != 0:"),
    Planted("a termination that undoes is a cancellation", "perdure/store/sql/runs/terminate.py",
        "failed=undo, key=key", "failed=False, key=key"),
    Planted("a terminated run forgets its deadline to close by", "perdure/store/sql/runs/terminate.py",
        "marked = 0, claims = 0\n", "marked = 0, claims = 0, close_by = 0\n"),
    Planted("the holder of a terminated run is not told", "perdure/store/sql/runs/terminate.py",
        "tx.notify(Change.FINISHED | Change.ENDED)", "tx.notify(Change.FINISHED)"),
    Planted("a second decision about a message replaces the first", "perdure/store/sql/runs/set_aside_messages.py",
        "return OrderOutcome.DONE if message.key == key else OrderOutcome.ALREADY", "return OrderOutcome.DONE"),
    Planted("a message is delivered to a run that has ended", "perdure/store/sql/runs/set_aside_messages.py",
        "if await send(tx, [again]) == [SendOutcome.FINISHED]:\n            return OrderOutcome.FINISHED",
        "await send(tx, [again])"),
    Planted("two set-aside messages of two generations have one key", "perdure/replay/execution.py",
        'key = f"aside:{self._origin.life}.{one.seq}"', 'key = f"aside:{one.seq}"'),
    Planted("a receive ends with a message that was set aside", "perdure/replay/mailbox.py",
        "if not self._hand_over(name, (seq, payload), receiver):\n                    receivers.appendleft(receiver)",
        "self._hand_over(name, (seq, payload), receiver)"),
    Planted("a receive ends with a message of a batch that was set aside", "perdure/replay/mailbox.py",
        "        self._receivers[name].appendleft(receiver)\n        return False", "        return False"),
    Planted("a message that was received is set aside when it is replayed", "perdure/replay/mailbox.py",
        "if self.replays:", "if False:"),
    Planted("a message that the history sets aside is received when it is replayed", "perdure/replay/mailbox.py",
        "if seq in self.set_aside:", "if False:"),
    Planted("the next attempt receives a message that was set aside", "perdure/replay/reused_results.py",
        "messages.remove(found)", "pass"),
    Planted("a question that was set aside has no answer", "perdure/replay/execution.py",
        "self.effects.append(reply)", "pass"),
    Planted("an error that a step has raised is one of the code", "perdure/core/policy/broken_code.py",
        "if vars(error).get(_RECORDED):", "if False:"),
    Planted("an error that a step has raised in a group is one of the code", "perdure/core/policy/broken_code.py",
        "        for member in error.exceptions:\n            mark_recorded(member)", "        pass"),
    Planted("an error of a user is one of the code", "perdure/core/policy/broken_code.py",
        '        and (kind.__module__ == "builtins" or kind in classes)\n', ""),
    Planted("a child that broken code has asked for is not started", "perdure/replay/execution.py",
        "# A child that an earlier record led to has to be started with it.\n            operation.open = isinstance(",
        "operation.open = False and isinstance("),
    Planted("broken code is replayed from the start of a batch's last message", "perdure/core/model/record.py",
        "if before.kind is not _MESSAGE or before.digest != last.digest:", "if before.kind is not _MESSAGE or True:"),
    Planted("the same broken code writes a record each time", "perdure/replay/execution.py",
        "if not _is_same_failure(self._broken_before, outcome.payload):", "if True:"),
    Planted("half of the time passes with a recorded result", "perdure/replay/execution.py",
        "self.loop.now = self.time\n        del self._open[location]",
        "self.loop.now = self.time // 2\n        del self._open[location]"),
    Planted("a recorded result of other arguments passes without a warning", "perdure/replay/execution.py",
        "record.failed or record.digest != operation.digest or self._begun:", "record.failed or self._begun:"),
    Planted("a recorded failure is a result", "perdure/replay/execution.py",
        "record.failed or record.digest != operation.digest or self._begun:",
        "record.digest != operation.digest or self._begun:"),
    Planted("a loop does not trim the results that it has replayed", "perdure/replay/execution.py",
        '            self.checkpoints.note(location[: location.rindex("/") + 1], record.seq)\n        if record.at',
        "            pass\n        if record.at"),
    Planted("an open operation is forgotten during replay", "perdure/replay/execution.py",
        "self.fresh = [operation for operation in self.fresh if operation.open]", "self.fresh = []"),
    Planted("a terminated workflow begins its undo anew for a second order", "perdure/replay/execution.py",
        "if self._undo_phase is not None:\n            return\n        self._let_children_go(_BOUND)",
        "self._let_children_go(_BOUND)"),
    Planted("an undo that a block was about to do is lost by a termination", "perdure/replay/execution.py",
        "undos.append(operation.location.removesuffix(UNDO), operation.request)", "pass"),
    Planted("a cancellation interrupts an undo", "perdure/replay/execution.py",
        "if self._undo_phase is not None:\n            return\n        assert self._main is not None\n        # Once",
        "assert self._main is not None\n        # Once"),
    Planted("a worker drops runs that it still holds", "perdure/worker/claiming/claimer.py",
        "for lease in leases - held:", "for lease in leases:"),
    Planted("a worker keeps runs that it no longer holds", "perdure/worker/claiming/claimer.py",
        "await self._drop_lost(held - set(leases))", "pass"),
    Planted("a worker loses the run of a later lease", "perdure/worker/worker.py",
        "if held is not None and held.lease == lease and held.is_stable:", "if held is not None and held.is_stable:"),
    Planted("a worker loses a run while it writes", "perdure/worker/worker.py",
        "held.lease == lease and held.is_stable:", "held.lease == lease:"),
    Planted("a lease counts from the answer to a heartbeat", "perdure/worker/heartbeat.py",
        "before + self._lease * SAFE_SHARE\n            if answer",
        "self._system.monotonic() + self._lease * SAFE_SHARE\n            if answer"),
    Planted("a retry by hand keeps the permits of the run", "perdure/store/sql/runs/reopen.py",
        'await tx.execute(_DROP_PERMITS, {"run_id": run.id})', "pass"),
    Planted("a repeated retry is a second one", "perdure/store/sql/runs/reopen.py",
        'if await tx.fetch(_KNOWN, {"run_id": run.id, **keys}):', "if False:"),
    Planted("a reopened run reads its inbox again", "perdure/store/sql/runs/reopen.py",
        '"inbox_read": run.inbox_seq if ended else run.inbox_read', '"inbox_read": run.inbox_read'),
    Planted("a retried run forgets its unread inbox", "perdure/store/sql/runs/reopen.py",
        '"inbox_read": run.inbox_seq if ended else run.inbox_read', '"inbox_read": run.inbox_seq'),
    Planted("a stopped child of a reopened run reports to it", "perdure/store/sql/runs/late_children.py",
        'await tx.execute(_LET_GO, {"run_id": child})', "pass"),
    Planted("a run parks over a message that it has not seen", "perdure/store/sqlite/commit.py",
        'WHERE {_LEASE} AND inbox_seq = :seen\n"""\n\n#: Without', 'WHERE {_LEASE}\n"""\n\n#: Without'),
    Planted("a run is finished under the nonce of another claim", "perdure/store/sqlite/commit.py",
        "WHERE id = ? AND token = ? AND nonce = ? AND status = 'running'\n\"\"\"",
        "WHERE id = ? AND token = ? AND ? <> '' AND status = 'running'\n\"\"\""),
    Planted("new code does not unblock runs of broken code", "perdure/worker/worker.py",
        "(Reason.DIVERGED, Reason.UNDECODABLE, Reason.BROKEN)", "(Reason.DIVERGED, Reason.UNDECODABLE)"),
    Planted("new code unblocks runs that it does not cure", "perdure/store/sql/runs/reopen.py",
        "WHERE status = 'blocked' AND reason IN ({reasons}) AND type IN ({types})",
        "WHERE status = 'blocked' AND reason NOT IN ({reasons}) AND type IN ({types})"),
)  # fmt: skip
