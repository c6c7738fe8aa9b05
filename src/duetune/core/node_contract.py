"""What a node and the process it runs have agreed on: variables, files in the job's folder, exit
statuses. ``docs/how-to/own-command.md`` tells it to users.
"""

from __future__ import annotations

JOB_ID = "DUETUNE_JOB_ID"
NODE_ID = "DUETUNE_NODE_ID"
EPOCH = "DUETUNE_EPOCH"
JOB_DIR = "DUETUNE_JOB_DIR"
CHECKPOINT_DIR = "DUETUNE_CHECKPOINT_DIR"
CHECKPOINT_KEEP = "DUETUNE_CHECKPOINT_KEEP"
OUTPUT_DIR = "DUETUNE_OUTPUT_DIR"
PROGRESS_FILE = "DUETUNE_PROGRESS_FILE"
PROGRESS_URL = "DUETUNE_PROGRESS_URL"
NOTICE_FILE = "DUETUNE_NOTICE_FILE"
NOTICE_URL = "DUETUNE_NOTICE_URL"
HAZARD_FILE = "DUETUNE_HAZARD_FILE"
LIGHTHOUSE = "DUETUNE_LIGHTHOUSE"

CHECKPOINTS = "checkpoints"
OUTPUT = "output"
PROGRESS = "progress.json"
HAZARD = "hazard.json"
LOGS = "logs"

DONE = 0
"""Training is complete, and its last report says so."""
LEFT = 75
"""Left cleanly because the node will be taken (EX_TEMPFAIL): go on elsewhere."""
HOPELESS = 78
"""Will never work, however often it is tried (EX_CONFIG): do not start it again."""
