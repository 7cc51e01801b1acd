"""Remove passwords from texts: from messages that are printed, and from files that are written."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

ADDRESS_USER = re.compile(r"""(?<=://)[^\s/?#"'<>\\]*@|(?<=%3A%2F%2F)[^\s/?#"'<>\\]*?%40""", re.I)
"""`user:secret@` of an address. The second form is percent-encoded: an address in the query of
another one."""
BEFORE_PASSWORD = r"""(?:(?<=://)|(?<=%3A%2F%2F))(?:[^\s/?#"'<>\\@]*:)?"""
"""The `user:` of an address, or nothing, before a password that ADDRESS_USER does not recognize."""
SECRET_PARAMETER = re.compile(r"""(?<=[?&])(password|passwd|pwd|token)=[^\s&"'<>\\]+""", re.I)
ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables that hold an address with a password, or a password alone."""


def without_passwords(text: str) -> str:
    """A message without users and passwords of addresses, and without the secrets of MLflow's
    variables.

    >>> without_passwords("http://user:secret@host/?token=abcd")
    'http://host/?token=***'
    """
    # The environment's secrets are replaced first, because a message may name a password alone,
    # without its address.
    for secret in _secrets_of_environment():
        text = re.sub(_pattern_of(secret), "***", re.sub(f"{_pattern_of(secret)}@", "", text))
    return without_address_users(text)


def without_address_users(text: str) -> str:
    """A file's text without users and passwords of addresses.

    Unlike in a message, other words stay as they are, even one that happens to be a password: the
    file has to be read again. So a password counts only in an address, and not in a name such as
    `store@loader.store`.
    """
    for secret in _secrets_of_environment():
        text = re.sub(f"{BEFORE_PASSWORD}{_pattern_of(secret)}@", "", text)
    return SECRET_PARAMETER.sub(r"\1=***", ADDRESS_USER.sub("", text))


def _pattern_of(secret: str) -> str:
    """The regular expression of a secret; a password such as `data` is not part of a longer
    word."""
    escaped = re.escape(secret)
    return rf"\b{escaped}\b" if secret.isalnum() else escaped


def _secrets_of_environment() -> list[str]:
    """Secrets of the environment, both as they are written there and decoded.

    The longest comes first: a secret has to be replaced as a whole before a part of it is.
    """
    secrets = {os.environ.get(name, "") for name in SECRETS}
    for name in ADDRESSES:
        # The user ends at the last @, unlike in ADDRESS_USER: a password may contain a slash, or an
        # @ that was not encoded.
        user, found, _ = os.environ.get(name, "").partition("://")[2].rpartition("@")
        if found and ":" in user:
            secrets |= {user, user.partition(":")[2]}
    secrets |= {unquote(secret) for secret in secrets}
    # A shorter secret may be a part of any word, and replacing it would garble the text.
    return sorted((secret for secret in secrets if len(secret) > 3), key=len, reverse=True)
