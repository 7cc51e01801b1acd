"""Run a script until its loop asks for its first batch, and race the loop's DataLoader there.

The script runs unchanged up to this batch. The race then takes the place of the loop, and the
script ends after the race. `fastloop tune --script` starts a new process with this file by its
path:
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
    """Wrap methods in torch.utils.data.dataloader, until the loop asks for its first batch.

    module: torch.utils.data.dataloader. folder: the folder of plan.json.
    """
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
        """DataLoader -> the DataLoader that the script makes at the plan's place, and arguments.
        A DataLoader that a library has made from this one is a key, too."""

    def wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap DataLoader.__init__ to keep the loader and its arguments at the plan's place."""
        from fastloop.explain.attach.loader_places import find_original, place_of_call

        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(loader: DataLoader[Any], *args: Any, **named: Any) -> None:  # noqa: N807
            if place_of_call(loader) == self.plan.made_at:
                bound = signature.bind(loader, *args, **named).arguments
                self.made[loader] = (loader, {**bound})
            original(loader, *args, **named)
            first = find_original(loader, self.made.__contains__)
            # A library has made this DataLoader from the one of the plan. The race runs when the
            # loop iterates over it, with the DataLoader of the plan.
            if first is not None and (planned := self.made.get(first)):
                self.made[loader] = planned

        return __init__

    def wrap_iterator(self, original: Callable[..., None]) -> Callable[..., None]:
        """Wrap the iterators' __init__ to keep the DataLoader and the place of the iter() call."""
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
        """Wrap the iterators' __next__ to race at the loop's first call, and end the script."""
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
        """True if this DataLoader has the plan's number of samples, or if no other one has it.

        One call may make several DataLoaders, such as a dictionary comprehension for training and
        validation, and one line may iterate over all of them. The number of samples tells them
        apart.
        """
        from fastloop.explain.attach.loader_facts import count_samples

        wanted = self.plan.num_samples
        lengths = [count_samples(each) for each, _ in self.made.values()]
        return count_samples(loader) == wanted or wanted not in lengths

    def _race(self, loader: DataLoader[Any], arguments: dict[str, Any]) -> NoReturn:
        """Race the loaders, write the outcome, and end the script as `sys.exit` does."""
        kind, iterators = self.module.DataLoader, self.module._BaseDataLoaderIter
        kind.__init__, iterators.__init__, iterators.__next__ = self.originals
        # These modules import torch, which is not complete yet when the probe is installed.
        from fastloop.explain.attach.early_stop import end_script
        from fastloop.tune.script_plan import STEP_FILE, write_outcome
        from fastloop.tune.script_race import race_in_script

        outcome = race_in_script(self.plan, loader, arguments, self.folder / STEP_FILE)
        write_outcome(self.folder, outcome)
        end_script()


def _start() -> None:
    """Run the script that the command line names, with the probe in DataLoader's module."""
    # Without -P, Python has put this file's folder first on sys.path. The script must not import
    # from it.
    if not sys.flags.safe_path:
        del sys.path[0]
    # The folder that contains fastloop is added last, as the script's path may lack it.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from fastloop.explain.attach.import_hook import DATALOADER_MODULE, ProbeFinder
    from fastloop.explain.attach.script import become_script
    from fastloop.tune.script_process import probe_for_race

    sys.meta_path.insert(0, ProbeFinder(DATALOADER_MODULE, probe_for_race, sys.argv[1]))
    become_script(sys.argv[2:])


if __name__ == "__main__":
    _start()
