"""The few small wheels that `make gpu` needs besides torch and its dependencies.

On a machine with a network, they are fetched into a folder:

    python -m experiments.gpu.wheels FOLDER [--python-version 3.12]

The machine with the GPU may have no network. It needs torch, torchvision, numpy, scipy,
scikit-learn, matplotlib, pillow, psutil, tqdm, filelock, pytest and hypothesis; `make gpu
WHEELS=FOLDER` takes the rest from the folder.
"""

import argparse
import subprocess
import sys
from pathlib import Path

WITH_DEPENDENCIES = ("pydantic", "optree", "pyvers>=0.2,<0.3", "cloudpickle")
"""Packages that pip resolves, because pydantic requires one version of pydantic-core."""
WITHOUT_DEPENDENCIES = ("tensordict", "simplejpeg", "dm-tree", "absl-py", "attrs", "wrapt")
"""Packages without their dependencies, which are installed (torch, numpy) or are in one of the
lists."""
NEEDED = ("pydantic", "optree", "tensordict")
"""Modules without which nothing runs. Without the others, some options are unsupported."""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 24, 17, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
MOST_MIB = 60


def fetch(folder: Path, python_version: str) -> list[Path]:
    """Fetch the wheels into the folder. Raises CalledProcessError if pip fails."""
    common = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    common += ["--implementation", "cp", "--python-version", python_version, "--dest", str(folder)]
    common += [word for platform in PLATFORMS for word in ("--platform", platform)]
    subprocess.run([*common, *WITH_DEPENDENCIES], check=True)
    subprocess.run([*common, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
    return sorted(folder.glob("*.whl"))


def install(folder: Path, site: Path) -> None:
    """Install every wheel of the folder into `site`, without a network.

    Raises FileNotFoundError if the folder has none, CalledProcessError if pip fails.
    """
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise FileNotFoundError(
            f"{folder} has no wheels: python -m experiments.gpu.wheels {folder}"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-compile", "--no-cache-dir", "--upgrade", "--target", str(site)]
    subprocess.run([*command, *wheels], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python-version", default="3.12", help="of the machine with the GPU")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if any(arguments.folder.glob("*.whl")):
        print(f"{arguments.folder} already has wheels: choose an empty folder")
        return 1
    wheels = fetch(arguments.folder, arguments.python_version)
    sizes = [wheel.stat().st_size / 2**20 for wheel in wheels]
    for wheel, size in zip(wheels, sizes, strict=True):
        print(f"{size:6.2f} MiB  {wheel.name}")
    print(f"{sum(sizes):6.2f} MiB  in {len(wheels)} wheels")
    return int(sum(sizes) > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
