"""A handler of a state machine asks the carrier itself instead of starting an activity."""

import json
from urllib import request

from perdure import Channel, activity
from perdure.machine import Actions, StateMachine
from perdure.testing import Environment

scanned = Channel("scanned", str)
CARRIER = "http://127.0.0.1:9/parcels/"


@activity("samples.label.v1", start_to_close="30s")
async def print_label(parcel: str) -> str:
    return f"label {parcel}"


class Shipment(StateMachine[str, str], type="samples.shipment.v1"):
    messages = (scanned,)

    def on_start(self, input: str) -> Actions:
        self.parcel = input
        return [self.activity("label", print_label(input)), self.timer("lost", "30d")]

    def on_message(self, name: str, value: str) -> Actions:
        if self._where() == "delivered":
            return self.complete(f"{self.parcel} delivered")
        return self.publish("place", value)

    def on_timer(self, id: str) -> Actions:
        return self.fail(TimeoutError(f"{self.parcel} is lost"))

    def _where(self) -> str:
        with request.urlopen(CARRIER + self.parcel, timeout=5) as answer:  # mistake
            return str(json.load(answer)["state"])


WORKFLOWS = [Shipment, print_label]


async def drive(env: Environment) -> object:
    run = await env.start(Shipment.call("p-1"))
    await env.send(run, "scanned", "Basel")
    return await run.result()
