"""The shop with its dashboard for ASGI servers: `DASHBOARD=/perdure/ uvicorn shop.asgi:application`."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django = get_asgi_application()

from perdure.django.asgi import mount_dashboard  # noqa: E402 - it needs the apps

application = mount_dashboard(django)
