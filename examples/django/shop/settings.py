"""Settings of the shop. DATABASE_URL names a PostgreSQL server; the default is a file."""

import os
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = Path(__file__).parent.parent
SERVER = urlsplit(os.environ.get("DATABASE_URL", ""))

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": SERVER.path[1:],
        "USER": SERVER.username,
        "PASSWORD": SERVER.password,
        "HOST": SERVER.hostname,
        "PORT": SERVER.port,
        "OPTIONS": {"application_name": "shop-django"},
    }
    if SERVER.scheme
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "shop.db",
        # The second option is only for SQLite before 3.51.3: Perdure alone writes checkpoints.
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA wal_autocheckpoint = 0"},
        "TEST": {"NAME": FOLDER / "test.db"},
    }
}
PERDURE = {"DASHBOARD": os.environ.get("DASHBOARD", "http://127.0.0.1:8470/")}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "perdure.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "shop.urls"
LOGIN_URL = "/admin/login/"
SECRET_KEY = "an example"  # noqa: S105 - an example
DEBUG = True
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
