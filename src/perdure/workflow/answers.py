"""Answers to questions by a handler: `ctx.answer(question, handler, validate=...)`.

The validator sees a question before anything is recorded, outside of the run's loop: a question that it refuses leaves
no trace in the history. Replay takes recorded questions as valid. The handler is workflow code. Its error is the answer
to the question, and the run goes on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.core.ids import check_name
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.printed_text import brief
from perdure.errors import BadArguments, QuestionRefused
from perdure.workflow.channels import Envelope, Question, question_name
from perdure.workflow.runtime import ExpectedMessage
from perdure.workflow.scopes import begin_in, current_scope, inside

if TYPE_CHECKING:
    from perdure.workflow.runtime import Runtime


class QuestionType:
    """Name of a question, type of its value, and type of its answer, from a `Question` or from a name."""

    __slots__ = ("answer", "expected", "name")

    def __init__(self, question: Question[Any, Any] | str, type: Any) -> None:
        if isinstance(question, Question):
            self.name, kind, self.answer = question.name, question.type, question.answer
        else:
            self.name, kind, self.answer = check_name(question, "name of a question"), type, Any
        envelope: Any = Envelope
        #: The message that carries the question.
        self.expected = ExpectedMessage(question_name(self.name), envelope[kind])


class Replies:
    """Replies to one question. The first one counts."""

    __slots__ = ("_key", "_question", "_runtime")

    def __init__(self, runtime: Runtime, question: QuestionType, key: str) -> None:
        self._runtime = runtime
        self._question = question
        self._key = key

    def reply(self, answer: object) -> None:
        """Answer the question. Raises `EncodeError`."""
        question = self._question
        self._put(self._runtime.encode(answer, f"answer to {question.name!r}", question.answer), failed=False)

    def fail(self, error: Exception) -> None:
        """Answer the question with an error."""
        if not isinstance(error, Exception):
            raise BadArguments(f"fail takes the exception that the asking side gets, not {brief(error)}")
        self._put(self._runtime.describe(error), failed=True)

    def _put(self, payload: str, *, failed: bool) -> None:
        output = NewOutput(
            kind=OutputKind.REPLY, name=self._key, payload=payload, failed=failed, key=f"reply:{self._key}"
        )  # fmt: skip
        self._runtime.effect("reply", lambda _: output)


class QuestionHandler:
    """Answers every question of one name, from now on until the run ends."""

    def __init__(
        self,
        runtime: Runtime,
        question: QuestionType,
        handler: Callable[[Any], Any],
        validate: Callable[[Any], object] | None,
    ) -> None:
        self._runtime = runtime
        self._question = question
        self._handler = handler
        self._validate = validate
        #: Whether the next question was there before the handler.
        self._is_early = True

    def listen(self) -> None:
        """Take the next question when it arrives."""
        receiving = self._runtime.receive([self._question.expected], None, named=False)
        # A question that was there before the handler was recorded before there was a validator. Later ones are valid,
        # also if another attempt takes in several at once that an earlier one had recorded.
        self._is_early = self._is_early and receiving.done()
        receiving.add_done_callback(partial(self._received, self._is_early))

    def _received(self, early: bool, receiving: asyncio.Future[Envelope[Any]]) -> None:
        if receiving.cancelled() or receiving.exception() is not None:
            return
        letter = receiving.result()
        # Each question has a scope, so that steps of handlers that overlap have locations of their own.
        scope = self._runtime.open_scope(self._question.name)
        replies = Replies(self._runtime, self._question, letter.key)
        with inside(scope):
            try:
                if early:
                    self._check(letter.value)
                answer = self._handler(letter.value)
                if not inspect.isawaitable(answer):
                    replies.reply(answer)
            except Exception as error:
                replies.fail(error)
            else:
                if inspect.isawaitable(answer):
                    begin_in(current_scope.get(), _await_answer(answer, replies))
        self.listen()

    def _check(self, value: object) -> None:
        if self._validate is not None:
            try:
                self._validate(value)
            except Exception as error:
                raise refused(self._runtime.run_id, self._question.name, error) from error


def refused(run_id: str, name: str, error: Exception) -> QuestionRefused:
    """Make the error that the asking side gets from a validator's error."""
    refusal = QuestionRefused(f"run {run_id!r} refuses the question {name!r}: {error}")
    refusal.__cause__ = error
    return refusal


async def _await_answer(answer: Awaitable[Any], replies: Replies) -> None:
    try:
        replies.reply(await answer)
    except Exception as error:
        replies.fail(error)


def check_callables(handler: object, validate: object) -> None:
    """Raise `BadArguments` unless a handler, and a validator if there is one, can be called."""
    if not callable(handler):
        raise BadArguments(f"answer takes a function that returns the answer, not {brief(handler)}")
    if validate is not None and (not callable(validate) or inspect.iscoroutinefunction(validate)):
        raise BadArguments(
            f"validate is a function that is not async and raises an error to refuse a question, not {brief(validate)}"
        )
