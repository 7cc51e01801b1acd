"""Removal of passwords from texts, such as the messages of a server's client with its address."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

USER = re.compile(r"""(?<=://)[^\s/?#"'<>\\]*@|(?<=%3A%2F%2F)[^\s/?#"'<>\\]*?%40""", re.I)
"""`user:secret@` of an address. The second form is percent-encoded: an address in the query of
another one."""
PARAMETER = re.compile(r"""(?<=[?&])(password|passwd|pwd|token)=[^\s&"'<>\\]+""", re.I)
ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables that hold an address with a password, or a password alone."""


def without_passwords(text: str) -> str:
    """The text without users and passwords of addresses, and without secrets of MLflow's variables.

    >>> without_passwords("http://user:secret@host/?token=abcd")
    'http://host/?token=***'
    """
    # The environment's secrets first: a message may name a password alone, without its address.
    for secret in _secrets_of_environment():
        text = text.replace(f"{secret}@", "").replace(secret, "***")
    return PARAMETER.sub(r"\1=***", USER.sub("", text))


def _secrets_of_environment() -> list[str]:
    """Secrets of the environment, as they are written there and decoded; the longest first, so that
    no part of one is replaced before the whole."""
    secrets = {os.environ.get(name, "") for name in SECRETS}
    for name in ADDRESSES:
        # Up to the last @, unlike USER: a password may contain a slash or an @ that nobody encoded.
        user, found, _ = os.environ.get(name, "").partition("://")[2].rpartition("@")
        if found and ":" in user:
            secrets |= {user, user.partition(":")[2]}
    secrets |= {unquote(secret) for secret in secrets}
    # A shorter secret may be a part of any word, and replacing it would garble the text.
    return sorted((secret for secret in secrets if len(secret) > 3), key=len, reverse=True)
