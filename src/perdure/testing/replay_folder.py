"""`replay_everywhere`: the exported histories of a folder against today's code."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from msgspec import Struct

from perdure.client.engine import Engine
from perdure.core.model.histories import HistoriesReport
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.workflow.discover import Definable


class FolderReport(Struct, frozen=True):
    """Result of `replay_everywhere`."""

    #: By file, the result of its replay.
    files: dict[str, HistoriesReport]

    @property
    def checked(self) -> int:
        """Number of runs that were replayed."""
        return sum(report.checked for report in self.files.values())

    @property
    def ok(self) -> bool:
        """True if every run can continue with this code, and every line could be read."""
        return all(report.ok for report in self.files.values())

    def __str__(self) -> str:
        lines = [f"{self.checked} runs of {len(self.files)} files replayed"]
        for file, report in self.files.items():
            lines += [
                f"{file}: run {one.run_id!r} ({one.type}) {one.problem.value}: "
                f"expected {one.expected}, found {one.found}"
                for one in report.findings
            ]
            lines += [f"{file}: line {one.line} is damaged: {one.error}" for one in report.damaged]
        return "\n".join(lines)


async def replay_everywhere(
    folder: str | PathLike[str],
    workflows: Iterable[Definable],
    *,
    pattern: str = "*.jsonl",
    errors: Iterable[type[Exception]] = (),
) -> FolderReport:
    """Replay each file of histories in a folder and its subfolders against the code of workflows.

    The files are those of `perdure export` and `engine.runs.export`. Nothing else is read. Raises `UsageError` if the
    folder has no file that fits the pattern, so that a test does not pass because its files have moved.
    """
    files = sorted(Path(folder).rglob(pattern))  # noqa: ASYNC240 - a folder of a test
    if not files:
        raise UsageError(f"the folder {brief(str(folder))} has no file {pattern}; write one: perdure export")
    engine = Engine("sqlite://", workflows, errors=errors)
    try:
        return FolderReport({str(file.relative_to(folder)): await engine.runs.replay(file) for file in files})
    finally:
        await engine.close()
