"""Runs that are executed because a queue, a web hook or a timer says so: messages, their handler, and ways in.

A `Pusher` executes single runs. A `QueueHandler` does so for batches of messages, which come from Redis (`RedisQueue`),
over HTTP (`PushApp`) or from any broker. A `PushApp` also takes webhooks of other systems (`GitHub`, `Stripe`,
`StandardWebhooks`), which start runs and send messages.
"""

from perdure.client.pusher import Pusher
from perdure.core.model.claim import ExecutionResult, ExecutionState
from perdure.push.announcer import Announcer
from perdure.push.handler import QueueHandler
from perdure.push.http import PushApp
from perdure.push.incoming_webhooks import GitHub, IncomingEvent, Send, StandardWebhooks, Start, Stripe, WebhookSource
from perdure.push.message import Delivery, MessageOutcome, MessageResult, QueueMessage
from perdure.push.redis import RedisQueue
from perdure.push.signature import SigningKeys

__all__ = [
    "Announcer",
    "Delivery",
    "ExecutionResult",
    "ExecutionState",
    "GitHub",
    "IncomingEvent",
    "MessageOutcome",
    "MessageResult",
    "PushApp",
    "Pusher",
    "QueueHandler",
    "QueueMessage",
    "RedisQueue",
    "Send",
    "SigningKeys",
    "StandardWebhooks",
    "Start",
    "Stripe",
    "WebhookSource",
]
