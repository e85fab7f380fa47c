from __future__ import annotations

import asyncio

import pytest

from perdure.cli.console.target import load_engine
from perdure.client.runs.namespace import Runs
from perdure.errors import StoreUnavailable
from tests.cli.conftest import URL, Answer, Perdure, work

ORDER = '{"order": {"id": "o-1", "cents": 7}}'


def test_a_run_is_started_and_its_document_says_so(perdure: Perdure) -> None:
    answer = perdure("start", "shop:engine", "checkout", "--input", ORDER, "--id", "o-1", "--json")
    assert answer.code == 0
    assert answer.json["id"] == "o-1"
    assert answer.json["type"] == "checkout"
    assert answer.json["status"] == "pending"
    assert answer.json["input"] == {"order": {"id": "o-1", "cents": 7}, "note": ""}


def test_the_options_reach_the_run(perdure: Perdure) -> None:
    answer = perdure(
        "start", "shop:engine", "approval", "--id", "a", "--at", "1h", "--priority", "7", "--queue", "slow",
        "--deadline", "2099-01-01T00:00Z", "--idempotency-key", "k", "--json",
    )  # fmt: skip
    run = answer.json
    assert (run["priority"], run["queue"], run["idempotency_key"]) == (7, "slow", "k")
    assert run["deadline"] == "2099-01-01T00:00:00.000000Z"
    assert (run["status"], run["reason"]) == ("waiting", "timer")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--input", '{"order": {"id": "o", "cents": 1}, "note": "7"}'),
        ("--input", '[{"id": "o", "cents": 1}, "7"]'),
        ("--arg", 'order={"id": "o", "cents": 1}', "--arg", "note=7"),
        ("--input", '{"order": {"id": "o", "cents": 1}}', "--arg", "note=7"),
    ],
    ids=["object", "array", "pairs", "both"],
)
def test_arguments_are_given_in_any_of_three_forms(perdure: Perdure, arguments: tuple[str, ...]) -> None:
    answer = perdure("start", "shop:engine", "checkout", *arguments, "--json")
    assert answer.json["input"] == {"order": {"id": "o", "cents": 1}, "note": "7"}


def test_the_same_id_and_input_is_the_same_run(perdure: Perdure) -> None:
    first = perdure("start", "shop:engine", "checkout", "--input", ORDER, "--id", "o-1", "--json")
    second = perdure("start", "shop:engine", "checkout", "--input", ORDER, "--id", "o-1", "--json")
    assert first.json == second.json


def test_the_same_id_with_another_input_is_refused(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "checkout", "--input", ORDER, "--id", "o-1")
    answer = perdure("start", "shop:engine", "approval", "--id", "o-1")
    assert answer.code == 1
    assert answer.err.startswith("perdure: run 'o-1' exists with type 'checkout'")


