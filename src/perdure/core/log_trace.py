"""Log records with the text of a traceback or a stack that no exception of this process carries."""

from __future__ import annotations

import logging
from collections.abc import Mapping


def log_with_trace(
    logger: logging.Logger, level: int, trace: str, message: str, *args: object, extra: Mapping[str, object]
) -> None:
    """Log a message; formatters print the trace below it, as they do with that of an exception."""
    if logger.isEnabledFor(level):
        record = logger.makeRecord(logger.name, level, logger.name, 0, message, args, None, extra=extra)
        record.exc_text = trace or None
        logger.handle(record)
