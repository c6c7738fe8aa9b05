"""Run the program as ``python -m duetune.cli``, as the background processes do."""

import sys

from duetune.cli.app import main

sys.exit(main())
