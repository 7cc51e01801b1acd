"""What of Hydra 1.3 is changed: where flags may stand, and what jobs are handed out unseen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal import utils as hydra_utils
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, open_dict, read_write

Look = Callable[[Iterator[DictConfig]], None]
"""It gets each configuration as the task function does: with HydraConfig as it is for that one."""

Looked = Callable[[list[DictConfig]], None]


def allow_flags_anywhere() -> None:
    """Let `-m` stand before the last override, as Hydra 1.4 does (facebookresearch/hydra#3133).

    Hydra 1.3 refuses `loader=x -m trials=20`, because argparse takes all positionals at once.
    """
    plain = hydra_utils.get_args_parser

    def get_args_parser() -> Any:
        parser = plain()
        parser.parse_args = parser.parse_intermixed_args
        return parser

    hydra_utils.get_args_parser = get_args_parser
    # `import hydra.main` gives the function of that name, so the module is looked up here.
    vars(sys.modules["hydra.main"])["get_args_parser"] = get_args_parser


class Looking(Launcher):
    """A launcher whose jobs are looked at before the first of them is handed out."""

    def __init__(self, inner: Launcher, look: Look) -> None:
        self.inner = inner
        self.look = look
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, config: DictConfig, **_: Any) -> None:
        """Keep what says how a job is composed; the inner one has been set up."""
        self.hydra_context, self.config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Hand them out, unless looking at one raises."""
        setup_globals()
        before = HydraConfig.instance().cfg
        numbered = enumerate(job_overrides, initial_job_idx)
        self.look(self._composed(list(overrides), number) for number, overrides in numbered)
        HydraConfig.instance().cfg = before
        try:
            return self.inner.launch(job_overrides, initial_job_idx)
        except Exception as why:  # whatever the launcher's own are: no cluster, a job that is gone
            name = self.config.hydra.runtime.choices["hydra/launcher"] if self.config else ""
            said = " ".join(str(why).split("\n")[:2]).strip() or type(why).__name__
            raise CompactHydraException(f"hydra/launcher={name}: {said}") from why

    def _composed(self, overrides: list[str], number: int) -> DictConfig:
        """The job's configuration as hydra.core.utils.run_job hands it to the task function."""
        assert self.hydra_context is not None
        assert self.config is not None
        found = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with read_write(found.hydra), open_dict(found):
            found.hydra.job.id = found.hydra.job.num = number
            HydraConfig.instance().set_config(found)
        folder = Path(found.hydra.sweep.dir) / str(found.hydra.sweep.subdir)
        with read_write(found.hydra), open_dict(found):
            found.hydra.runtime.output_dir = str(folder.absolute())
            HydraConfig.instance().set_config(found)
        with read_write(found), open_dict(found):
            del found["hydra"]
        return found


@contextmanager
def looking_first(look: Look) -> Iterator[None]:
    """Call that with every configuration of a sweep before a launcher with processes of its own
    (joblib, ray, submitit) starts the first of them; Hydra's own starts none."""
    plain = Plugins.instantiate_launcher

    def instantiate_launcher(self: Plugins, **parts: Any) -> Launcher:
        found = plain(self, **parts)
        if type(found).__qualname__ == BasicLauncher.__qualname__:
            return found  # by its name: Hydra's plugins may have been imported a second time
        looking = Looking(found, look)
        looking.setup(**parts)
        return looking

    Plugins.instantiate_launcher = instantiate_launcher  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        Plugins.instantiate_launcher = plain
