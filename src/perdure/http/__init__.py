"""The HTTP API: an ASGI application to run by `perdure serve`, or to mount in FastAPI, Starlette and others.

It needs the extra `perdure[dashboard]`.
"""

from perdure.core.redaction import Redaction
from perdure.http.access import Access, Principal, ProxyLogin
from perdure.http.app import HttpApp, SideBySide

__all__ = ["Access", "HttpApp", "Principal", "ProxyLogin", "Redaction", "SideBySide"]
