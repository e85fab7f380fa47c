"""Log records of users' own loggers, with the fields of the run."""

from perdure.worker.log_fields import JsonFormatter, RunFields

__all__ = [
    "JsonFormatter",
    "RunFields",
]
