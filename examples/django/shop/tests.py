"""Tests of the shop: `python manage.py test`, or `pytest --ds=shop.settings shop/tests.py` with pytest-django."""

from django.test import TestCase, TransactionTestCase

from perdure.django import engine
from shop.models import Order


class OrderTest(TransactionTestCase):
    """Requests commit, so a worker executes the runs that they start."""

    def test_a_paid_order_is_packed(self) -> None:
        with engine().worker():
            self.client.put("/orders/1?article=chair")
            answer = self.client.post("/orders/1/payment?cents=900")
        assert answer.content == b"parcel with chair for 900 cents"
        assert Order.objects.get(number=1).packed

    def test_a_test_finds_no_run_of_another(self) -> None:
        self.client.put("/orders/1?article=table")
        assert engine().get("order-1").status() == "pending"
        assert not Order.objects.get(number=1).packed


class RequestTest(TestCase):
    """The transaction around each test is rolled back, and with it the runs that it starts."""

    def test_an_order_needs_an_article(self) -> None:
        assert self.client.put("/orders/1").status_code == 422
        assert self.client.put("/orders/1?article=chair").json() == {"run": "order-1"}
