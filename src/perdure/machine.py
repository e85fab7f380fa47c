"""State machines: workflows of handlers that return what is to be done next."""

from perdure.workflow.machine.runner import Action, Actions
from perdure.workflow.machine.state_machine import StateMachine

__all__ = [
    "Action",
    "Actions",
    "StateMachine",
]
