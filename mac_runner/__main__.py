"""`python -m mac_runner`: the command line where the console script is not on the path."""

from __future__ import annotations

from mac_runner.cli import main

if __name__ == "__main__":
    main()
