"""The patch of the call that makes a DataLoader: it keeps the meaning of every other argument."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import subprocess
from typing import Generic, TypeVar, cast

import pytest
import torch
from torch.utils.data import DataLoader

from fastloop import FastLoader
from fastloop.core.types import Unsupported
from fastloop.explain.attach.change_notes import (
    OF_FORKS,
    OTHER_ORDER,
    OTHER_SUMS,
    collect_notes,
)
from fastloop.explain.attach.edit_call import edit_call, find_options
from fastloop.explain.attach.loader_places import ANY_NAME, place_in_script, place_of_call
from fastloop.explain.attach.script_patch import (
    patch_call,
    patch_script,
    show_command,
)
from fastloop.explain.change import Change

T = TypeVar("T")
FAST = Change(is_fastloader=True)
WITHOUT = Change(settings={"num_workers": 0})
ARGUMENTS = [*inspect.signature(DataLoader.__init__).parameters][1:]
OF_WORKERS = {
    "persistent_workers": "True",
    "prefetch_factor": "4",
    "timeout": "30",
    "multiprocessing_context": "'fork'",
}
"""Arguments that DataLoader refuses without workers, as a script may give them."""


def edited_call(call: str, change: Change) -> ast.Call:
    tree = ast.parse(edit_call(f"import torch\nloader = {call}\n", 2, change))
    (assignment,) = [node for node in tree.body if isinstance(node, ast.Assign)]
    assert isinstance(assignment.value, ast.Call)
    return assignment.value


@pytest.mark.parametrize("name", ARGUMENTS)
def test_fastloader_gets_every_argument_of_dataloader(name):
    call = edited_call(f"DataLoader({name}=mine)", FAST)
    assert ast.unparse(call) == f"fastloop.FastLoader({name}=mine)"
    theirs, ours = (
        inspect.signature(kind.__init__).parameters for kind in (DataLoader, FastLoader)
    )
    assert ours[name].kind == theirs[name].kind
    if theirs[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
        assert [*ours].index(name) == [*theirs].index(name)


@pytest.mark.parametrize("given", [*({name} for name in OF_WORKERS), {*OF_WORKERS}])
@pytest.mark.parametrize("way", ["named", "packed"])
def test_without_workers_the_call_runs(given, way):
    words = ", ".join(f"{name}={OF_WORKERS[name]}" for name in ["num_workers", *sorted(given)][1:])
    packed = f"**dict({words})" if way == "packed" else words
    call = edited_call(f"DataLoader([1, 2, 3], 2, num_workers=1, {packed})", WITHOUT)
    loader = eval(ast.unparse(call))
    assert loader.num_workers == 0
    assert [each.tolist() for each in loader] == [[1, 2], [3]]


def test_arguments_by_position_are_not_mistaken():
    by_position = "DataLoader(a, 1, False, None, None, 2, None, False, False, 30, None, None, g)"
    kept = edited_call(by_position, Change(settings={"prefetch_factor": 8}))
    assert ast.unparse(kept) == f"{by_position[:-1]}, prefetch_factor=8)"
    changed = edited_call(by_position, WITHOUT)
    by_now = "DataLoader(a, 1, False, None, None, 0, None, False, False, 0, None, None, g)"
    assert ast.unparse(changed) == by_now


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("DataLoader(*arguments)", "unpacks arguments without their names"),
        ("DataLoader(a), DataLoader(b)", "makes 2 DataLoaders"),
        ("make_loaders(DataLoader(a), DataLoader(b))", "makes 2 DataLoaders"),
        ("DataLoader(a, **these, **those)", "unpacks several dictionaries"),
    ],
)
def test_call_that_may_be_another_is_told(line, reason):
    with pytest.raises(Unsupported, match=f"line 2 {reason}"):
        edit_call(f"import torch\nloaders = {line}\n", 2, WITHOUT)


def test_call_inside_of_another_loader_is_the_one():
    call = edited_call("prepare_loader(DataLoader(a, 8))", FAST)
    assert ast.unparse(call) == "prepare_loader(fastloop.FastLoader(a, 8))"


def test_call_by_another_name_is_found():
    source = "from torch.utils.data import DataLoader as DL\nloader = DL(a, in_order=False)\n"
    assert edit_call(source, 2, FAST) == (
        "import fastloop\n"
        "from torch.utils.data import DataLoader as DL\n"
        "loader = fastloop.FastLoader(a, in_order=False)\n"
    )


def test_arguments_that_fastloader_drops_are_told_by_its_own_words():
    notes: dict[str, None] = {}
    with collect_notes(notes):
        FastLoader(torch.arange(4), 2, pin_memory=True)
        FastLoader(torch.arange(4), 2, worker_init_fn=print, in_order=False)
    first, second = notes
    assert re.match(r"worker_init_fn=.* has no effect in FastLoader: it is called in worker", first)
    assert second.startswith("in_order=False has no effect in FastLoader: batches come in order")


@pytest.mark.parametrize("is_parallel", [True, False])
def test_dictionary_of_a_condition_is_unpacked(is_parallel):
    """As of `**({"num_workers": 2} if torch.cuda.is_available() else {})`."""
    given = f"{{'num_workers': 2}} if {is_parallel} else {{}}"
    for packed in (given, f"({given})"):
        call = edited_call(f"DataLoader([1, 2, 3], 2, **{packed})", WITHOUT)
        assert eval(ast.unparse(call)).num_workers == 0


def test_values_that_come_from_options_are_found():
    change = Change(settings={"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4})
    source = "loader = DataLoader(a, 1, num_workers=args.n, persistent_workers=True)\n"
    assert find_options(source, 1, change) == {"num_workers": "args.n"}
    by_position = "loader = DataLoader(a, 1, False, None, None, int(n))\n"
    assert find_options(by_position, 1, change) == {"num_workers": "int(n)"}
    assert find_options("loader = DataLoader(a)\n", 1, change) == {}


def test_change_without_a_place_is_told():
    source = "import torch\nif a:\n    pass\nelif use(DataLoader(b)):\n    pass\n"
    with pytest.raises(Unsupported, match="the call on line 4 leaves no place for the change"):
        edit_call(source, 4, Change(torch_threads=1))


def test_class_with_its_type_of_samples_is_found():
    call = edited_call("torch.utils.data.DataLoader[int](a, 8)", FAST)
    assert ast.unparse(call) == "fastloop.FastLoader(a, 8)"


class Made(Generic[T]):
    """As DataLoader, which is generic, too."""

    def __init__(self) -> None:
        self.made_at = place_of_call(cast("DataLoader", self))
        self.place = place_in_script()


def test_place_of_a_call_is_the_scripts_if_typing_carries_it_out():
    plain, typed = Made(), Made[int]()
    assert (typed.made_at, typed.place) == (plain.made_at, plain.place)
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", plain.made_at)


@pytest.mark.parametrize(
    "source",
    [
        b"import torch\r\n\r\nloader = DataLoader(a, 4)\r\n",
        b"import torch\n\x0c\nloader = DataLoader(a, 4)\n",
        "import torch\n# \u2028 a separator\nloader = DataLoader(a, 4)\n".encode(),
    ],
)
def test_patch_of_unusual_lines_is_applied_by_git(tmp_path, source):
    script = tmp_path / "train.py"
    script.write_bytes(source)
    change = Change(settings={"num_workers": 2}, torch_threads=1)
    patch = patch_script(script, 3, change, tmp_path)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch.encode(), check=True)
    end = b"\r\n" if b"\r\n" in source else b"\n"
    changed = b"torch.set_num_threads(1)" + end + b"loader = DataLoader(a, 4, num_workers=2)"
    assert script.read_bytes() == source.replace(b"loader = DataLoader(a, 4)", changed)


def test_command_applies_the_patch_below_a_folder_of_the_same_name(tmp_path):
    """As of a package in a folder of its own in a repository of several."""
    project = tmp_path / "my train"
    script = project / "my train" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text("import torch\nloader = DataLoader(a, 4)\n")
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    patch = tmp_path / "a b.patch"
    patch.write_text(patch_script(script, 2, WITHOUT, project))
    subprocess.run(shlex.split(show_command(patch)), cwd=project, check=True)
    assert script.read_text() == "import torch\nloader = DataLoader(a, 4, num_workers=0)\n"


@pytest.mark.parametrize("link", ["train.py", "link/train.py"])
def test_patch_of_a_script_behind_a_symbolic_link_is_applied_by_git(tmp_path, link):
    script = tmp_path / "real" / "train.py"
    script.parent.mkdir()
    script.write_text("loader = DataLoader(a)\n")
    (tmp_path / "train.py").symlink_to(script)
    (tmp_path / "link").symlink_to(script.parent)
    patch = patch_script(tmp_path / link, 1, WITHOUT, tmp_path)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch.encode(), check=True)
    assert script.read_text() == "loader = DataLoader(a, num_workers=0)\n"
    assert (tmp_path / "train.py").is_symlink()


def test_code_without_a_file_has_no_patch():
    """As the cells of a notebook, which exec() runs."""
    names = {"place_of_call": place_of_call}
    exec("made_at = place_of_call(None)", names)
    assert names["made_at"] == "<string>:1"
    call = patch_call({"made_at": names["made_at"]}, WITHOUT)
    told = "There is no patch: the code comes from no file. Change the call at <string>:1: "
    assert (call.patch, call.advice) == ("", f"{told}num_workers=0")


@pytest.mark.parametrize(
    ("package", "change", "told"),
    [
        (
            "transformers",
            Change(settings={"num_workers": 2, "persistent_workers": True}),
            "set TrainingArguments(dataloader_num_workers=2), "
            "TrainingArguments(dataloader_persistent_workers=True)",
        ),
        (
            "transformers",
            Change(settings={"prefetch_factor": 8}),
            "set TrainingArguments(dataloader_prefetch_factor=8)",
        ),
        ("timm", WITHOUT, "set create_loader(num_workers=0), --workers of train.py"),
        # What the library has no argument for is a part of the change that was tried, too.
        (
            "ultralytics",
            Change(settings={"num_workers": 2, "persistent_workers": True}),
            "set workers=2; it also needs persistent_workers=True",
        ),
        (
            "ultralytics",
            Change(settings={"num_workers": 2}, torch_threads=1),
            "set workers=2, torch.set_num_threads(1)",
        ),
        ("ultralytics", FAST, "it needs fastloop.FastLoader"),
        ("trainer", WITHOUT, "it needs num_workers=0"),
    ],
)
def test_advice_names_the_argument_of_the_library(package, change, told):
    made_at = f"/env/site-packages/{package}/data/build.py:9"
    call = patch_call({"made_at": made_at}, change)
    assert call.patch == ""
    assert call.advice == f"The DataLoader is made inside of a library, at build.py:9: {told}"


def test_script_in_another_encoding_is_told(tmp_path):
    script = tmp_path / "train.py"
    script.write_bytes("# coding: latin-1\nloader = DataLoader('é')\n".encode("latin-1"))
    with pytest.raises(Unsupported, match="is not in UTF-8"):
        patch_script(script, 2, WITHOUT, tmp_path)


def test_class_of_the_scripts_own_gets_only_arguments_that_it_takes():
    source = "loader = MyLoader(samples, 8, 2, None, None, True)\n"
    with pytest.raises(Unsupported, match="line 1: MyLoader takes no num_workers"):
        edit_call(source, 1, WITHOUT, ["samples", "size", "seed", "a", "b", "c"])
    takes = ["samples", "size", "num_workers", "a", "b", "persistent_workers"]
    assert edit_call(source, 1, WITHOUT, takes) == (
        "loader = MyLoader(samples, 8, 0, None, None, False)\n"
    )
    named = "loader = MyLoader(samples, 8)\n"
    assert edit_call(named, 1, WITHOUT, ["samples", "size", ANY_NAME]) == (
        "loader = MyLoader(samples, 8, num_workers=0)\n"
    )
    packed = "loader = MyLoader(samples, **settings)\n"
    assert edit_call(packed, 1, WITHOUT, ["samples", "num_workers"]) == (
        "loader = MyLoader(samples, **{**settings, 'num_workers': 0})\n"
    )


def orders_of_passes(**settings):
    torch.manual_seed(0)
    loader = DataLoader(range(64), batch_size=64, shuffle=True, num_workers=1, **settings)
    return [next(iter(loader)).tolist() for _ in range(2)]


def test_other_order_of_workers_that_stay_is_told(tmp_path, monkeypatch):
    now, kept = orders_of_passes(), orders_of_passes(persistent_workers=True)
    assert now[0] == kept[0]
    assert now[1] != kept[1]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("loader = DataLoader(a, shuffle=True)\n")
    change = Change(settings={"num_workers": 1, "persistent_workers": True})
    for sampler, is_told in (("RandomSampler", True), ("SequentialSampler", False)):
        facts = {"made_at": f"{tmp_path}/train.py:1", "sampler": sampler}
        call = patch_call(facts, change)
        assert call.patch
        assert (OTHER_ORDER in call.notes) is is_told


def sum_in_threads(values, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return values.sum().item()
    finally:
        torch.set_num_threads(before)


def test_other_sums_of_another_number_of_threads_are_told(tmp_path, monkeypatch):
    torch.manual_seed(0)
    many = [torch.rand(1_000_000) for _ in range(8)]
    assert any(sum_in_threads(each, 1) != sum_in_threads(each, 2) for each in many)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\nloader = DataLoader(a)\n")
    places = {
        f"{tmp_path}/train.py:2": "patch",
        f"{tmp_path}/absent.py:2": "advice",
        f"{tmp_path}/site-packages/trainer.py:2": "advice",
    }
    for made_at, way in places.items():
        call = patch_call({"made_at": made_at}, Change(torch_threads=1))
        assert getattr(call, way)
        assert call.notes == (OTHER_SUMS,)
        workers = Change(settings={"num_workers": 1})
        assert OTHER_SUMS not in patch_call({"made_at": made_at}, workers).notes


def test_risks_of_forked_workers_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "loader = DataLoader(a, num_workers=2, multiprocessing_context='spawn')\n"
    (tmp_path / "train.py").write_text(source)
    forked = Change(settings={"multiprocessing_context": "fork"})
    call = patch_call({"made_at": f"{tmp_path}/train.py:1"}, forked)
    assert call.notes == (OF_FORKS,)
    subprocess.run(["git", "apply", "-"], input=call.patch.encode(), check=True)
    assert (tmp_path / "train.py").read_text() == source.replace("spawn", "fork")


HEAD = "import torch\nfrom torch.utils.data import DataLoader\n"


@pytest.mark.parametrize(
    "source",
    [
        "@keep(DataLoader(a))\ndef load(): pass\n",
        "@keep(\n    DataLoader(a))\ndef load(): pass\n",
        "@keep\ndef load(loader=DataLoader(a)):\n    pass\n",
    ],
)
def test_threads_are_set_before_a_function_with_decorators(source):
    line = 3 + source[: source.index("DataLoader")].count("\n")
    edited = edit_call(f"{HEAD}{source}", line, Change(torch_threads=1))
    assert edited == f"{HEAD}torch.set_num_threads(1)\n{source}"


def test_line_that_the_one_before_continues_is_told():
    source = f"{HEAD}if a: \\\nloader = DataLoader(b)\n"
    with pytest.raises(Unsupported, match="line 4 has several statements"):
        edit_call(source, 4, Change(torch_threads=1))


def test_argument_that_names_its_value_is_told():
    """The rest of the script may use the name."""
    source = f"{HEAD}loader = DataLoader(a, num_workers=(n := 2))\n"
    with pytest.raises(Unsupported, match="line 3 also sets n by num_workers"):
        edit_call(source, 3, WITHOUT)
    assert "FastLoader(a, num_workers=(n := 2))" in edit_call(source, 3, FAST)


def test_docstring_stays_the_first_statement():
    source = f'"trains"; import os\n{HEAD}loader = DataLoader(a)\n'
    edited = edit_call(source, 4, FAST)
    assert ast.get_docstring(ast.parse(edited)) == "trains"
    assert edited.startswith('"trains"; import os\nimport fastloop\nimport torch\n')


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (FAST, "the script has no import of its own at its beginning"),
        (Change(torch_threads=1), "the script does not import torch by its name"),
    ],
)
def test_import_after_the_call_is_none_for_it(change, reason):
    with pytest.raises(Unsupported, match=reason):
        edit_call("loader = DataLoader(a)\nimport torch, fastloop\n", 1, change)
