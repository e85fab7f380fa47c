"""What became of the messages of a run that began anew: each was received once, in order, or is still there.

Known exactly only where nothing of a workflow runs side by side, is interrupted or is let go: what such a part has
received, no record else knows of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Run

#: What makes it uncertain who has received what.
_UNCERTAIN = (
    "gather",
    "group",
    "race",
    "limit",
    "join",
    "contest",
    "typed",
    "firstend",
    "map",
    "loop",
    "outcome",
    "shield",
)

#: An entry that was read has no payload any more.
_LETTERS = """
SELECT l.seq, l.name, l.payload, m.consumed FROM temp.letters l
JOIN perdure_messages m ON m.run_id = l.run_id AND m.seq = l.seq
WHERE l.run_id = ? AND l.kind = 'message' AND l.name NOT LIKE '%~ask' ORDER BY l.seq
"""


class _Letter(Struct, frozen=True):
    seq: int
    name: str
    text: str
    consumed: bool


class Mail:
    """The inbox of one run."""

    def __init__(self, query: Any, run: Run, history: Iterable[Record], inputs: Iterable[str]) -> None:
        self._run = run
        self._letters = [
            _Letter(seq, name, msgspec.json.decode(payload), bool(consumed))
            for seq, name, payload, consumed in query(_LETTERS, (run.id,))
            # A number cannot be decoded, and is set aside.
            if payload.startswith('"')
        ]
        #: By what it says, each when it was sent, and not when it was carried over.
        self._first: dict[str, _Letter] = {}
        for letter in self._letters:
            self._first.setdefault(letter.text, letter)
        self._recorded = {record.inbox_seq for record in history if record.kind is RecordKind.MESSAGE}
        self._certain = not any(f'"type":"{op}"' in text.replace("\\", "") for text in inputs for op in _UNCERTAIN)

    def findings(self) -> Iterator[str]:
        """What is wrong with it."""
        yield from self._arrivals()
        if not self._certain:
            return
        given = msgspec.json.decode(self._run.input, type=dict[str, Any])
        #: In earlier generations.
        taken: list[str] = given["taken"]
        yield from (f"{self._who} received {text!r} twice" for text, times in Counter(taken).items() if times > 1)
        yield from self._order(taken)
        yield from self._whereabouts(frozenset(taken))

    @property
    def _who(self) -> str:
        return f"run {self._run.id}, which began anew,"

    def _present(self) -> list[_Letter]:
        """What the generation of now has taken in, or has still to take in."""
        return [one for one in self._letters if not one.consumed or one.seq in self._recorded]

    def _arrivals(self) -> Iterator[str]:
        """What was carried over comes before what came later."""
        last = 0
        for letter in self._present():
            sent = self._first[letter.text].seq
            if sent < last:
                yield f"{self._who} has {letter.text!r} behind what was sent later"
            last = sent

    def _order(self, taken: list[str]) -> Iterator[str]:
        last: dict[str, int] = {}
        for text in taken:
            letter = self._first[text]
            if letter.seq < last.get(letter.name, 0):
                yield f"{self._who} received {text!r} after what was sent later"
            last[letter.name] = letter.seq

    def _whereabouts(self, taken: frozenset[str]) -> Iterator[str]:
        present = {letter.text for letter in self._present()}
        for text in self._first:
            if text in taken and text in present:
                yield f"{self._who} received {text!r} and has it still"
            elif text not in taken and text not in present:
                yield f"{self._who} has lost {text!r}"