def test_an_unknown_workflow_is_refused_with_the_known_ones(perdure: Perdure) -> None:
    answer = perdure("start", "shop:engine", "chekout", "--json")
    assert answer.code == 1
    assert answer.out == ""
    assert '"UnknownWorkflow"' in answer.err
    assert "approval, checkout, doomed, family" in answer.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--input", '{"order": {"id": "o"}}'), "missing required field `cents`"),
        (("--input", '{"order": {"id": "o", "cents": "many"}}'), "Expected `int`, got `str`"),
        (("--input", '{"order": {"id": "o", "cents": 1}, "oder": 1}'), "unexpected keyword argument 'oder'"),
        (("--input", "[]"), "missing a required argument: 'order'"),
        (("--input", "[1, 2, 3]"), "too many positional arguments"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(perdure: Perdure, arguments: tuple[str, ...], complaint: str) -> None:
    answer = perdure("start", "shop:engine", "checkout", *arguments)
    assert answer.code == 1
    assert complaint in answer.err
    assert "Traceback" not in answer.err
    assert perdure("runs", "shop:engine", "--json").json["runs"] == []


def test_a_database_needs_no_code_to_start_a_run(perdure: Perdure) -> None:
    answer = perdure("start", URL, "checkout", "--input", ORDER, "--id", "o-1")
    assert (answer.code, answer.out) == (0, "o-1  pending\n")
    work("o-1")
    assert perdure("show", URL, "o-1", "--json").json["run"]["output"] == "paid 7"


def test_waiting_gives_the_outcome(perdure: Perdure) -> None:
    perdure("start", URL, "checkout", "--input", ORDER, "--id", "o-1")
    work("o-1")
    answer = perdure("start", URL, "checkout", "--input", ORDER, "--id", "o-1", "--wait", "--json")
    assert answer.code == 0
    assert answer.json["output"] == "paid 7"


def test_waiting_for_a_run_that_fails_fails(perdure: Perdure) -> None:
    order = '[{"id": "o", "cents": -1}]'
    perdure("start", "shop:engine", "checkout", "--input", order, "--id", "bad")
    work("bad")
    answer = perdure("start", "shop:engine", "checkout", "--input", order, "--id", "bad", "--wait", "--json")
    assert answer.code == 1
    assert answer.json["status"] == "failed"
    assert answer.json["error"]["message"] == "nothing to charge"
    assert '"RunFailed"' in answer.err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--input", "{"), "is not JSON"),
        (("--input", "7"), "give a JSON object or array"),
        (("--input", "[1]", "--arg", "a=1"), "all by name"),
        (("--arg", "nothing"), "is not a NAME=VALUE"),
        (("--arg", "a=1", "--arg", "a=2"), "repeats a name"),
        (("--at", "tomorrow"), "neither a duration"),
        (("--at", "2030-01-01T00:00"), "no offset from UTC"),
        (("--priority", "high"), "not a valid integer"),
    ],
)
def test_a_bad_option_is_a_misuse(perdure: Perdure, arguments: tuple[str, ...], complaint: str) -> None:
    answer = perdure("start", URL, "checkout", *arguments)
    assert answer.code == 2
    assert complaint in answer.err


def test_a_singleton_is_started_once_and_starts_are_put_off(perdure: Perdure) -> None:
    assert perdure("start", "shop:engine", "approval", "--id", "a", "--singleton", "k").code == 0
    refused = perdure("start", "shop:engine", "approval", "--singleton", "k")
    assert refused.code == 1
    assert "'a'" in refused.err
    attached = perdure("start", "shop:engine", "approval", "--singleton", "k", "--policy", "attach", "--json")
    assert attached.json["id"] == "a"
    waiting = perdure("start", "shop:engine", "approval", "--singleton", "k", "--policy", "queue", "--json").json
    assert waiting["reason"] == "limit"
    assert "waits for its turn" in perdure("why", URL, waiting["id"]).out
    ids = {perdure("start", "shop:engine", "approval", "--debounce", "1h", "--json").json["id"] for _ in range(2)}
    assert len(ids) == 1


def test_a_type_that_no_live_worker_serves_is_told_of_on_standard_error(perdure: Perdure) -> None:
    async def scene() -> tuple[Answer, Answer, Answer]:
        def call(*arguments: str) -> Answer:
            return perdure("start", URL, *arguments)

        engine = load_engine("shop:engine")
        async with engine, engine.worker():
            wrong = await asyncio.to_thread(call, "aproval", "--id", "wrong")
            document = await asyncio.to_thread(call, "aproval", "--id", "wrong", "--json")
            return wrong, document, await asyncio.to_thread(call, "approval", "--id", "right")

    perdure("migrate", URL)
    wrong, document, right = asyncio.run(scene())
    assert (wrong.code, wrong.out) == (0, "wrong  pending\n")
    assert "It is ready, but none of the 1 live worker(s) serves the type 'aproval'" in wrong.err
    assert "Did you mean 'approval'?" in wrong.err
    assert (document.json["status"], document.err) == ("pending", "")
    assert right.err == ""


def test_an_error_of_the_question_who_serves_a_type_does_not_fail_the_start(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unserved(self: Runs, runs: object) -> set[str]:
        raise StoreUnavailable("away")

    monkeypatch.setattr(Runs, "unserved", unserved)
    answer = perdure("start", URL, "checkout", "--id", "o-1")
    assert (answer.code, answer.out, answer.err) == (0, "o-1  pending\n", "")
