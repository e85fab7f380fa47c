"""Another process that replays what this one recorded, with another hash seed and other addresses.

Run as a module, it answers each line, a recording, with the problems of its replay as JSON; an empty answer means none.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import msgspec

from tests.replay.recording import Recording, verify

ROOT = Path(__file__).parents[2]


class Replica:
    """A long-lived process that verifies recordings."""

    def __init__(self, hash_seed: int, python: str = sys.executable) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "tests.replay.replica"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def verify(self, recording: Recording) -> str:
        """Return the problems of a replay in that process; empty if there are none."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(recording).decode() + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, "the replica has died"
        said = json.loads(answer)
        assert isinstance(said, str)
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


def main() -> None:
    """Answer until the input ends."""
    logging.disable(logging.CRITICAL)
    decoder = msgspec.json.Decoder(Recording)
    for line in sys.stdin:
        try:
            answer = verify(decoder.decode(line))
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
