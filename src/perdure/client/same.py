"""Whether a run that is there is the one that somebody wants to start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perdure.core.codec.codec import Codec
from perdure.core.model.reopen import life
from perdure.core.model.run import Created, NewRun, Run
from perdure.errors import DecodeError, RunExists
from perdure.workflow.definition import Call, Definition


class Sameness:
    """Compares runs by type and input, as far as the code is known by its annotations."""

    def __init__(self, codec: Codec, workflows: Mapping[str, Definition[Any, Any]]) -> None:
        self._codec = codec
        self._workflows = workflows

    def check(self, there: Run | NewRun, wanted: NewRun, call: Call[Any]) -> None:
        """Raise `RunExists` if it is of another type or has another input, as far as that is known."""
        if isinstance(there, Run) and life(there.seed, there.generation) > 1:
            # It began anew, and nothing says any more what it began with first.
            return
        if there.id == wanted.id:
            which = f"run {there.id!r}"
        else:
            which = f"idempotency key {wanted.idempotency_key!r} (run {there.id!r})"
        if there.type != wanted.type:
            raise RunExists(f"{which} exists with type {there.type!r}, not {wanted.type!r}; choose another id")
        if there.input != wanted.input and not self.is_same_input(there.input, wanted.input, call):
            raise RunExists(f"{which} of type {there.type!r} exists with another input; choose another id")

    def check_created(self, created: Iterable[Created], wanted: Sequence[NewRun], calls: Sequence[Call[Any]]) -> None:
        """Raise `RunExists` if one that was not created is another run than the one wanted."""
        for answer, new, call in zip(created, wanted, calls, strict=True):
            if not answer.created and not answer.attached:
                self.check(answer.run, new, call)

    def check_among(self, wanted: Sequence[NewRun], calls: Sequence[Call[Any]]) -> None:
        """Raise `RunExists` if two of them have one id and are not the same."""
        first: dict[str, NewRun] = {}
        for new, call in zip(wanted, calls, strict=True):
            self.check(first.setdefault(new.id, new), new, call)

    def is_same_input(self, there: str, wanted: str, call: Call[Any]) -> bool:
        """Whether two inputs say the same, though sets and dicts may have been written in another order."""
        what = f"input of {call.type}"
        workflow = call.definition or self._workflows.get(call.type)
        if workflow is None:
            return bool(self._codec.decode(there, Any, what) == self._codec.decode(wanted, Any, what))
        decode = workflow.signature.decode
        try:
            one, other = decode(there, self._codec, what), decode(wanted, self._codec, what)
        except DecodeError:
            return False
        return self._codec.digest(one) == self._codec.digest(other)
