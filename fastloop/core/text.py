"""Text for people: text made safe to print, lines for a terminal, and tables for a notebook."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import unquote

UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters except tab and newline, and halves of surrogate pairs: a terminal would obey
some of them, and XML allows none."""
ERROR_CLASS = re.compile(r"^(?:BadData: |\w+: \[Errno \d+\] )")
"""A class name and error number at the beginning of a reason, which add nothing to its message."""
LONGEST_WORD = 240
"""Words of up to this many characters are printed whole; usual paths are shorter."""
NUM_SHOWN = 40
"""Number of characters of a longer word that are printed."""

ADDRESS_USER = re.compile(r"""(?<=://)[^\s/?#"'<>\\]*@|(?<=%3A%2F%2F)[^\s/?#"'<>\\]*?%40""", re.I)
"""`user:secret@` of an address. The second form is percent-encoded: an address in the query of
another one."""
BEFORE_PASSWORD = r"""(?:(?<=://)|(?<=%3A%2F%2F))(?:[^\s/?#"'<>\\@]*:)?"""
"""The `user:` of an address, or nothing, before a password that ADDRESS_USER does not recognize."""
SECRET_PARAMETER = re.compile(r"""(?<=[?&])(password|passwd|pwd|token)=[^\s&"'<>\\]+""", re.I)
ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
SECRETS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Environment variables that hold an address with a password, or a password alone."""

LINE_WIDTH = 96


def printable(text: str) -> str:
    """The text, with a question mark in the place of each unprintable character."""
    return UNPRINTABLE.sub("?", text)


def encodable(text: str) -> str:
    """The text, with halves of surrogate pairs as escapes: UTF-8 has none. Python reads the bytes
    of a name that is no UTF-8 as such halves.

    >>> encodable("caf\udce9")
    'caf\\udce9'
    """
    return text.encode(errors="backslashreplace").decode()


def shorten_words(text: str) -> str:
    """The text, with words of more than LONGEST_WORD characters cut off and their length added."""
    return re.sub(
        rf"\S{{{LONGEST_WORD + 1},}}",
        lambda word: f"{word.group()[:NUM_SHOWN]}… ({len(word.group()):,} characters)",
        text,
    )


def plain_reason(reason: str) -> str:
    """A failure's reason for a terminal, with very long words cut off.

    Unusable data, and errors of the system such as a full disk, lose their class and number.
    """
    return shorten_words(ERROR_CLASS.sub("", reason))


def without_passwords(text: str) -> str:
    """A message without users and passwords of addresses, and without the secrets of MLflow's
    variables.

    >>> without_passwords("http://user:secret@host/?token=abcd")
    'http://host/?token=***'
    """
    # The environment's secrets first: a message may name a password alone, without its address.
    for secret in _secrets_of_environment():
        text = re.sub(_pattern_of(secret), "***", re.sub(f"{_pattern_of(secret)}@", "", text))
    return without_address_users(text)


def without_address_users(text: str) -> str:
    """A file's text without users and passwords of addresses.

    Unlike in a message, other words stay as they are, also one that is a password by chance: the
    file has to be read again. So a password counts only in an address, and not in a name such as
    `store@loader.store`.
    """
    for secret in _secrets_of_environment():
        text = re.sub(f"{BEFORE_PASSWORD}{_pattern_of(secret)}@", "", text)
    return SECRET_PARAMETER.sub(r"\1=***", ADDRESS_USER.sub("", text))


def _pattern_of(secret: str) -> str:
    """The regular expression of a secret; a password such as `data` is no part of a longer word."""
    escaped = re.escape(secret)
    return rf"\b{escaped}\b" if secret.isalnum() else escaped


def _secrets_of_environment() -> list[str]:
    """Secrets of the environment, as they are written there and decoded; the longest first, so that
    no part of one is replaced before the whole."""
    secrets = {os.environ.get(name, "") for name in SECRETS}
    for name in ADDRESSES:
        # The user ends at the last @, unlike in ADDRESS_USER: a password may contain a slash, or an
        # @ that nobody encoded.
        user, found, _ = os.environ.get(name, "").partition("://")[2].rpartition("@")
        if found and ":" in user:
            secrets |= {user, user.partition(":")[2]}
    secrets |= {unquote(secret) for secret in secrets}
    # A shorter secret may be a part of any word, and replacing it would garble the text.
    return sorted((secret for secret in secrets if len(secret) > 3), key=len, reverse=True)


def align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A line for each row of cells, with the columns aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (zip(row, widths, strict=True) for row in rows)
    return ["  ".join(cell.ljust(width) for cell, width in row).rstrip() for row in aligned]


def wrap(lines: Iterable[str], width: int = LINE_WIDTH) -> list[str]:
    """The lines, each broken between words at the width; names with hyphens stay whole."""
    return [piece for line in lines for piece in textwrap.wrap(line, width, break_on_hyphens=False)]


def notebook_html(
    answer: str,
    rows: Sequence[Sequence[str]],
    notes: Iterable[str] = (),
    first: Iterable[str] = (),
) -> str:
    """The answer as a paragraph, then the rows as a table, then the notes as a list.

    rows: cells; the first row is the head of the table. first: paragraphs before the answer.

    >>> notebook_html("a < b", [("loader",), ("a",)])
    '<p>a &lt; b</p><table><thead><tr><th>loader</th></tr></thead>...'
    """
    head, *body = [[escape(cell) for cell in row] for row in rows]
    table_head = "".join(f"<th>{cell}</th>" for cell in head)
    table_body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in body)
    table = f"<table><thead><tr>{table_head}</tr></thead><tbody>{table_body}</tbody></table>"
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in (*first, answer))
    return f"{paragraphs}{table}" + (f"<ul>{items}</ul>" if items else "")


def describe_exit(status: int | None) -> str:
    """Words for the end of a process, such as "killed by SIGKILL" or "exit status 3".

    status: the exit code as multiprocessing and subprocess report it: minus the number of the
    signal if a signal ended the process; None: it is not known.
    """
    if status is None:
        return "exit status unknown"
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        # Real-time signals have numbers, but no names.
        return f"killed by signal {-status}"
