"""What jobs and projects may be called."""

from __future__ import annotations

NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
NAME_WORDS = "1 to 63 letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
