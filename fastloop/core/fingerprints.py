"""Fingerprints: short texts that change with values, or with the content of files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address of an object in its default repr."""
EDGE_BYTES = 1 << 20
"""Bytes at each end of a file that `edge_digest` reads."""


def fingerprint(*parts: object) -> str:
    """32 hexadecimal digits that change with the repr of any part."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def stable_repr(value: object) -> str:
    """The value's repr without addresses of objects, which differ from process to process."""
    return ADDRESS.sub("", repr(value))


def edge_digest(path: Path) -> str:
    """Fingerprint of a file's size and of its first and last MiB; the rest is not read."""
    size = path.stat().st_size
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(EDGE_BYTES))
        # In a file smaller than 2 MiB, some bytes are read twice, which does no harm.
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read(EDGE_BYTES))
    return fingerprint(size, digest.hexdigest())


def file_fingerprint(path: Path) -> str:
    """Fingerprint of a file's name, modification time, size and first and last MiB."""
    return fingerprint(path.name, path.stat().st_mtime_ns, edge_digest(path))
