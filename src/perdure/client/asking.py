"""Asking a run: a message that the workflow answers, and the wait for the answer.

The answer is kept under the key of the question. So whoever asks again with the same key, after a crash of their own, gets the
answer that there is, and the workflow sees one question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.client.waiting import News
from perdure.core.duration import Duration, seconds
from perdure.core.effects import Output, OutputKind
from perdure.core.errors import RunFinished, RunNotFound
from perdure.core.failure import Failure
from perdure.core.ids import check_id, check_name
from perdure.core.model import NewMessage, SendOutcome, Status
from perdure.workflow.channels import Question, envelop, question_name

if TYPE_CHECKING:
    from perdure.client.engine import Engine
    from perdure.store.protocol import Store


async def ask(
    engine: Engine,
    run_id: str,
    question: Question[Any, Any] | str,
    value: object,
    *,
    returns: Any,
    key: str | None,
    timeout: Duration | None,
) -> Any:
    """Send a question and wait for its answer. Raises `RunNotFound`, `RunFinished`, or what ended the run meanwhile."""
    if timeout is not None:
        seconds(timeout)
    declared = question.type if isinstance(question, Question) else Any
    if isinstance(question, Question):
        name, kind = question.name, question.answer if returns is Any else returns
    else:
        name, kind = check_name(question, "name of a question"), returns
    key = engine._system.entropy(16).hex() if key is None else check_id(key, "key of a question")
    message = NewMessage(
        run_id=check_id(run_id),
        name=question_name(name),
        payload=envelop(key, value, engine._codec, f"question {name!r} to run {run_id!r}", declared),
        key=key,
    )
    store = await engine._opened()
    # It listens before it sends: a database that is replaced right after may lack the question.
    with News(store, engine._system) as news:
        outcome = await _put(engine, store, message, name)
        if outcome is SendOutcome.FINISHED:
            raise RunFinished(f"run {run_id!r} has finished and answers no more questions; {name!r} was not asked")
        answer = await engine._overdue.wait(
            run_id,
            lambda: _answer(engine, store, message, name, news),
            f"perdure ask {run_id}",
            timeout,
            f"run {run_id!r} did not answer {name!r}",
        )
    if answer.failed:
        raise engine._errors.restore(Failure.from_json(answer.payload), run_id=run_id)
    return engine._codec.decode(answer.payload, kind, f"answer of run {run_id!r} to {name!r}")


async def _put(engine: Engine, store: Store, message: NewMessage, name: str) -> SendOutcome:
    [outcome] = await store.send([message], engine._actor)
    if outcome is SendOutcome.UNKNOWN:
        raise RunNotFound(f"there is no run {message.run_id!r} to ask {name!r}")
    return outcome


async def _answer(engine: Engine, store: Store, message: NewMessage, name: str, news: News) -> Output:
    run_id, key = message.run_id, message.key
    while True:
        if news.replaced():
            # The question may be lost; its key makes it the same one if it is not.
            await _put(engine, store, message, name)
        # Looked at first: an answer that comes with the end is there when it has ended.
        run = await engine._run(run_id)
        answers = await store.outputs(run_id, OutputKind.REPLY, key, -1, 1)
        if answers:
            return answers[0]
        if run.status is Status.COMPLETED:
            raise RunFinished(f"run {run_id!r} finished without an answer to {name!r}")
        if run.status.finished:
            engine._outcome(run, Any)
        await news.arrive()
