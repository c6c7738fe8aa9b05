"""``python -m duetune.training`` runs one member of a job; see ``duetune.training.worker``."""

from __future__ import annotations

import os
import sys
import traceback

from duetune.training.worker import main

if __name__ == "__main__":
    status = 1
    try:
        status = main()
    except Exception:  # noqa: BLE001 - the last resort before the process ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit, which would wait for connections to members that hang.
        os._exit(status)
