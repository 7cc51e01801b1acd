"""Options as the command line would build them, and which there are."""

from __future__ import annotations

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fastloop.config import _build_job, resource_folder
from fastloop.job import Job

REPOSITORY = Path(__file__).resolve().parents[1]
CONF = resource_folder("conf")
MYDATASET = ("dataset=mydataset", "dataset.count=203", "dataset.shape=[5,3]")


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def compose_job(*overrides: str) -> Job:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", overrides=list(overrides))
    return _build_job(OmegaConf.to_container(cfg, resolve=True))
