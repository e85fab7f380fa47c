"""Events for other systems: CloudEvents that workers deliver to functions and to webhooks.

`Engine(url, [...], outbox=[Webhook(...), Subscription(...)])` says which events go where. Workflows publish with
`ctx.publish_event`, other code with `engine.outbox.publish`.
"""

from perdure.client.outbox import Outbox, Subscription
from perdure.core.model.cloud_event import CloudEvent, CloudEventPage, PublishedEvent
from perdure.push.outgoing_webhooks import Webhook

__all__ = ["CloudEvent", "CloudEventPage", "Outbox", "PublishedEvent", "Subscription", "Webhook"]
