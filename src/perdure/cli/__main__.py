"""Entry point of `python -m perdure.cli`."""

from __future__ import annotations

from perdure.cli.app import main

if __name__ == "__main__":
    main()
