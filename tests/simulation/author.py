"""Author of the programs of a simulation, which are random."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from tests.simulation.guards import Guards
from tests.simulation.programs import (
    CORRELATIONS,
    DEEDS,
    EVENTS,
    GUARDED_DEEDS,
    KEYS,
    MESSAGES,
    REVERSIBLE,
    STEPS,
    TOLD,
    Act,
    Anew,
    Announce,
    Answer,
    Await,
    Bug,
    Child,
    Cleanup,
    Contest,
    Deed,
    FirstEnd,
    Gather,
    Group,
    Guarded,
    Handle,
    Join,
    Limit,
    Lined,
    Listen,
    Loop,
    Map,
    Once,
    Op,
    Other,
    Outcome,
    Program,
    Race,
    Receive,
    ReceiveAny,
    Saga,
    Shield,
    Show,
    Sleep,
    Spawn,
    Stand,
    Step,
    Tell,
    Try,
    Typed,
    Version,
)


class Author:
    """Writes programs; with activities in them, and with what has to pass guards, if that is wanted."""

    def __init__(
        self,
        rng: Random,
        *,
        activities: bool = False,
        guards: Guards | None = None,
        ends: bool = False,
        once: bool = False,
        others: bool = False,
        talks: bool = False,
        outbox: bool = False,
        deeds: bool = False,
    ) -> None:
        self._rng = rng
        #: Whether there are bugs, and more that can be undone.
        self._ends = ends
        #: Each simulation uses its own few kinds of operation, so that rare combinations come up.
        leaves: list[tuple[Callable[[], Op], int]] = [
            (self._step, 8), (self._deed, 6), (self._sleep, 3), (self._receive, 3), (self._effect, 3),
            (self._listen, 2),
        ]  # fmt: skip
        nests: list[tuple[Callable[[int], Op], int]] = [
            (self._gather, 3), (self._group, 2), (self._race, 2), (self._limit, 2), (self._try, 3), (self._cleanup, 2),
            (self._child, 6), (self._parallel, 5), (self._loop, 5), (self._saga, 4), (self._spawn, 4), (self._anew, 6),
        ]  # fmt: skip
        self.guards = guards
        if activities:
            leaves.append((self.act, 12))
        if guards:
            leaves += [(self.lined, 16), (self._guarded, 24)]
        #: Whether there are steps that must not run twice, and code that swallows its cancellation.
        self._once = once
        if once:
            leaves.append((lambda: Once(rng.choice((0.0, 0.1, 1.0, 5.0))), 20))
        #: Whether there are handlers of questions.
        self._talks = talks
        if talks:
            leaves.append((lambda: Await(rng.choice(EVENTS), rng.choice((None, None, 1.0, 4.0))), 12))
        if outbox:
            leaves.append((self._announce, 24))
        if deeds:
            leaves.append((self._deed, 24))
        if others:
            nests.append((self._other, 40))
        self._leaves = leaves
        self._nests = [each for each in nests if rng.random() < 0.7] or nests
        if talks:
            self._nests = [*self._nests, (self._typed, 16), (self._first_end, 16)]
        if deeds:
            # What follows from a transaction step and leaves the run.
            self._nests = [*self._nests, (self._child, 24), (self._spawn, 12)]

    def program(self, depth: int = 2) -> Program:
        """A program whose operations nest at most so deep."""
        return tuple(self._op(depth) for _ in range(self._rng.randint(1, 4 if depth == 2 else 2)))

    def whole(self, depth: int = 2) -> Program:
        """A program that is a run of its own; where it can have a bug, nothing catches the error."""
        ops = list(self.program(depth))
        if self._ends:
            extras = (Step(REVERSIBLE, undo=True), Step(REVERSIBLE, seconds=1.0, undo=True), Bug(), self._receive())
            for op in extras:
                if self._rng.random() < 0.4:
                    ops.insert(self._rng.randint(0, len(ops)), op)
        if self._talks and self._rng.random() < 0.8:
            ops.insert(0, Handle())
        if self._once and self._rng.random() < 0.6:
            ops = [Stand(tuple(ops), back=self._rng.random() < 0.5), *self.program(1)]
        return tuple(ops)

    def _op(self, depth: int) -> Op:
        if depth > 0 and self._rng.random() < 0.4:
            makers, weights = zip(*self._nests, strict=True)
            nest: Callable[[int], Op] = self._rng.choices(makers, weights)[0]
            return nest(depth - 1)
        leaves, weights = zip(*self._leaves, strict=True)
        leaf: Callable[[], Op] = self._rng.choices(leaves, weights)[0]
        return leaf()

    def _step(self) -> Op:
        rng = self._rng
        return Step(
            name=rng.choice(STEPS),
            seconds=rng.choice((0.0, 0.0, 0.01, 0.1, 1.0, 5.0)),
            failures=rng.choice((0, 0, 0, 1, 2, 3)),
            fatal=rng.random() < 0.05,
            timeout=rng.choice((None, None, 0.5, 3.0)),
            ephemeral=rng.random() < 0.15,
            undo=rng.random() < 0.2,
        )

    def act(self) -> Act:
        """An activity."""
        rng = self._rng
        act = Act(
            seconds=rng.choice((0.0, 0.0, 0.1, 1.0, 5.0)),
            beats=rng.choice((0, 0, 1, 4)),
            failures=rng.choice((0, 0, 0, 1, 2, 3)),
            attempts=rng.choice((1, 2, 3)),
            fatal=rng.random() < 0.05,
            start=rng.choice((None, None, None, 0.5, 5.0)),
            close=rng.choice((None, None, 0.5, 3.0)),
            total=rng.choice((None, None, None, 2.0, 10.0)),
            heartbeat=rng.choice((None, None, 1.0)),
        )
        # Without another number drawn, so that the seeds of earlier programs stay what they are.
        return replace(act, pending=act.attempts == 2 and act.seconds <= 0.1)

    def lined(self) -> Lined:
        """An activity that has to pass gates."""
        guard, key = self.place()
        return Lined(guard, key, self.act(), given=self._rng.random() < 0.3)

    def place(self) -> tuple[int, str]:
        """A guard and a key."""
        assert self.guards is not None
        return self._rng.randrange(len(self.guards.all)), self._rng.choice(KEYS)

    def _guarded(self) -> Op:
        rng = self._rng
        guard, key = self.place()
        return Guarded(
            guard,
            key,
            seconds=rng.choice((0.0, 0.1, 1.0, 5.0)),
            failures=rng.choice((0, 0, 0, 1, 2, 3)),
            fatal=rng.random() < 0.05,
            timeout=rng.choice((None, None, 0.5, 3.0)),
            deed=rng.choice((None, None, None, *GUARDED_DEEDS)),
        )

    def _deed(self) -> Op:
        return Deed(self._rng.choice(DEEDS), self._rng.choice((0, 0, 1, 3)))

    def _sleep(self) -> Op:
        return Sleep(self._rng.choice((0.0, 0.01, 0.2, 1.0, 6.0)), plain=self._rng.random() < 0.4)

    def _receive(self) -> Op:
        return Receive(self._rng.choice(MESSAGES), self._rng.choice((None, 0.2, 1.0, 4.0)))

    def _effect(self) -> Op:
        rng = self._rng
        kinds: tuple[Callable[[], Op], ...] = (
            lambda: Show(rng.randint(0, 3)),
            lambda: Tell(rng.choice(MESSAGES)),
            lambda: ReceiveAny(rng.choice((None, 0.2, 3.0)), many=rng.random() < 0.5),
            lambda: Version(rng.choice(STEPS)),
            lambda: Answer(rng.choice((0.5, 3.0, 8.0))),
        )
        return rng.choice(kinds)()

    def _listen(self) -> Op:
        return Listen(self._rng.choice(CORRELATIONS), self._rng.choice((None, 1.0, 4.0)))

    def _announce(self) -> Op:
        rng = self._rng
        return Announce(rng.choice(TOLD), rng.choice((*KEYS, *KEYS, None)), named=rng.random() < 0.3)

    def _typed(self, depth: int) -> Op:
        return Typed(self._branches(depth))

    def _first_end(self, depth: int) -> Op:
        return FirstEnd(self._branches(depth))

    def _parallel(self, depth: int) -> Op:
        rng = self._rng
        if rng.random() < 0.3:
            return Map(self.program(depth), rng.randint(1, 4), rng.randint(1, 3))
        return (Join if rng.random() < 0.5 else Contest)(self._branches(depth))

    def _loop(self, depth: int) -> Op:
        rng = self._rng
        return Loop(self.program(depth), rng.randint(1, 5), rng.randint(1, 3), rng.choice((0, 0, 1, 2)))

    def _saga(self, depth: int) -> Op:
        rng = self._rng
        if rng.random() < 0.3:
            return (Outcome if rng.random() < 0.5 else Shield)(self.program(depth))
        return Saga((Step(rng.choice(STEPS), undo=True), *self.program(depth)), fails=rng.random() < 0.5)

    def _spawn(self, depth: int) -> Op:
        rng = self._rng
        return Spawn(self.whole(depth), rng.choice(("cancel", "abandon", "wait")), awaited=rng.random() < 0.4)

    def _anew(self, depth: int) -> Op:
        return Anew(self.program(depth))

    def _branches(self, depth: int) -> tuple[Program, ...]:
        return tuple(self.program(depth) for _ in range(self._rng.randint(2, 3)))

    def _gather(self, depth: int) -> Op:
        return Gather(self._branches(depth), tolerant=self._rng.random() < 0.5)

    def _group(self, depth: int) -> Op:
        return Group(self._branches(depth))

    def _race(self, depth: int) -> Op:
        return Race(self._branches(depth))

    def _limit(self, depth: int) -> Op:
        return Limit(self._rng.choice((0.1, 0.5, 2.0, 8.0)), self.program(depth))

    def _try(self, depth: int) -> Op:
        return Try(self.program(depth))

    def _cleanup(self, depth: int) -> Op:
        return Cleanup(self.program(depth), self._rng.choice(STEPS))

    def _other(self, depth: int) -> Op:
        return Other(self.whole(depth), self._rng.choice((0.0, 0.0, 0.5, 5.0)), follow=self._rng.random() < 0.5)

    def _child(self, depth: int) -> Op:
        return Child(self.whole(depth), stubborn=self._rng.random() < 0.2)
