"""A job's files at a storage URL: a folder, or a bucket of S3, Google Cloud or Azure.

``open_storage`` returns a ``Storage`` for a URL. ``deposit``, ``JobMirror`` and ``JobCopy`` move a
job's files between the controller and its nodes. What a checkpoint is, and how it is published, is
in ``duetune.training.checkpoint``.
"""

from duetune.storage.job_copy import JobCopy
from duetune.storage.job_deposit import deposit
from duetune.storage.job_mirror import JobMirror
from duetune.storage.storage_port import Storage, VersionedContent
from duetune.storage.storage_url import is_url, open_storage, place_below

__all__ = [
    "JobCopy",
    "JobMirror",
    "Storage",
    "VersionedContent",
    "deposit",
    "is_url",
    "open_storage",
    "place_below",
]
