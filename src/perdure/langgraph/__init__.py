"""Perdure for graphs of LangGraph: a checkpointer on an engine's database, and graphs whose nodes are steps.

It needs the extra `langgraph`.
"""

from perdure.langgraph.checkpointer import PerdureSaver
from perdure.langgraph.graphs import DurableGraph, GraphQuestion, task

__all__ = ["DurableGraph", "GraphQuestion", "PerdureSaver", "task"]
