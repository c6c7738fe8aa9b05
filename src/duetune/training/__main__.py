"""``python -m duetune.training``: see ``duetune.training.worker``."""

from __future__ import annotations

import os
import sys

from duetune.training.worker import main

if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: connections to members that hang would be waited for.
    os._exit(status)
