"""The engine of the project as a target of the command line: `perdure.django.target:engine`."""

from __future__ import annotations

from perdure.django.engines import make_engine

engine = make_engine()
