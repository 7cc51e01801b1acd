"""Edit the call that makes a script's DataLoader, in the script's source, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastloop.core.loading_settings import DECLARED, worker_settings
from fastloop.core.types import Unsupported
from fastloop.explain.attach.loader_places import ANY_NAME
from fastloop.explain.change import FASTLOADER, Change

POSITIONS = (
    *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn"),
    *("pin_memory", "drop_last", "timeout", "worker_init_fn", "multiprocessing_context"),
    "generator",
)
"""DataLoader's arguments in their order, as a call may give them by their position."""
WITHOUT_WORKERS: Mapping[str, Any] = {
    **{name: DECLARED[name].default for name in worker_settings(prefetches_by_process=False)},
    "timeout": 0,
}
"""Arguments that DataLoader refuses without workers, with the only values that it then accepts."""
UNPACKED = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Dict)
"""Expressions that a dictionary unpacks as they are; others need brackets."""
LOADER = "DataLoader"


def settings_beside(settings: Mapping[str, Any], given: Container[str]) -> dict[str, Any]:
    """The settings of a change. If it sets num_workers=0, the arguments in `given` that need
    workers are set back to their defaults."""
    if settings.get("num_workers") != 0:
        return {**settings}
    ended = {
        name: value
        for name, value in WITHOUT_WORKERS.items()
        if name in given and name not in settings
    }
    return {**settings, **ended}


@dataclass(frozen=True)
class Edit:
    """Text that replaces the bytes from start to stop of a source."""

    start: int
    stop: int
    text: str


def edit_call(source: str, line: int, change: Change, takes: Sequence[str] | None = None) -> str:
    """The source with the change at the call of a DataLoader on that line.

    takes: the names of the arguments of a class derived from DataLoader, in their order; None: it
    has DataLoader's. Raises Unsupported, with the reason, if the call can't be found or edited, and
    SyntaxError if the source has one.
    """
    tree = ast.parse(source)
    # ast counts columns in bytes of UTF-8, so the text is edited as bytes. `starts` has the place
    # of each line's first byte.
    text = source.encode()
    starts = [0]
    for each in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(each))
    names = _loader_names(tree)
    end = "\r\n" if b"\r\n" in text else "\n"
    call = _find_call(tree, line, names)
    positions = POSITIONS if takes is None else takes
    settings = _settings_of_call(call, change, takes)
    edits = [*_edit_arguments(text, starts, call, settings, positions)]
    if change.is_fastloader:
        if _last_name(call) not in names:
            called = ast.unparse(call.func)
            raise Unsupported(f"line {line} calls {called}, which is not a DataLoader")
        edits.append(_replace(starts, call.func, FASTLOADER))
        if not _imports(tree, "fastloop", call):
            edits.append(_new_import(tree, text, starts, call, f"import fastloop{end}"))
    if change.torch_threads is not None:
        threads = f"torch.set_num_threads({change.torch_threads}){end}"
        edits.append(_new_statement(tree, text, starts, call, threads))
    # The last edit comes first, so that no edit moves the place of another one.
    for edit in sorted(edits, key=lambda each: -each.start):
        text = text[: edit.start] + edit.text.encode() + text[edit.stop :]
    # A line before the call may be in the way, as before `elif` or below a decorator.
    try:
        ast.parse(text)
    except SyntaxError:
        raise Unsupported(f"the call on line {line} leaves no place for the change") from None
    return text.decode()


