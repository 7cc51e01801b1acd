"""Texts without the passwords of addresses, such as those in messages of a server's client."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

USER = re.compile(r"""(?<=://)[^\s/?#"'<>\\]*@|(?<=%3A%2F%2F)[^\s/?#"'<>\\]*?%40""", re.I)
"""`user:secret@` of an address; the second form is that of an address in the query of another."""
PARAMETER = re.compile(r"""(?<=[?&])(password|passwd|pwd|token)=[^\s&"'<>\\]+""", re.I)
ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables that hold an address with a password, or a password alone."""


def without_passwords(text: str) -> str:
    """The text without users and passwords of addresses, and without those of MLflow's variables.

    `http://user:secret@host/` becomes `http://host/`.
    """
    for secret in _secrets_of_environment():
        text = text.replace(f"{secret}@", "").replace(secret, "***")
    return PARAMETER.sub(r"\1=***", USER.sub("", text))


def _secrets_of_environment() -> list[str]:
    """Secrets of the environment, as they are written there and decoded; the longest first."""
    secrets = {os.environ.get(name, "") for name in SECRETS}
    for name in ADDRESSES:
        # up to the last @: a password may hold a slash or an @ that nobody has encoded
        user, found, _ = os.environ.get(name, "").partition("://")[2].rpartition("@")
        if found and ":" in user:
            secrets |= {user, user.partition(":")[2]}
    secrets |= {unquote(secret) for secret in secrets}
    # a shorter one may be a part of any word
    return sorted((secret for secret in secrets if len(secret) > 3), key=len, reverse=True)
