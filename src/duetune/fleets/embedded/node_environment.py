"""The environment variables that the processes of a node get from the provider.

A worker gets these, its job's ``envs`` and ``secrets``, and the variables of the node contract.
Credentials in the provider's own environment therefore do not reach a job by accident.
``docs/explanation/security.md`` has the same list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_USER = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "LANG", "LANGUAGE", "TZ")
_PROGRAMS = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "XDG_CACHE_HOME"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"),
)
_NETWORK = (
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
_DUETUNE = (
    *("DUETUNE_ADVERTISE", "DUETUNE_BIND", "DUETUNE_DATA", "DUETUNE_FLEET", "DUETUNE_HOME"),
    "DUETUNE_TLS",
)

NAMES = frozenset((*_USER, *_PROGRAMS, *_NETWORK, *_DUETUNE))
PREFIXES = (
    *("LC_", "CUDA_", "CUBLAS_", "NVIDIA_", "NCCL_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_"),
    *("TOKENIZERS_", "TORCH_", "PYTORCH_", "TRITON_", "OMP_", "MKL_", "OPENBLAS_", "NUMBA_"),
    *("COVERAGE_", "DUETUNE_GROUP_", "DUETUNE_QUORUM_", "DUETUNE_SEAT_"),
)


_CREDENTIALS = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""First part of the variables with credentials of a storage, by the scheme of its URL."""


def storage_variables(storage: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ`` with which a node's processes reach its storage."""
    first = _CREDENTIALS.get(storage.partition("://")[0])
    return {
        name: value
        for name, value in environ.items()
        if first is not None and name.startswith(first)
    }


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ`` that the processes of a node get."""
    return {
        name: value for name, value in environ.items() if name in NAMES or name.startswith(PREFIXES)
    }
