"""Settings of a run: queue, priority, timeouts, retry and limits, as declared by an activity or given by one call.

The settings of one call travel with its run, as JSON, and take precedence over the declared ones. Timeouts of the whole
run become its deadline when it is created; timeouts of an attempt are left to the worker that makes the attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.plain_json import plain_json
from perdure.core.ids import check_name
from perdure.core.limits.breaker import Breaker
from perdure.core.limits.call_limits import CallBreaker, CallFair, CallLimit
from perdure.core.limits.limit import Fair, Limit
from perdure.core.model.headers import Headers, check_headers
from perdure.core.option_checks import check_instance, check_known, check_priority, check_retry, check_time
from perdure.core.policy.retry import Retry
from perdure.core.policy.singleton import Singleton, StoredSingleton, stored_singleton_of
from perdure.core.time.duration import NEVER, Duration, seconds
from perdure.errors import DecodeError, UsageError


class ActivityOptions(TypedDict, total=False):
    """Options of an activity, as users write them: in `@activity(...)` and in `call.options(...)`.

    None leaves an option alone.
    """

    #: When to retry, or the number of attempts; the worker's own policy by default.
    retry: Retry | int | None
    #: Longest wait for a worker.
    schedule_to_start: Duration | None
    #: Longest duration of one attempt.
    start_to_close: Duration | None
    #: Longest duration of the whole run, waits and retries included.
    schedule_to_close: Duration | None
    #: Longest time between two heartbeats (`activity_info().heartbeat()`).
    heartbeat: Duration | None
    #: At most one unfinished run of a key.
    singleton: Singleton | None
    #: Bound on concurrency or rate, over all processes.
    limit: Limit | Sequence[Limit] | None
    #: Key by which waiting runs take turns.
    fair: Fair | None
    #: Circuit breaker of the dependency that the activity calls.
    breaker: Breaker | None


class RunSettings(Struct, frozen=True, kw_only=True):
    """Checked settings of an activity, or of one call; None leaves a setting to the next outer level.

    Times are in seconds.
    """

    retry: Retry | None = None
    schedule_to_start: float | None = None
    start_to_close: float | None = None
    schedule_to_close: float | None = None
    heartbeat: float | None = None
    queue: str | None = None
    priority: int | None = None
    singleton: Singleton | None = None
    #: The singleton of one call, with its key; it travels with the run.
    single: StoredSingleton | None = None
    #: Limits, breaker and fairness key of one call; they replace the declared ones.
    limits: tuple[CallLimit, ...] | None = None
    breaker: CallBreaker | None = None
    fair: CallFair | None = None
    #: Headers of the run.
    headers: Headers | None = None

    def over(self, other: RunSettings) -> RunSettings:
        """These settings, with what they leave open taken from `other`."""
        if self is NO_SETTINGS or other is NO_SETTINGS:
            return other if self is NO_SETTINGS else self
        return RunSettings(
            **{
                name: getattr(other, name) if getattr(self, name) is None else getattr(self, name)
                for name in self.__struct_fields__
            }
        )

    @property
    def limited(self) -> bool:
        """True if one call has limits, a breaker or a fairness key of its own."""
        return self.limits is not None or self.breaker is not None or self.fair is not None

    def to_json(self) -> str:
        """Encode what travels with the run. Raises `UsageError`."""
        if self is NO_SETTINGS:
            return "{}"
        retry = None if self.retry is None else _stored_retry(self.retry)
        start_within = self.schedule_to_start if self.limited else None
        stored = _StoredSettings(
            retry, self.start_to_close, self.heartbeat, self.single, self.limits, self.breaker, self.fair, start_within,
            dict(self.headers) if self.headers else None,
        )  # fmt: skip
        return plain_json(stored)

    @classmethod
    def from_json(cls, text: str) -> RunSettings:
        """Decode the settings of a run. Raises `DecodeError`."""
        if text in ("{}", ""):
            return NO_SETTINGS
        try:
            stored = _settings_decoder.decode(text)
            return cls(
                retry=None if stored.retry is None else stored.retry.policy(),
                start_to_close=stored.start_to_close,
                heartbeat=stored.heartbeat,
                single=stored.single,
                limits=stored.limits,
                breaker=stored.breaker,
                fair=stored.fair,
                headers=check_headers(stored.headers) or None,
            )
        except Exception as error:
            raise DecodeError(f"the options {text!r} of a run make no sense: {error}") from error


NO_SETTINGS = RunSettings()


class _StoredRetry(Struct, frozen=True, forbid_unknown_fields=True):
    """The plain part of a `Retry`, with its defaults."""

    attempts: int | None = 5
    initial: float = 1.0
    factor: float = 2.0
    max: float = 60.0
    jitter: float = 0.1
    on_timeout: bool = True
    power: float | None = None
    extra: tuple[float, float] = (0.0, 0.0)
    classify: bool = True
    # Left out unless given: a worker of an older version reads every policy that it can follow.
    jitter_only_adds: bool | UnsetType = UNSET
    give_up_on: tuple[str, ...] | UnsetType = UNSET

    def policy(self) -> Retry:
        """The policy that was stored. Raises `UsageError`."""
        given = msgspec.structs.asdict(self)
        return Retry(**{name: value for name, value in given.items() if value is not UNSET})


class _StoredSettings(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """JSON of a run's options; the field names are part of the stored format."""

    retry: _StoredRetry | None = None
    start_to_close: float | None = None
    heartbeat: float | None = None
    single: StoredSingleton | None = None
    limits: tuple[CallLimit, ...] | None = None
    breaker: CallBreaker | None = None
    fair: CallFair | None = None
    start_within: float | None = None
    headers: dict[str, str] | None = None


