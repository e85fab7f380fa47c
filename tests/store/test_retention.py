from __future__ import annotations

from perdure.testing import conformance


class TestDeadLetters(conformance.DeadLetters): ...


class TestRequeueing(conformance.Requeueing): ...


class TestDeleting(conformance.Deleting): ...


class TestPruning(conformance.Pruning): ...
