"""Perdure in applications of FastAPI: the life of an engine, the engine as a dependency, and streams of runs.

It needs the extra `perdure[fastapi]`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from perdure.client.engine import Engine
from perdure.starlette import engine_lifespan, get_engine, stream_response

__all__ = ["CurrentEngine", "engine_lifespan", "get_engine", "stream_response"]

#: The engine of the application, as the type of an endpoint's parameter: `engine: CurrentEngine`.
CurrentEngine = Annotated[Engine, Depends(get_engine)]
