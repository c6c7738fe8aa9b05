"""Uploads the published result of a job to the Hugging Face hub, if the task asks for it."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from duetune.training.publication import RESULT_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from duetune.training.task import TrainingTask

_log = logging.getLogger(__name__)


def upload(task: TrainingTask, output: Path) -> str:
    """Upload the files in ``output`` and return a warning; "" if all went well or nothing was asked
    for. The member that has published calls it; a failure never loses the result.
    """
    if not task.push_to_hub or task.hub_model_id is None:
        return ""
    try:
        hub = importlib.import_module("huggingface_hub").HfApi()
        hub.create_repo(task.hub_model_id, private=task.hub_private_repo, exist_ok=True)
        hub.upload_folder(
            repo_id=task.hub_model_id,
            folder_path=output,
            ignore_patterns=[RESULT_FILE],
            commit_message="Upload the result of a duetune job",
        )
    except Exception as error:  # noqa: BLE001 - the hub's client raises many kinds
        reason = " ".join(str(error).split())[:160]
        warning = f"the result was not uploaded to {task.hub_model_id}: {reason}"
        _log.warning("%s", warning)
        return warning
    _log.info("uploaded the result to %s", task.hub_model_id)
    return ""
