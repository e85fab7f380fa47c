"""Settings for `gunicorn shop:app`: the engine of each process connects when it is first used."""

bind = "127.0.0.1:8000"
workers = 4
# The code is loaded once. The engine survives the fork: each process opens connections of its own.
preload_app = True
graceful_timeout = 30
# For an application with async views, such as one of FastAPI, add:
# worker_class = "uvicorn_worker.UvicornWorker"
