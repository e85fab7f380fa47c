"""The engine of a worker process under stress."""

from __future__ import annotations

import os

from perdure.cli.stress.load import ENVIRONMENT, Load, engine_of
from perdure.core.codec.decoders import decoder_for

engine = engine_of(decoder_for(Load).decode(os.environ[ENVIRONMENT]))
