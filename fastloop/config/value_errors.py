"""The allowed values of a setting, for each of pydantic's errors, in words of this command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastloop.config.kinds import kind_message

NUMBER_OR_BOOL = re.compile(r"[+-]?\d[\d_]*(\.\d*)?(e[+-]?\d+)?|true|false|null", re.IGNORECASE)
"""Text that is a string only if it was quoted."""
INTEGER, NUMBER, TEXT, LIST = "an integer", "a number", "text", "a list in brackets, as [1,2]"
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
    "dict_type": lambda _: "names and values, as {a:1,b:2}",
    "mapping_type": lambda _: "names and values, as {a:1,b:2}",
    "too_short": lambda ctx: f"a list of {ctx['min_length']} or more",
    "too_long": lambda ctx: f"a list of at most {ctx['max_length']}",
    "path_type": lambda _: "the path of a file that exists",
    "path_not_file": lambda _: "the path of a file that exists",
    "path_not_directory": lambda _: "the path of a folder that exists",
    "callable_type": lambda _: "a function or a class",
    "none_required": lambda _: "null",
}
"""Type of an error of pydantic -> the allowed values, as a function of the error's context."""
TEXTS = {"resume": "the folder of a sweep, or last", "baseline": "the name of a job or a loader"}
"""Name of a setting with text of a certain kind -> the allowed values."""
MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
UNKNOWN = ("unexpected_keyword_argument", "unexpected_positional_argument")


def value_message(group: str, details: Sequence[Any]) -> str:
    """The details of a pydantic.ValidationError as `setting=value: allowed: ...`.

    The allowed values of a union's parts become one sentence.
    """
    by_name: dict[str, list[Any]] = {}
    for detail in details:
        by_name.setdefault(_name(group, detail), []).append(detail)
    return "; ".join(_setting_message(name, of_name) for name, of_name in by_name.items())


def _name(group: str, detail: Any) -> str:
    """The setting's name, without the names that pydantic gives to the parts of a union."""
    # after the name of the setting, only the places in a list are kept
    first, *rest = detail["loc"] or ("",)
    path = [str(first), *(str(part) for part in rest if isinstance(part, int))]
    return ".".join(part for part in (group, *path) if part)


def _setting_message(name: str, details: Sequence[Any]) -> str:
    """The message for a setting; a union has an error for each of its parts."""
    first = details[0]
    if first["type"] in UNKNOWN:
        return f"{name}: there is no such setting"
    if first["type"] in MISSING:
        return f"{name} is missing"
    if first["type"] == "is_instance_of":
        return kind_message(name, first["input"], first["ctx"]["class"])
    own = [each for each in details if each["type"] not in ALLOWED]
    # an error of the option's own check has its own sentence, which is better than pydantic's
    if own:
        message = own[0]["msg"].removeprefix("Value error, ")
        is_own = own[0]["type"] in ("value_error", "assertion_error")
        text = message if is_own else "this value is not allowed"
        return f"{name}={format_value(own[0]['input'])}: {text}" if own[0]["loc"] else text
    if first["type"] == "string_type" and name in TEXTS:
        return f"{name}={format_value(first['input'])}: allowed: {TEXTS[name]}"
    allowed = dict.fromkeys(ALLOWED[each["type"]](each.get("ctx", {})) for each in details)
    return f"{name}={format_value(first['input'])}: allowed: {' or '.join(allowed)}"


def format_value(value: Any) -> str:
    """The value as on a command line: with Hydra's true and null, and with quotes around text that
    looks like a number."""
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
