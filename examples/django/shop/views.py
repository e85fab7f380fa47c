"""Requests of the shop."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_http_methods

from perdure.django import engine, send, start, start_on_commit
from shop.models import Order
from shop.workflows import greet, order


@require_http_methods(["PUT"])
def put_order(request: HttpRequest, number: int) -> HttpResponse:
    article = request.GET.get("article", "")
    try:
        with transaction.atomic():
            # A repeated request finds the row and the runs.
            known, _ = Order.objects.get_or_create(number=number, defaults={"article": article})
            if known.article != article:
                return HttpResponse("the order exists with another article", status=409)
            run = start(order(number), id=f"order-{number}")
            start_on_commit(greet(f"buyer of {article}"), id=f"greet-{number}")
            if not article:
                raise ValueError("an order needs an article")  # neither the order nor the runs remain
    except ValueError as error:
        return HttpResponse(str(error), status=422)
    return JsonResponse({"run": run.id})


@require_http_methods(["POST"])
def pay(request: HttpRequest, number: int) -> HttpResponse:
    send(f"order-{number}", "paid", int(request.GET["cents"]), key="payment")
    return HttpResponse(engine().get(f"order-{number}", order).result(timeout="60s"))


def stage(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(engine().get(f"order-{number}").wait_state("stage", type=str, timeout="60s"))


def greeting(request: HttpRequest, number: int) -> HttpResponse:
    return HttpResponse(engine().get(f"greet-{number}", greet).result(timeout="60s"))
