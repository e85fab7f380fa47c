"""The form that starts a run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import httpx
import msgspec
import pydantic
import pytest

from perdure import Engine
from perdure.core.model.run import Status
from perdure.dashboard.start_form import example
from tests.dashboard.conftest import Shop
from tests.dashboard.html import Page
from tests.dashboard.shop import browsing
from tests.helpers import eventually

FORM = "/workflows/shop.reminder.v1/start"


async def fields_of(client: httpx.AsyncClient, path: str) -> dict[str, str]:
    """The fields of a form as a browser would send them."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    found = {one["name"]: one.get("value", "") for one in page.all("input") if "name" in one}
    body = answer.text.partition('name="input"')[2].partition(">")[2].partition("</textarea>")[0]
    found["input"] = body.replace("&#34;", '"')
    return found


async def test_the_page_of_workflows_leads_to_the_form_of_each_type(shop: Shop) -> None:
    page = Page((await shop.client.get("/workflows")).text)
    assert FORM in [*page.links()]
    async with browsing(shop.engine, role="viewer") as client:
        assert FORM not in [*Page((await client.get("/workflows")).text).links()]
        assert (await client.get(FORM)).status_code == 403
        assert (await client.post(FORM, data={})).status_code == 403


async def test_the_input_is_a_template_of_the_parameters(shop: Shop) -> None:
    checkout = await fields_of(shop.client, "/workflows/shop.checkout.v1/start")
    assert json.loads(checkout["input"]) == {"order": {"id": "", "cents": 0, "note": ""}}
    assert json.loads((await fields_of(shop.client, FORM))["input"]) == {"days": 0}


async def test_a_server_without_the_code_offers_the_names_of_the_latest_run(shop: Shop) -> None:
    async with Engine(shop.engine.url) as engine, browsing(engine) as client:
        checkout = await fields_of(client, "/workflows/shop.checkout.v1/start")
        assert json.loads(checkout["input"]) == {"order": None}
        assert json.loads((await fields_of(client, "/workflows/nothing.v1/start"))["input"]) == {}


async def test_a_run_that_is_started_is_shown_and_named_in_the_audit_trail(shop: Shop) -> None:
    fields = await fields_of(shop.client, FORM)
    answer = await shop.client.post(FORM, data={**fields, "input": '{"days": 3}', "id": "from-page"})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith("/runs/from-page?done=")
    run = await shop.engine.get("from-page")
    assert (await run.events())[0].actor == "anonymous"

    async def waits() -> bool:
        return (await run.info()).status is Status.WAITING

    await eventually(waits)
    assert (await shop.client.get(answer.headers["location"])).status_code == 200


async def test_the_same_form_sent_twice_starts_one_run(shop: Shop) -> None:
    fields = {**await fields_of(shop.client, FORM), "input": "[4]"}
    first, second = [await shop.client.post(FORM, data=fields) for _ in range(2)]
    assert (first.status_code, first.headers["location"]) == (303, second.headers["location"])
    other = await shop.client.post(FORM, data={**await fields_of(shop.client, FORM), "input": "[4]"})
    assert other.headers["location"] != first.headers["location"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"input": "{"}, "input is not JSON"),
        ({"input": "7"}, "the input is a JSON object of arguments by name"),
        ({"input": '{"days": "soon"}'}, "days"),
        ({"input": '{"weeks": 1}'}, "weeks"),
        ({"input": '{"days": 1}', "id": "order-41"}, "order-41"),
    ],
)
async def test_what_cannot_be_started_is_said_on_the_form(shop: Shop, change: dict[str, str], reason: str) -> None:
    before = (await shop.engine.runs.count()).count
    answer = await shop.client.post(FORM, data={**await fields_of(shop.client, FORM), **change})
    page = Page(answer.text)
    assert (answer.status_code, reason in page.text) == (422, True), page.text
    # The person's input is still there.
    assert change["input"] in page.text
    assert (await shop.engine.runs.count()).count == before


async def test_an_unknown_type_and_a_form_without_its_token_start_nothing(shop: Shop) -> None:
    fields = await fields_of(shop.client, "/workflows/chekout/start")
    answer = await shop.client.post("/workflows/chekout/start", data=fields)
    assert (answer.status_code, "has no workflow" in Page(answer.text).text) == (422, True)
    assert (await shop.client.post(FORM, data={"input": "[1]"})).status_code == 403


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    sku: str
    count: int = 1
    tags: list[str] = field(default_factory=list)


class Address(TypedDict):
    city: str


class Customer(pydantic.BaseModel):
    name: str
    age: int | None


class Item(msgspec.Struct, rename="camel"):
    unit_price: float
    line: Line


class Node(msgspec.Struct):
    inner: Node | str


class Opaque:
    pass


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (str, ""),
        (int, 0),
        (Annotated[int, msgspec.Meta(ge=3)], 0),
        (float, 0.0),
        (bool, False),
        (list[int], []),
        (dict[str, int], {}),
        (set[str], []),
        (tuple[int, ...], []),
        (int | None, None),
        (int | str, 0),
        (Colour, "red"),
        (Literal["a", "b"], "a"),
        (Line, {"sku": "", "count": 1, "tags": []}),
        (Address, {"city": ""}),
        (Customer, {"name": "", "age": None}),
        (Item, {"unitPrice": 0.0, "line": {"sku": "", "count": 1, "tags": []}}),
        (Opaque, None),
        (Any, None),
        ("nonsense", None),
    ],
)
def test_an_example_has_the_shape_of_its_type(declared: Any, expected: object) -> None:
    assert example(declared) == expected


def test_the_example_of_a_type_within_itself_ends() -> None:
    assert json.dumps(example(Node)).count("inner") <= 5
