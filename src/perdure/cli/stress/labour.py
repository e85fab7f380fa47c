"""The engine of a worker process under stress."""

from __future__ import annotations

import os

import msgspec

from perdure.cli.stress.load import ENVIRONMENT, Load, engine_of

engine = engine_of(msgspec.json.decode(os.environ[ENVIRONMENT], type=Load))
