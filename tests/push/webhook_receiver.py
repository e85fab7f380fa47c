"""A program that receives webhooks: `python -m tests.push.webhook_receiver <file> <pause>` prints its port.

Each request that it accepts is a line of the file, written before the answer. The first event of a run takes the
longest, so that events of one key that are under way together arrive in the wrong order.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def serve(path: Path, pause: float) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            time.sleep(pause / (1 + json.loads(body)["data"]["index"]) ** 2)
            received = {"headers": {name.lower(): value for name, value in self.headers.items()}, "body": body.decode()}
            with path.open("a") as file:
                file.write(json.dumps(received) + "\n")
            self.send_response(204)
            self.end_headers()

        def log_request(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), float(sys.argv[2]))
