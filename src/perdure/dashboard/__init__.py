"""The dashboard: pages for people, beside the HTTP API of `perdure.http`.

`perdure serve` serves both. To mount them in another application: `HttpApp(engine, pages=Dashboard())`. It needs the
extra `perdure[dashboard]`.
"""

from perdure.dashboard.site import Dashboard

__all__ = ["Dashboard"]
