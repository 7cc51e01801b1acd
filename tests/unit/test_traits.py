"""Traits: an option that misspells one would silently have its default."""

from __future__ import annotations

import ast
import inspect
from dataclasses import fields
from types import SimpleNamespace

import pytest
from options import REPOSITORY

from fastloop.core import benchmark, plan, protocols, traits

NOT_IN_A_PROTOCOL = {"format_version", "slow"}
"""Optional, and read by data/prepare_store.py; and of a column of FastLoader."""


def declared_names() -> set[str]:
    """Attributes that a Protocol or a kind of traits declares."""
    modules = (benchmark, plan, protocols, traits)
    classes = [
        item for module in modules for item in vars(module).values() if isinstance(item, type)
    ]
    return {name for item in classes for name in {*inspect.get_annotations(item), *vars(item)}}


def class_variables() -> list[tuple[str, str]]:
    """(file, name) of each ClassVar of an option."""
    return [
        (str(path.relative_to(REPOSITORY)), node.target.id)
        for path in sorted((REPOSITORY / "fastloop" / "options").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if ast.unparse(node.annotation).startswith("ClassVar")
    ]


def test_class_variables_of_options_are_declared_somewhere():
    found = class_variables()
    assert len(found) > 50
    known = declared_names() | NOT_IN_A_PROTOCOL
    assert [(file, name) for file, name in found if name not in known] == []


@pytest.mark.parametrize("kind", [traits.LoaderTraits, traits.ExecutionTraits])
def test_option_without_traits_has_the_defaults_and_declared_ones_win(kind):
    assert traits.traits_of(kind, object()) == kind()
    name = fields(kind)[0].name
    changed = not fields(kind)[0].default
    assert getattr(traits.traits_of(kind, SimpleNamespace(**{name: changed})), name) is changed
