"""Where a run is executed, until when and how often: what an activity declares, and what one call of it says besides.

What one call says travels with its run, as JSON, and goes before what the code says. Times that bound the whole run become
its deadline when it is created; those that bound an attempt are left to the worker that makes it.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_name
from perdure.core.limits.call_limits import GivenBreaker, GivenFair, GivenLimit
from perdure.core.model.run import FAR
from perdure.core.option_checks import check_priority, check_retry, check_time
from perdure.core.policy.retry import Retry
from perdure.core.policy.singleton import Single, Singleton, single_of
from perdure.core.time.duration import Duration, seconds
from perdure.errors import DecodeError, UsageError


class Settings(Struct, frozen=True, kw_only=True):
    """What an activity, or one call of it, may be told; None leaves it to the next outer level. Times are in seconds."""

    retry: Retry | None = None
    schedule_to_start: float | None = None
    start_to_close: float | None = None
    schedule_to_close: float | None = None
    heartbeat: float | None = None
    queue: str | None = None
    priority: int | None = None
    singleton: Singleton | None = None
    #: What that is for one call; it travels with the run.
    single: Single | None = None
    #: What one call has to pass in place of what its code says.
    limits: tuple[GivenLimit, ...] | None = None
    breaker: GivenBreaker | None = None
    fair: GivenFair | None = None

    def over(self, other: Settings) -> Settings:
        """These settings, filled up from `other`."""
        if self is NO_SETTINGS or other is NO_SETTINGS:
            return other if self is NO_SETTINGS else self
        return Settings(
            **{
                name: getattr(other, name) if getattr(self, name) is None else getattr(self, name)
                for name in self.__struct_fields__
            }
        )

    @property
    def gated(self) -> bool:
        """Whether one call has gates of its own."""
        return self.limits is not None or self.breaker is not None or self.fair is not None

    def to_json(self) -> str:
        """What bounds an attempt, as it is stored. Raises `UsageError`."""
        if self is NO_SETTINGS:
            return "{}"
        retry = None if self.retry is None else _plain(self.retry)
        start_within = self.schedule_to_start if self.gated else None
        stored = _Stored(
            retry, self.start_to_close, self.heartbeat, self.single, self.limits, self.breaker, self.fair, start_within
        )
        return msgspec.json.encode(stored).decode()

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Read it back. Raises `DecodeError`."""
        if text in ("{}", ""):
            return NO_SETTINGS
        try:
            stored = _stored.decode(text)
            return cls(
                retry=None if stored.retry is None else Retry(**msgspec.structs.asdict(stored.retry)),
                start_to_close=stored.start_to_close,
                heartbeat=stored.heartbeat,
                single=stored.single,
                limits=stored.limits,
                breaker=stored.breaker,
                fair=stored.fair,
            )
        except Exception as error:
            raise DecodeError(f"the options {text!r} of a run make no sense: {error}") from error


NO_SETTINGS = Settings()


class _StoredRetry(Struct, frozen=True, forbid_unknown_fields=True):
    """What of a `Retry` is plain, with its defaults."""

    attempts: int | None = 5
    initial: float = 1.0
    factor: float = 2.0
    max: float = 60.0
    jitter: float = 0.1
    on_timeout: bool = True
    power: float | None = None
    extra: tuple[float, float] = (0.0, 0.0)
    classify: bool = True


class _Stored(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    retry: _StoredRetry | None = None
    start_to_close: float | None = None
    heartbeat: float | None = None
    single: Single | None = None
    limits: tuple[GivenLimit, ...] | None = None
    breaker: GivenBreaker | None = None
    fair: GivenFair | None = None
    start_within: float | None = None


_stored = decoder_for(_Stored)


class Placed(Struct, frozen=True):
    """What a new run gets; None leaves a queue or a priority to whoever creates it."""

    queue: str | None
    priority: int | None
    deadline: int
    close_by: int = 0
    max_attempts: int = 0
    options: str = "{}"

    @property
    def is_single(self) -> bool:
        """Whether the run has to wait for its turn."""
        return self.options != "{}" and single_of(self.options) is not None


def make_settings(
    *,
    retry: Retry | int | None = None,
    schedule_to_start: Duration | None = None,
    start_to_close: Duration | None = None,
    schedule_to_close: Duration | None = None,
    heartbeat: Duration | None = None,
    queue: str | None = None,
    priority: int | None = None,
    singleton: Singleton | None = None,
) -> Settings:
    """Validated settings, from what a user writes. Raises `UsageError` and the like."""
    if singleton is not None and not isinstance(singleton, Singleton):
        raise UsageError(f"singleton={singleton!r}: give a Singleton, such as Singleton(policy='queue')")
    return Settings(
        retry=check_retry(retry),
        schedule_to_start=check_time("schedule_to_start", schedule_to_start),
        start_to_close=check_time("start_to_close", start_to_close),
        schedule_to_close=check_time("schedule_to_close", schedule_to_close),
        heartbeat=check_time("heartbeat", heartbeat),
        queue=None if queue is None else check_name(queue, "queue"),
        priority=check_priority(priority),
        singleton=singleton,
    )


def place(
    given: Settings,
    declared: Settings,
    ready_at: int,
    queue: str | None,
    priority: int | None,
    deadline: int,
    single: Single | None = None,
) -> Placed:
    """What a run gets that is ready at a time: by what its call was given, and by what its code declares."""
    settings = given.over(declared)
    if settings.schedule_to_close is not None:
        deadline = min(deadline, ready_at + int(settings.schedule_to_close * 1e6))
    close_by = 0
    if settings.schedule_to_start is not None:
        start_by = ready_at + int(settings.schedule_to_start * 1e6)
        if start_by < deadline:
            deadline, close_by = start_by, deadline
    attempts = None if given.retry is None else given.retry.attempts
    return Placed(
        settings.queue if queue is None else queue,
        settings.priority if priority is None else priority,
        min(deadline, FAR),
        close_by,
        attempts or 0,
        _told(given, settings.schedule_to_start, single).to_json(),
    )


def _told(given: Settings, start_within: float | None, single: Single | None) -> Settings:
    """What travels with a run."""
    if given.gated and given.schedule_to_start != start_within:
        given = replace(given, schedule_to_start=start_within)
    return given if single is None else replace(given, single=single)


def _plain(retry: Retry) -> _StoredRetry:
    if retry.delay is not None or retry.give_up_on:
        raise UsageError(
            "a retry policy that travels with a run cannot have a `delay` function or exception classes in it; declare it at the "
            "activity instead"
        )
    low, high = retry.extra
    return _StoredRetry(
        attempts=retry.attempts,
        initial=seconds(retry.initial),
        factor=retry.factor,
        max=seconds(retry.max),
        jitter=retry.jitter,
        on_timeout=retry.on_timeout,
        power=retry.power,
        extra=(seconds(low), seconds(high)),
        classify=retry.classify,
    )
