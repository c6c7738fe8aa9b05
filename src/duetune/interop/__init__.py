"""Files of other tools, in and out: job files, exported jobs, and runs that others measured."""
