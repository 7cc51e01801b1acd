"""Values that belong to objects of a script, about which nothing is known but that they exist."""

from __future__ import annotations

from typing import Any, Generic, TypeVar
from weakref import ref

T = TypeVar("T")


class ByIdentity(Generic[T]):
    """A value for each object, which is forgotten with the object.

    Unlike the keys of a WeakKeyDictionary, the objects need not be hashable, as those of a
    dataclass, and may be equal to each other.
    """

    def __init__(self) -> None:
        self._values: dict[int, tuple[ref[Any], T]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, owner: object) -> bool:
        return id(owner) in self._values

    def __setitem__(self, owner: Any, value: T) -> None:
        number = id(owner)
        # The callback comes before another object can have the id.
        self._values[number] = ref(owner, lambda _: self._values.pop(number, None)), value

    def get(self, owner: object) -> T | None:
        """The value of the object; None if it has none."""
        found = self._values.get(id(owner))
        return found[1] if found else None

    def values(self) -> list[T]:
        """The values of all objects."""
        return [value for _, value in self._values.copy().values()]
