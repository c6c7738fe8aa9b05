"""``python -m duetune.cli``."""

import sys

from duetune.cli.app import main

sys.exit(main())
