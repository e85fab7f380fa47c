"""A handle on one run of a server."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar, Unpack

import msgspec
from msgspec import UNSET

from perdure.client.handle import Handle
from perdure.client.remote.bodies import fork_body
from perdure.client.remote.session import LONG_POLL, RemoteSession
from perdure.client.remote.transport import ReceivedEvent, path_of
from perdure.client.remote.values import decoded, elements, failure_of, members, restore_all, text_of, value_of
from perdure.client.runs.messages import answer_type
from perdure.client.runs.namespace import Runs
from perdure.client.runs.reopen import ForkOptions
from perdure.core.codec.snapshot import snapshot
from perdure.core.ids import check_id, check_name, uuid7
from perdure.core.model.outputs import Interruption, StreamItem, check_stream, is_wanted_state, unreached_state
from perdure.core.model.reports import RunReport
from perdure.core.model.run import Run
from perdure.core.model.set_aside_messages import SetAsideMessage
from perdure.core.option_checks import check_whole
from perdure.core.printed_text import brief
from perdure.core.run_log import LoggedLine, check_log_page
from perdure.core.time.duration import Duration, seconds
from perdure.errors import RunCancelled, RunFailed, StoreUnavailable, UsageError
from perdure.workflow.channels import Question

R_co = TypeVar("R_co", covariant=True)

#: Items of one page of a stream.
_PAGE = 500
#: Seconds before a broken stream is opened again: at first, and at most.
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class RemoteHandle(Handle[R_co]):
    """A run of a server, by id."""

    _session: RemoteSession

    @property
    def _runs(self) -> Runs:
        from perdure.client.remote.namespaces import RemoteRuns

        return RemoteRuns(self._session)

    async def info(self) -> Run:
        return await self._session.find(self.id)

    async def report(self) -> RunReport:
        return value_of(RunReport, await self._read("/runs/{run_id}/report"))

    async def interruptions(self) -> tuple[Interruption, ...]:
        return tuple(restore_all(Interruption, members(await self._read("/runs/{run_id}/interruptions"))["items"]))

    async def logs(self, *, after: int | None = None, limit: int = 100) -> builtins.list[LoggedLine]:
        last, most = check_log_page(after, limit)
        query = {"after": None if last < 0 else last, "limit": most}
        page = await self._session.call("GET", "/runs/{run_id}/logs", query=query, run_id=check_id(self.id))
        return restore_all(LoggedLine, members(page)["items"])

    async def set_aside_messages(self) -> builtins.list[SetAsideMessage]:
        found = elements(members(await self._read("/runs/{run_id}/set-aside"))["items"])
        return [value_of(SetAsideMessage, one, payload=text_of(members(one)["value"]) or "null") for one in found]

    async def deliver_again(self, number: int, value: object = ...) -> None:
        what = f"message {brief(number)} to run {self.id!r}"
        body = {} if value is ... else {"value": msgspec.Raw(self._session.codec.encode(value, what).encode())}
        await self._decide("deliver", number, body)

    async def drop_message(self, number: int) -> None:
        await self._decide("drop", number, None)

    async def _decide(self, verb: str, number: int, body: object) -> None:
        if check_whole("number", number, 0) >= 2**63:
            raise UsageError(f"number={brief(number)}: there is no such message; list them with set_aside_messages()")
        path = f"/runs/{{run_id}}/set-aside/{number}/{verb}"
        await self._session.order(path, body, run_id=check_id(self.id))

    def ask(  # pyright: ignore[reportIncompatibleMethodOverride] - the value is copied before the wait
        self,
        question: Question[Any, Any] | str,
        value: object = None,
        *,
        returns: Any = Any,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Coroutine[Any, Any, Any]:
        return self._ask(question, snapshot(value), returns, key, timeout)

    async def _ask(
        self, question: Question[Any, Any] | str, value: object, returns: Any, key: str | None, timeout: Duration | None
    ) -> Any:
        if timeout is not None:
            seconds(timeout)
        session = self._session
        name, kind = answer_type(question, returns)
        declared = question.type if isinstance(question, Question) else Any
        body = {
            "name": name,
            "value": msgspec.Raw(
                session.codec.encode(value, f"question {name!r} to run {self.id!r}", declared).encode()
            ),
            # One key for all requests, so that the workflow sees one question.
            "key": session.system.entropy(16).hex() if key is None else check_id(key, "key of a question"),
            "wait": LONG_POLL,
        }
        try:
            answer = await session.results.explainer.wait(
                self.id,
                lambda: self._answered(body),
                f"perdure ask {self.id}",
                timeout,
                f"run {self.id!r} did not answer {name!r}",
            )
        except (RunFailed, RunCancelled):
            # The outcome has the error itself.
            await self.result()
            raise
        found = members(answer)
        if (error := text_of(found.get("error"))) is not None:
            raise session.errors.restore(failure_of(error.encode()), run_id=self.id)
        return session.codec.decode(text_of(found["answer"]) or "null", kind, f"answer of run {self.id!r} to {name!r}")

    async def _answered(self, body: object) -> bytes:
        while True:
            answer = await self._session.call(
                "POST", "/runs/{run_id}/questions", body, wait=LONG_POLL, run_id=check_id(self.id)
            )
            if decoded(answer, "answered"):
                return answer

    async def state(self, key: str, type: Any = Any, *, default: Any = None) -> Any:
        key = check_name(key, "key of a state")
        answer = await self._session.call("GET", "/runs/{run_id}/states/{key}", run_id=check_id(self.id), key=key)
        if not decoded(answer, "published"):
            return default
        return self._decoded(members(answer)["value"], type, f"state {key!r}")

    async def wait_state(
        self, key: str, wanted: Any = UNSET, type: Any = Any, *, timeout: Duration | None = None
    ) -> Any:
        name = check_name(key, "key of a state")
        if timeout is not None:
            seconds(timeout)
        return await self._session.results.explainer.wait(
            self.id,
            lambda: self._wait_state(name, wanted, type),
            f"perdure state {self.id}",
            timeout,
            f"run {self.id!r} did not publish the awaited {name!r}",
        )

    async def _wait_state(self, name: str, wanted: Any, type: Any) -> Any:
        seen, wait = 0, 0.0
        while True:
            answer = await self._session.call(
                "GET",
                "/runs/{run_id}/states/{key}",
                query={"wait": wait, "seen": seen},
                wait=wait,
                run_id=check_id(self.id),
                key=name,
            )
            at, wait = decoded(answer, "at"), LONG_POLL
            if decoded(answer, "published") and at != seen:
                value = self._decoded(members(answer)["value"], type, f"state {name!r}")
                if is_wanted_state(wanted, value):
                    return value
                seen = at
            if decoded(answer, "finished"):
                raise unreached_state(self.id, name)

    async def states(self) -> dict[str, Any]:
        found = members(await self._read("/runs/{run_id}/states"))
        return {key: self._decoded(value, Any, f"state {key!r}") for key, value in found.items()}

    async def stream(
        self, name: str, type: Any = Any, *, after: int | None = None, follow: bool = True
    ) -> AsyncGenerator[StreamItem[Any]]:
        last = check_stream(name, after)
        if follow:
            async for one in self._followed(name, last):
                yield self._item(name, type, one.data)
            return
        while True:
            query = {"cursor": None if last < 0 else last, "limit": _PAGE}
            page = await self._session.call(
                "GET", "/runs/{run_id}/streams/{name}", query=query, run_id=check_id(self.id), name=name
            )
            for found in elements(members(page)["items"]):
                item = self._item(name, type, bytes(found))
                last = item.position
                yield item
            if decoded(page, "cursor") is None:
                return

    async def _followed(self, name: str, last: int) -> AsyncIterator[ReceivedEvent]:
        """Items of a stream until the run ends. A stream that breaks is opened again after the last item."""
        system, path = self._session.system, path_of("/runs/{id}/streams/{name}/live", id=check_id(self.id), name=name)
        lost, pause = 0.0, _FIRST_PAUSE
        while True:
            transport = await self._session.transport()
            try:
                async with transport.events(path, None if last < 0 else last) as events:
                    async for one in events:
                        lost, pause = 0.0, _FIRST_PAUSE
                        if one.event == "end":
                            return
                        if one.event == "problem":
                            raise transport.rebuilt(503, one.data)
                        last = int(one.id)
                        yield one
            except StoreUnavailable:
                lost = lost or system.monotonic()
                if system.monotonic() - lost >= transport.bound:
                    raise
            await system.sleep(pause * (0.5 + system.random() / 2))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def fork(self, **options: Unpack[ForkOptions]) -> Handle[R_co]:
        system = self._session.system
        body = fork_body(self._session, options)
        body.setdefault("id", uuid7(system.now(), system.entropy(10)))
        run = value_of(Run, await self._session.call("POST", "/runs/{run_id}/fork", body, run_id=check_id(self.id)))
        return RemoteHandle(self._session, run.id, self._returns)

    def _item(self, name: str, type: Any, data: bytes) -> StreamItem[Any]:
        found = members(data)
        value = self._decoded(found["value"], type, f"stream {name!r}")
        return StreamItem(decoded(data, "position", int), value, decoded(data, "source", str))

    def _decoded(self, value: msgspec.Raw, type: Any, what: str) -> Any:
        return self._session.codec.decode(bytes(value).decode(), type, f"{what} of run {self.id!r}")

    async def _read(self, template: str) -> bytes:
        return await self._session.call("GET", template, run_id=check_id(self.id))