_settings_decoder = decoder_for(_StoredSettings)


class Placement(Struct, frozen=True):
    """Queue, priority, deadlines and options of a new run; None leaves queue or priority to the creator."""

    queue: str | None
    priority: int | None
    deadline: int
    close_by: int = 0
    max_attempts: int = 0
    options: str = "{}"

    @property
    def is_single(self) -> bool:
        """True for a run of a singleton, which may have to wait for another run."""
        return self.options != "{}" and stored_singleton_of(self.options) is not None


def make_settings(options: ActivityOptions, *, queue: str | None = None, priority: int | None = None) -> RunSettings:
    """Check the options that a user wrote, apart from `limit`, `fair` and `breaker`.

    Raises `UsageError` and its subclasses.
    """
    check_known(options, ActivityOptions, "an activity")
    singleton = options.get("singleton")
    check_instance("singleton", singleton, Singleton, "Singleton(policy='queue')")
    return RunSettings(
        retry=check_retry(options.get("retry")),
        schedule_to_start=check_time("schedule_to_start", options.get("schedule_to_start")),
        start_to_close=check_time("start_to_close", options.get("start_to_close")),
        schedule_to_close=check_time("schedule_to_close", options.get("schedule_to_close")),
        heartbeat=check_time("heartbeat", options.get("heartbeat")),
        queue=None if queue is None else check_name(queue, "queue"),
        priority=check_priority(priority),
        singleton=singleton,
    )


def place(
    given: RunSettings,
    declared: RunSettings,
    ready_at: int,
    queue: str | None,
    priority: int | None,
    deadline: int,
    single: StoredSingleton | None = None,
) -> Placement:
    """Combine the settings of a call and of its code for a run that is ready at `ready_at`."""
    settings = given.over(declared)
    if settings.schedule_to_close is not None:
        deadline = min(deadline, ready_at + int(settings.schedule_to_close * 1e6))
    close_by = 0
    if settings.schedule_to_start is not None:
        start_by = ready_at + int(settings.schedule_to_start * 1e6)
        if start_by < deadline:
            deadline, close_by = start_by, deadline
    attempts = None if given.retry is None else given.retry.attempts
    return Placement(
        settings.queue if queue is None else queue,
        settings.priority if priority is None else priority,
        min(deadline, NEVER),
        close_by,
        attempts or 0,
        _travelling(given, settings.schedule_to_start, single).to_json(),
    )


def _travelling(given: RunSettings, start_within: float | None, single: StoredSingleton | None) -> RunSettings:
    """The settings that travel with a run."""
    if given.limited and given.schedule_to_start != start_within:
        given = replace(given, schedule_to_start=start_within)
    return given if single is None else replace(given, single=single)


def _stored_retry(retry: Retry) -> _StoredRetry:
    names = tuple(each for each in retry.give_up_on if isinstance(each, str))
    if retry.delay is not None or len(names) < len(retry.give_up_on):
        raise UsageError(
            "a retry policy that travels with a run cannot have a `delay` function or exception classes in it; "
            "give the names of the classes, or declare the policy at the activity"
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
        jitter_only_adds=retry.jitter_only_adds or UNSET,
        give_up_on=names or UNSET,
    )
