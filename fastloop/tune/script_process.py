"""Run a script that is tuned as it is until its loop asks for its first batch; then the race of the
loop's DataLoader takes the loop's place. This is the first code in its process.

This file is run by its path:
python script_process.py <folder of plan.json> [-m] <script> [its arguments]
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

    from fastloop.explain.attach.by_identity import ByIdentity
    from fastloop.tune.script_plan import ScriptPlan


def probe_for_race(module: ModuleType, folder: str) -> None:
    """Wrap functions of torch.utils.data.dataloader, until the loop asks for its first batch."""
    from fastloop.tune.script_plan import read_plan

    probe = RaceProbe(read_plan(Path(folder)), Path(folder), module)
    module.DataLoader.__init__ = probe.wrap_init(module.DataLoader.__init__)
    iterator = module._BaseDataLoaderIter
    iterator.__init__ = probe.wrap_iterator(iterator.__init__)
    iterator.__next__ = probe.wrap_next(iterator.__next__)


class RaceProbe:
    """Finds the loop's DataLoader, and races others of its kind at the loop's first batch."""

    def __init__(self, plan: ScriptPlan, folder: Path, module: ModuleType) -> None:
        from fastloop.explain.attach.by_identity import ByIdentity

        self.plan = plan
        self.folder = folder
        self.module = module
        loader, iterator = module.DataLoader, module._BaseDataLoaderIter
        self.originals = loader.__init__, iterator.__init__, iterator.__next__
        self.made: ByIdentity[tuple[DataLoader[Any], dict[str, Any]]] = ByIdentity()
        """DataLoaders of the plan, and those that a library has made of them -> the DataLoader that
        the script makes, and its arguments."""

    def wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        """DataLoader.__init__, which keeps the arguments at the place of the plan."""
        from fastloop.explain.attach.loader_places import find_original, place_of_call

        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(loader: DataLoader[Any], *args: Any, **named: Any) -> None:  # noqa: N807
            if place_of_call(loader) == self.plan.made_at:
                bound = signature.bind(loader, *args, **named).arguments
                self.made[loader] = (loader, {**bound})
            original(loader, *args, **named)
            first = find_original(loader, self.made.__contains__)
            # A library has made this DataLoader from the one of the plan, which is raced.
            if first is not None and (planned := self.made.get(first)):
                self.made[loader] = planned

        return __init__

    def wrap_iterator(self, original: Callable[..., None]) -> Callable[..., None]:
        """The iterators' __init__, which keeps the DataLoader, and the place of iter()."""
        from fastloop.explain.attach.loader_places import place_of_pass

        @functools.wraps(original)
        def __init__(  # noqa: N807
            iterator: Any, loader: DataLoader[Any], *args: Any, **named: Any
        ) -> None:
            original(iterator, loader, *args, **named)
            if loader in self.made:
                iterator._fastloop_loader, iterator._fastloop_place = loader, place_of_pass()

        return __init__

    def wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The iterators' __next__, which races and ends the script at the loop's first call."""
        from fastloop.explain.attach.loader_places import place_in_script

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            loader = getattr(iterator, "_fastloop_loader", None)
            if (
                loader is not None
                and (place_in_script() or iterator._fastloop_place) == self.plan.place
                and self.is_planned(loader)
                and (planned := self.made.get(loader))
            ):
                if hasattr(iterator, "_shutdown_workers"):
                    iterator._shutdown_workers()
                self._race(*planned)
            return original(iterator)

        return __next__

    def is_planned(self, loader: DataLoader[Any]) -> bool:
        """False if another DataLoader that the same call has made is the one of the plan.

        A call in a dictionary makes the loaders of training and validation, which one line then
        iterates over.
        """
        from fastloop.explain.attach.loader_facts import count_samples

        wanted = self.plan.num_samples
        lengths = [count_samples(each) for each, _ in self.made.values()]
        return count_samples(loader) == wanted or wanted not in lengths

    def _race(self, loader: DataLoader[Any], arguments: dict[str, Any]) -> NoReturn:
        """Race the loaders, write the outcome, and end the script as `sys.exit` does."""
        kind, iterators = self.module.DataLoader, self.module._BaseDataLoaderIter
        kind.__init__, iterators.__init__, iterators.__next__ = self.originals
        # These modules need a complete torch, which only exists after DataLoader's module.
        from fastloop.explain.attach.early_stop import end_script
        from fastloop.tune.script_plan import STEP_FILE, write_outcome
        from fastloop.tune.script_race import race_in_script

        outcome = race_in_script(self.plan, loader, arguments, self.folder / STEP_FILE)
        write_outcome(self.folder, outcome)
        end_script()


def _start() -> None:
    """Run the script, with the probe in DataLoader's module."""
    # Without -P, Python has put this file's folder first on sys.path.
    if not sys.flags.safe_path:
        del sys.path[0]
    # fastloop need not be on the script's path. The race imports more of it later.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from fastloop.explain.attach.import_hook import DATALOADER_MODULE, ProbeFinder
    from fastloop.explain.attach.script import become_script
    from fastloop.tune.script_process import probe_for_race

    sys.meta_path.insert(0, ProbeFinder(DATALOADER_MODULE, probe_for_race, sys.argv[1]))
    become_script(sys.argv[2:])


if __name__ == "__main__":
    _start()
