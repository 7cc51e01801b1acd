"""A mapping from a script's objects, which may be of any class, to values of the probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    """A value, and the reference that notices the end of its object."""

    reference: ref[Any]
    value: T


class ByIdentity(Generic[T]):
    """A value for each object, which is forgotten with the object.

    Unlike the keys of a WeakKeyDictionary, the objects need not be hashable (those of a dataclass
    may not be), and may be equal to each other. Setting a value raises TypeError for an object to
    which there are no weak references, such as a list.
    """

    def __init__(self) -> None:
        self._values: dict[int, _Entry[T]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, owner: object) -> bool:
        return id(owner) in self._values

    def __setitem__(self, owner: Any, value: T) -> None:
        number = id(owner)
        # The callback comes before another object can have the id.
        reference = ref(owner, lambda _: self._values.pop(number, None))
        self._values[number] = _Entry(reference, value)

    def get(self, owner: object) -> T | None:
        """The value of the object; None if it has none."""
        found = self._values.get(id(owner))
        return found.value if found else None

    def values(self) -> list[T]:
        """The values of all objects."""
        return [each.value for each in self._values.copy().values()]
