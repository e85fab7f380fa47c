"""Assignment of customers to the arms of an experiment; written for the website, used by the workflow, too."""

from dataclasses import dataclass
from random import random as draw


@dataclass(frozen=True)
class Arm:
    name: str
    share: float


ARMS = (Arm("control", 0.5), Arm("treatment", 0.5))


def assign(arms: tuple[Arm, ...] = ARMS) -> Arm:
    point = draw()  # mistake
    for arm in arms:
        point -= arm.share
        if point < 0:
            return arm
    return arms[-1]


def is_treated(arm: Arm) -> bool:
    return arm.name != "control"
