"""Suggest the setting, option or command that a wrong name probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fastloop.config.catalogue import options_of, setting_names
from fastloop.core.similar_names import closest_name, suggest

RAW = "loader=raw is torch's DataLoader over the dataset itself"
"""Hint for names of torch's loader."""
FOLDER = "dataset=image_folder dataset.root=<folder> reads a folder per class"
"""Hint for names of folders of images."""
OPTION_WORDS: Mapping[str, Mapping[str, str]] = {
    "loader": {
        "torch": RAW,
        "pytorch": RAW,
        "torchdata": RAW,
        "default": RAW,
        "data_loader": RAW,
        "fastloader": "did you mean loader=fastloop?",
        "memmap": "did you mean loader=np_memmap?",
        "numpy": "did you mean loader=numpy_loop or loader=np_memmap?",
        "mosaic": "loader._target_=<module>.<function> measures a loader of your own",
    },
    "dataset": {
        "imagenet": FOLDER,
        "images": FOLDER,
        "folder": FOLDER,
        "cifar10": "dataset._target_=torchvision.datasets.CIFAR10 takes a Dataset of any package",
        "cifar100": "dataset._target_=torchvision.datasets.CIFAR100 takes a Dataset of any package",
        "mnist": "did you mean dataset=fashion_mnist? dataset=digits needs no download",
        "random": "did you mean dataset=synthetic?",
        "fake": "did you mean dataset=synthetic?",
    },
    "order": {
        "shuffle": "did you mean order=random?",
        "shuffled": "did you mean order=random?",
        "none": "did you mean order=sequential?",
        "ordered": "did you mean order=sequential?",
    },
    "benchmark": {
        "throughput": "did you mean benchmark=traversal?",
        "loading": "did you mean benchmark=traversal?",
        "train": "did you mean benchmark=training?",
    },
    "transform": {
        "resize": "did you mean transform=center_crop, which resizes first? "
        "dataset.size=[224,224] resizes images as they are decoded",
        "crop": "did you mean transform=random_resized_crop or transform=center_crop?",
    },
    "model": {
        "resnet50": "did you mean model=resnet18? model._target_=torchvision.models.resnet50 "
        "takes a model of any package",
        "resnet": "did you mean model=resnet18?",
        "mlp": "did you mean model=toynet?",
    },
    "hydra/sweeper": {
        "optuna": "`fastloop tune` searches for the fastest settings",
        "ax": "`fastloop tune` searches for the fastest settings",
        "nevergrad": "`fastloop tune` searches for the fastest settings",
    },
}
"""Group -> name in other programs -> hint at the option that does the same here."""
RESULTS = "results are files in outputs/ or $FASTLOOP_OUTPUTS; fastloop report writes a CSV file"
"""Hint for settings that name an output file."""
SETTING_WORDS: Mapping[str, str] = {
    "shuffle": "order=random shuffles, order=sequential does not",
    "sampler": "order=random, order=weighted and others are its options",
    "store": "a loader has a store of its own; store@loader.store=<option> picks another",
    "workers": "did you mean num_workers?",
    "num_worker": "did you mean num_workers?",
    "threads": "did you mean torch_threads, or loader.num_threads of loader=fastloop?",
    "bs": "did you mean batch_size?",
    "batch": "did you mean batch_size?",
    "lr": "did you mean learning_rate?",
    "gpu": "did you mean device=cuda?",
    "cuda": "did you mean device=cuda?",
    "amp": "did you mean precision=bf16?",
    "repeat": "did you mean trials?",
    "repeats": "did you mean trials?",
    "runs": "did you mean trials?",
    "optimizer": "model._target_=<module>.<class> brings its own, see docs/your-own.md",
    "size": "did you mean dataset.size?",
    "output": RESULTS,
    "outputs": RESULTS,
    "out": RESULTS,
    "csv": RESULTS,
    "quiet": "progress goes to stderr: 2>/dev/null leaves it out",
    "silent": "progress goes to stderr: 2>/dev/null leaves it out",
    "verbose": "`--cfg job` shows the configuration",
    "budget": "`fastloop tune` has a budget; seconds=<number> ends a sweep",
    "time": "seconds=<number> ends a sweep",
    "timeout": "did you mean trial_timeout_s?",
}
"""Setting of other programs -> hint at the setting that does the same here."""
FLAG_WORDS: Mapping[str, str] = {
    "dry_run": "--cfg job shows the configuration and runs nothing",
    "output": RESULTS,
    "quiet": "progress goes to stderr: 2>/dev/null leaves it out",
    "verbose": "--cfg job shows the configuration",
    "list": "fastloop list shows all groups and options",
    "open": "fastloop report --open opens the report of the newest sweep",
}
"""Flag of other programs -> hint at the command that does the same here."""
SYNONYMS = (
    ("root", "path", "folder", "dir", "directory", "data_dir", "data_root", "data"),
    ("count", "num_samples", "samples", "length", "n"),
    ("num_threads", "threads", "num_workers", "workers"),
    ("size", "resize", "image_size", "shape"),
)
"""Tuples of synonyms. The first name in a tuple that is a known setting is suggested for all."""


