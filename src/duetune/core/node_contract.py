"""The contract between a node and the process it runs: variables, file names and exit statuses.

Files are in the job's folder. ``docs/how-to/own-command.md`` describes the contract for users.
"""

from __future__ import annotations

JOB_ID = "DUETUNE_JOB_ID"
NODE_ID = "DUETUNE_NODE_ID"
EPOCH = "DUETUNE_EPOCH"
GPUS = "DUETUNE_GPUS"
JOB_DIR = "DUETUNE_JOB_DIR"
GPUS_PER_NODE = "DUETUNE_GPUS_PER_NODE"
CHECKPOINT_DIR = "DUETUNE_CHECKPOINT_DIR"
CHECKPOINT_KEEP = "DUETUNE_CHECKPOINT_KEEP"
OUTPUT_DIR = "DUETUNE_OUTPUT_DIR"
PROGRESS_FILE = "DUETUNE_PROGRESS_FILE"
PROGRESS_URL = "DUETUNE_PROGRESS_URL"
NOTICE_FILE = "DUETUNE_NOTICE_FILE"
NOTICE_URL = "DUETUNE_NOTICE_URL"
HAZARD_FILE = "DUETUNE_HAZARD_FILE"
COORDINATOR_FILE = "DUETUNE_COORDINATOR_FILE"
JOB_SECRET = "DUETUNE_JOB_SECRET"  # noqa: S105 - the name of a variable
BIND = "DUETUNE_BIND"
"""The address of the network interface for all traffic of the group."""
ADVERTISE = "DUETUNE_ADVERTISE"
"""The host that the other members dial, where it is not ``BIND``."""
TLS = "DUETUNE_TLS"
"""1 if the connections of the group are encrypted."""
GROUP_TIMES = "DUETUNE_GROUP_"
QUORUM_TIMES = "DUETUNE_QUORUM_"
SEAT_TIMES = "DUETUNE_SEAT_"
"""First part of the variables that change one time of a group; the rest is the time's name."""

CHECKPOINTS = "checkpoints"
OUTPUT = "output"
PROGRESS = "progress.json"
HAZARD = "hazard.json"
LOGS = "logs"
COORDINATOR = "coordinator.address"
RENDEZVOUS = "rendezvous"

DONE = 0
"""Exit status: training is complete, and the last progress report says so."""
LEFT = 75
"""Exit status (EX_TEMPFAIL): the process left because its node will be taken; it can continue."""
HOPELESS = 78
"""Exit status (EX_CONFIG): the process can never work; it must not be started again."""
BAD_NODE = 74
"""Exit status (EX_IOERR) that a node's supervisor reports, never the process itself: the process
was killed again and again or found a full disk. Another node may work."""
