"""Messages about the values of settings: turn pydantic's errors into lines of one form.

Such a line is `setting=value: allowed: ...`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

LISTED = "allowed: what `fastloop list settings` and `fastloop list` show"
"""Stands in a message for the list of all names at the top level, which is too long for a line."""
NUMBER_OR_BOOL = re.compile(r"[+-]?\d[\d_]*(\.\d*)?(e[+-]?\d+)?|true|false|null", re.IGNORECASE)
"""Text that Hydra reads as a number, a bool or null, unless it is quoted."""
INTEGER, NUMBER, TEXT, LIST = "an integer", "a number", "text", "a list in brackets, such as [1,2]"
ALLOWED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda ctx: _more_than(ctx["gt"]),
    "greater_than_equal": lambda ctx: f"{ctx['ge']} or more",
    "less_than": lambda ctx: f"less than {ctx['lt']}",
    "less_than_equal": lambda ctx: f"at most {ctx['le']}",
    "multiple_of": lambda ctx: f"multiples of {ctx['multiple_of']}",
    "finite_number": lambda _: "a finite number",
    "int_type": lambda _: INTEGER,
    "int_parsing": lambda _: INTEGER,
    "int_parsing_size": lambda _: "an integer of fewer digits",
    "int_from_float": lambda _: INTEGER,
    "float_type": lambda _: NUMBER,
    "float_parsing": lambda _: NUMBER,
    "bool_type": lambda _: "true, false",
    "bool_parsing": lambda _: "true, false",
    "string_type": lambda _: TEXT,
    "string_too_short": lambda ctx: f"{ctx['min_length']} characters or more",
    "string_pattern_mismatch": lambda ctx: f"text of the form {ctx['pattern']}",
    "literal_error": lambda ctx: _join_choices(ctx["expected"]),
    "list_type": lambda _: LIST,
    "tuple_type": lambda _: LIST,
    "set_type": lambda _: LIST,
    "dict_type": lambda _: "names and values, such as {a:1,b:2}",
    "mapping_type": lambda _: "names and values, such as {a:1,b:2}",
    "too_short": lambda ctx: f"a list of {ctx['min_length']} or more",
    "too_long": lambda ctx: f"a list of at most {ctx['max_length']}",
    "path_type": lambda _: "the path of a file that exists",
    "path_not_file": lambda _: "the path of a file that exists",
    "path_not_directory": lambda _: "the path of a folder that exists",
    "callable_type": lambda _: "a function or a class",
    "none_required": lambda _: "null",
}
"""Type of an error of pydantic -> the allowed values, as a function of the error's context."""
ALLOWED_TEXTS = {
    "resume": "the folder of a sweep, or last",
    "baseline": "the name of a job or a loader",
}
"""Name of a setting that takes only certain texts -> the allowed values."""
MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
UNEXPECTED = ("unexpected_keyword_argument", "unexpected_positional_argument")
"""Types of pydantic's errors for a setting that is missing, and for one that does not exist."""
SPECIAL_METHODS = ("__call__", "__len__", "__getitem__", "__iter__")
"""Special methods that a Protocol may ask for."""


def validation_message(group: str, error: Any, known: Sequence[str] | None = None) -> str:
    """The message for a pydantic.ValidationError, of the form `setting=value: allowed: ...`.

    The allowed values of a union's parts become one sentence. known: names of the group's settings;
    None: there are too many for a line.
    """
    listed = LISTED
    if known is not None:
        names = [f"{group}.{name}" if group else name for name in known]
        listed = f"allowed: {', '.join(names) or 'none'}"
    by_name: dict[str, list[Any]] = {}
    for detail in error.errors():
        by_name.setdefault(_name(group, detail), []).append(detail)
    return "; ".join(_setting_message(name, of_name, listed) for name, of_name in by_name.items())


def _name(group: str, detail: Any) -> str:
    """The setting's name, without the names that pydantic gives to the parts of a union."""
    # In pydantic's location, names of types and indices into lists follow the setting's name. Only
    # the indices are kept.
    first, *rest = detail["loc"] or ("",)
    path = [str(first), *(str(part) for part in rest if isinstance(part, int))]
    return ".".join(part for part in (group, *path) if part)


def _setting_message(name: str, details: Sequence[Any], listed: str) -> str:
    """The message for one setting.

    details: pydantic's errors; for a union, one for each of its parts. listed: words on the
    settings that exist.
    """
    first = details[0]
    if first["type"] in UNEXPECTED:
        return f"{name}={format_value(first['input'])}: there is no such setting; {listed}"
    if first["type"] in MISSING:
        return f"{name} is missing"
    if first["type"] == "is_instance_of":
        return kind_message(name, first["input"], first["ctx"]["class"])
    own = [each for each in details if each["type"] not in ALLOWED]
    # A check of the option's class raises its own sentence, which says more than pydantic's.
    if own:
        message = own[0]["msg"].removeprefix("Value error, ")
        is_own = own[0]["type"] in ("value_error", "assertion_error")
        text = message if is_own else "this value is not allowed"
        return f"{name}={format_value(own[0]['input'])}: {text}" if own[0]["loc"] else text
    if first["type"] == "string_type" and name in ALLOWED_TEXTS:
        return f"{name}={format_value(first['input'])}: allowed: {ALLOWED_TEXTS[name]}"
    allowed = dict.fromkeys(ALLOWED[each["type"]](each.get("ctx", {})) for each in details)
    return f"{name}={format_value(first['input'])}: allowed: {' or '.join(allowed)}"


def format_value(value: Any) -> str:
    """The value as on a command line: with Hydra's true and null, and with quotes around text that
    Hydra would read as a number, a bool or null."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(format_value(each) for each in value)}]"
    is_quoted = isinstance(value, str) and NUMBER_OR_BOOL.fullmatch(value)
    return f"'{value}'" if is_quoted else str(value)


def _more_than(bound: float) -> str:
    return f"{bound + 1} or more" if isinstance(bound, int) else f"more than {bound:g}"


def _join_choices(expected: str) -> str:
    """pydantic's list of literals, `'a', 'b' or 'c'`, as `a, b, c`."""
    return expected.replace("'", "").replace(" or ", ", ")


def kind_message(setting: str, thing: Any, kind: str) -> str:
    """The message for an object that does not satisfy the Protocol named `kind`.

    It lists the members that the object lacks.
    """
    # The value null was given to an option that needs an object.
    if thing is None:
        return f"{setting}=null: allowed: one option, as null does not implement {kind}"
    cls = type(thing)
    text = f"{setting}: {cls.__module__}.{cls.__qualname__} does not implement {kind}"
    lacking = sorted(name for name in _members(kind) if not hasattr(thing, name))
    return f"{text}: it lacks {', '.join(lacking)}" if lacking else text


def _members(kind: str) -> set[str]:
    """Names of the attributes and methods of the Protocol of that name."""
    from fastloop.core import plan, protocols

    modules = (plan, protocols)
    # `kind` may name a class that is not a Protocol. Then the result is empty.
    protocol = next((vars(module)[kind] for module in modules if kind in vars(module)), object)
    return {
        name
        for cls in protocol.__mro__
        if getattr(cls, "_is_protocol", False)
        for name in (*vars(cls), *getattr(cls, "__annotations__", {}))
        if not name.startswith("_") or name in SPECIAL_METHODS
    }
