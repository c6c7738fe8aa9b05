"""A job's files at a storage URL: a folder, or a bucket of S3, Google Cloud or Azure.

``open_storage`` returns a ``Storage`` for a URL. ``JobMirror`` keeps a node's local copy of a job.
What a checkpoint is, and how it is published, is in ``duetune.training.checkpoint``.
"""

from duetune.storage.job_mirror import JobMirror
from duetune.storage.storage_port import Storage, VersionedContent
from duetune.storage.storage_url import is_url, open_storage, place_below

__all__ = ["JobMirror", "Storage", "VersionedContent", "is_url", "open_storage", "place_below"]