def find_options(
    source: str, line: int, change: Change, takes: Sequence[str] | None = None
) -> dict[str, str]:
    """The expressions, such as `args.workers`, that the call on that line gives for the settings of
    the change. takes: as for `edit_call`, which raises the same errors."""
    tree = ast.parse(source)
    call = _find_call(tree, line, _loader_names(tree))
    given = dict(zip(POSITIONS if takes is None else takes, call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg}
    return {
        name: ast.unparse(given[name])
        for name in change.settings
        if name in given and not isinstance(given[name], ast.Constant)
    }


def _loader_names(tree: ast.Module) -> set[str]:
    """The names by which the script calls DataLoader, such as DL."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    aliases = {each.asname for node in imports for each in node.names if each.name == LOADER}
    return {LOADER, *filter(None, aliases)}


def _find_call(tree: ast.Module, line: int, names: Container[str]) -> ast.Call:
    """The innermost call on the line that makes a DataLoader, by the name that is called.

    Raises Unsupported if there is none, or more than one.
    """
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and ("loader" in _last_name(node).lower() or _last_name(node) in names)
    ]
    if not calls:
        raise Unsupported(f"line {line} has no call of a DataLoader by its name")
    # In `make_loader(DataLoader(a))` both names look like a loader's; DataLoader itself is meant.
    exact = [node for node in calls if _last_name(node) in names] or calls
    innermost = [
        node
        for node in exact
        if not any(other in exact for other in ast.walk(node) if other is not node)
    ]
    if len(innermost) > 1:
        raise Unsupported(f"line {line} makes {len(innermost)} DataLoaders")
    return innermost[0]


def _settings_of_call(
    call: ast.Call, change: Change, takes: Sequence[str] | None
) -> dict[str, Any]:
    """The settings of the change, and those that it needs beside the call's own arguments.

    Raises Unsupported for a setting that the called class does not take.
    """
    given = _names_of_arguments(call, POSITIONS if takes is None else takes)
    if takes is not None and ANY_NAME not in takes:
        if lacking := sorted({*change.settings} - {*takes}):
            name = ast.unparse(call.func)
            raise Unsupported(f"line {call.lineno}: {name} takes no {', '.join(lacking)}")
        given &= {*takes}
    return settings_beside(change.settings, given)


def _names_of_arguments(call: ast.Call, positions: Sequence[str]) -> set[str]:
    """The names of the arguments that the call gives or, by `**settings`, may give.

    Raises Unsupported for `*args`.
    """
    if any(isinstance(each, ast.Starred) for each in call.args):
        raise Unsupported(f"line {call.lineno} unpacks arguments without their names")
    is_packed = any(each.arg is None for each in call.keywords)
    named = {each.arg for each in call.keywords if each.arg}
    return {*positions[: len(call.args)], *named, *(WITHOUT_WORKERS if is_packed else ())}


def _last_name(call: ast.Call) -> str:
    """The last part of the name that is called: DataLoader of torch.utils.data.DataLoader[int]."""
    named = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    if isinstance(named, ast.Attribute):
        return named.attr
    return named.id if isinstance(named, ast.Name) else ""


def _edit_arguments(
    text: bytes,
    starts: list[int],
    call: ast.Call,
    settings: Mapping[str, Any],
    positions: Sequence[str],
) -> Iterator[Edit]:
    """The edits that give the call these settings. Raises Unsupported, with the reason, if it can't
    be edited."""
    named = {each.arg: each for each in call.keywords if each.arg}
    added = {}
    for name, value in settings.items():
        position = positions.index(name) if name in positions else len(positions)
        if name not in named and position >= len(call.args):
            added[name] = value
            continue
        given = named[name].value if name in named else call.args[position]
        # The rest of the script may use the name that `num_workers=(n := 2)` sets.
        for node in ast.walk(given):
            if isinstance(node, ast.NamedExpr):
                raise Unsupported(f"line {call.lineno} also sets {node.target.id} by {name}")
        yield _replace(starts, given, repr(value))
    if not added:
        return
    packed = [each.value for each in call.keywords if each.arg is None]
    if len(packed) > 1:
        raise Unsupported(f"line {call.lineno} unpacks several dictionaries")
    # `**settings` may name the same argument, and a call must not name one twice. So the value is
    # added to the dictionary: `**{**settings, 'num_workers': 2}`.
    if packed:
        start, stop = _span(starts, packed[0])
        own = ", ".join(f"{name!r}: {value!r}" for name, value in added.items())
        more = text[start:stop].decode()
        # A dictionary unpacks no `a if b else c`, unlike a call.
        more = more if isinstance(packed[0], UNPACKED) else f"({more})"
        yield Edit(start, stop, f"{{**{more}, {own}}}")
        return
    arguments = [*call.args, *(each.value for each in call.keywords)]
    words = ", ".join(f"{name}={value!r}" for name, value in added.items())
    if arguments:
        last = max(_span(starts, each)[1] for each in arguments)
        # The argument may stand in brackets that are not part of its node. The comma belongs after
        # them.
        last += _closing_brackets(text[last : _span(starts, call)[1]])
        yield Edit(last, last, f", {words}")
    else:
        last = _span(starts, call)[1] - 1
        yield Edit(last, last, words)


def _closing_brackets(rest: bytes) -> int:
    """Number of bytes from the end of the last argument to the end of its own closing brackets.

    rest: the source from the end of the last argument to the end of the call, with its bracket.
    """
    place = count = 0
    for number, byte in enumerate(rest[:-1]):
        # Brackets in a comment, or after a comma, do not belong to the last argument.
        if chr(byte) in ",#":
            break
        if chr(byte) == ")":
            place = number + 1
            count += 1
    return place


def _new_statement(
    tree: ast.Module, text: bytes, starts: list[int], call: ast.Call, line: str
) -> Edit:
    """The edit that adds the line, which uses torch, before the statement with the call.

    Raises Unsupported, with the reason, if the line has no place there.
    """
    if not _imports(tree, "torch", call):
        raise Unsupported("the script does not import torch by its name")
    statements = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and _first_line(node) <= call.lineno
        and (node.end_lineno or 0) >= (call.end_lineno or 0)
    ]
    statement = max(statements, key=lambda node: (node.lineno, node.col_offset))
    first = _first_line(statement)
    if not _begins_line(text, starts, statement):
        raise Unsupported(f"line {first} has several statements")
    start = starts[first - 1]
    indentation = text[start : start + statement.col_offset].decode()
    return Edit(start, start, f"{indentation}{line}")


def _first_line(node: ast.stmt) -> int:
    """Number of the statement's first line, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _begins_line(text: bytes, starts: list[int], node: ast.stmt) -> bool:
    """True if a line can be added before the statement: its own line begins with it, and a
    backslash doesn't continue the line before."""
    start = starts[_first_line(node) - 1]
    is_continued = text[:start].rstrip(b"\r\n").endswith(b"\\")
    return not is_continued and not text[start : start + node.col_offset].strip()


def _imports(tree: ast.Module, name: str, call: ast.Call) -> bool:
    """True if the script imports the module by this name before the call."""
    return any(
        isinstance(node, ast.Import)
        and any((each.asname or each.name) == name for each in node.names)
        for node in tree.body
        if node.lineno <= call.lineno
    )


def _new_import(
    tree: ast.Module, text: bytes, starts: list[int], call: ast.Call, line: str
) -> Edit:
    """The edit that adds a line before the first import, except imports from __future__.

    Raises Unsupported if there is none.
    """
    imports = [
        node
        for node in tree.body
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and node.module != "__future__")
        if node.lineno <= call.lineno and _begins_line(text, starts, node)
    ]
    if not imports:
        raise Unsupported("the script has no import of its own at its beginning")
    place = starts[imports[0].lineno - 1]
    return Edit(place, place, line)


def _replace(starts: list[int], node: ast.expr, text: str) -> Edit:
    start, stop = _span(starts, node)
    return Edit(start, stop, text)


def _span(starts: list[int], node: ast.expr) -> tuple[int, int]:
    """First byte of the expression, and the byte after it."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = starts[node.lineno - 1] + node.col_offset
    return start, starts[node.end_lineno - 1] + node.end_col_offset