def option_hint(group: str, option: str, options: Sequence[str]) -> str:
    """A hint at the option that a wrong name probably meant; empty if there is no guess.

    option: the wrong name. options: names of the group's options.
    """
    if option in ("all", "*"):
        return f"all options are -m '{group}=glob(*)'"
    if hint := OPTION_WORDS.get(group, {}).get(option.lower().replace("-", "_")):
        return hint
    close = closest_name(option, options)
    return suggest(f"{group}={close}" if close else "")


def setting_hint(name: str, known_names: Iterable[str]) -> str:
    """A hint at the setting that a wrong name probably meant; empty if there is no guess.

    known_names: dotted names of all settings.
    """
    known = list(known_names)
    if name in SETTING_WORDS:
        return SETTING_WORDS[name]
    group, dot, last = name.rpartition(".")
    if not dot:
        return _of_an_option(name, known) or suggest(_closest(name, known))
    if last in setting_names():
        return suggest(last)
    if same := same_setting(last, [each for each in known if each.rpartition(".")[0] == group]):
        return suggest(same)
    return suggest(_closest(name, known))


def same_setting(last: str, known: Iterable[str]) -> str:
    """The known setting with a dotted name that ends in a synonym of `last`; empty if none does."""
    by_last = {each.rpartition(".")[2]: each for each in known}
    for words in SYNONYMS:
        if last in words:
            return next((by_last[word] for word in words if word in by_last), "")
    return ""


def describe_flag(message: str, arguments: Sequence[str]) -> str:
    """The message for an error of argparse, with a hint if it is about an unknown flag.

    message: argparse's own message. arguments: the arguments of the command line.
    """
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown == message:
        return f"{message}; --hydra-help lists all flags"
    flag, equals, value = unknown.split()[0].partition("=")
    name = flag.lstrip("-").replace("-", "_")
    if name in FLAG_WORDS:
        return f"{flag}: no such flag; {FLAG_WORDS[name]}"
    if name in setting_names() or options_of(name):
        # Other programs spell this `--batch_size 64`. argparse has split the value off.
        position = list(arguments).index(flag) if flag in arguments else len(arguments)
        following = [*arguments[position + 1 : position + 2]] if not equals else [value]
        value = next((each for each in following if not re.search(r"^-|=", each)), "…")
        return f"{flag}: settings are written without dashes: {name}={value}"
    hint = setting_hint(name, setting_names())
    return f"{unknown}: no such flag; {hint or '--hydra-help lists all flags'}"


def _of_an_option(name: str, known: Sequence[str]) -> str:
    """A hint at an option's setting of this name, or at a dataset's setting with a synonym.

    If several groups have a setting of this name, the first group of the list below counts. Empty
    if there is no guess.
    """
    for group in ("dataset", "loader", "transform", "order", "collate", "model"):
        if f"{group}.{name}" in known:
            return suggest(f"{group}.{name}")
    of_datasets = [each for each in known if each.startswith("dataset.")]
    return suggest(same_setting(name, of_datasets) if name != "num_workers" else "")


def _closest(name: str, known: Sequence[str]) -> str:
    """The most similar known name; empty if none is similar.

    If the group of `name` exists, only names of this group are compared.
    """
    group, _, last = name.rpartition(".")
    of_group = [each for each in known if each.rpartition(".")[0] == group]
    by_last = {each.rpartition(".")[2]: each for each in of_group} or {each: each for each in known}
    close = by_last.get(closest_name(last if of_group else name, by_last), "")
    return close if close != name else ""
