"""torch's random functions redirected to generators of one thread.

A process has one default generator of torch for the CPU and one for each GPU, from which the loop
may draw at any moment. Other threads that read samples draw from generators of their own instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

TAKES_GENERATOR = frozenset(
    (
        "bernoulli",
        "bernoulli_",
        "binomial",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "multinomial",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "randint",
        "randint_like",
        "randn",
        "random_",
        "randperm",
        "uniform_",
        "_sample_dirichlet",
        "_standard_gamma",
    )
)
"""Functions and methods of torch that draw, and accept a generator."""
FILLS_LIKE = {"rand_like": torch.Tensor.uniform_, "randn_like": torch.Tensor.normal_}
"""Functions that accept a generator in recent versions only, and the method that fills their
result."""
HIDES_DRAWS = frozenset(
    (
        "alpha_dropout",
        "alpha_dropout_",
        "dropout",
        "dropout_",
        "feature_dropout",
        "feature_dropout_",
        "feature_alpha_dropout",
        "feature_alpha_dropout_",
        "native_dropout",
        "rrelu",
        "rrelu_",
        "scaled_dot_product_attention",
    )
)
"""Functions in C that draw inside, and to which no generator can be passed. Functions in Python,
such as torch.nn.init's, are all treated as if they did."""
WITH_GENERATOR = {"default": "generator", "low": "low_generator"}
"""Overloads of an operation that draws, and the one that accepts a generator."""


DEFAULT_NAME, GENERATOR_NAME = "default_generator", "_fastloop_generator"
"""Names in torch.random of torch's generator, and of the one that its functions use instead."""
FORK_NAME, SKIP_NAME = "_is_in_bad_fork", "_fastloop_is_private"
"""Names in torch.cuda, torch.xpu and the like of the function that keeps torch.manual_seed from the
generators of these devices, and of the one that it asks instead."""
_redirecting = threading.Lock()
_active = threading.local()
"""draws: the PrivateDraws that the thread has entered, the innermost last."""


class _ThreadsGenerator:
    """torch's default generator; in a thread with PrivateDraws the generator of that thread."""

    def __getattr__(self, name: str) -> Any:
        draws = getattr(_active, "draws", None)
        return getattr(draws[-1].generator() if draws else torch.default_generator, name)


def _redirect_seeds() -> None:
    """Let torch.manual_seed, get_rng_state, set_rng_state and fork_rng reach a thread's generator.

    A sample may seed torch by itself, as torchvision's FakeData does. No mode sees these functions.
    In such a thread torch.manual_seed leaves the generators of GPUs alone, from which the loop may
    be drawing.
    """
    module: Any = torch.random
    with _redirecting:
        if hasattr(module, GENERATOR_NAME):
            return
        setattr(module, GENERATOR_NAME, _ThreadsGenerator())
        # These functions may have been imported under any name. Therefore each function itself is
        # changed: it looks up another name in torch.random. The name default_generator there keeps
        # torch's own generator, as programs pass it as generator=, which takes nothing else.
        for function in [each for each in vars(module).values() if isinstance(each, FunctionType)]:
            code, names = function.__code__, function.__code__.co_names
            if DEFAULT_NAME in names and function.__module__ == module.__name__:
                for device in filter(None, (getattr(torch, name, None) for name in names)):
                    if hasattr(device, FORK_NAME):
                        setattr(device, SKIP_NAME, partial(_skips, getattr(device, FORK_NAME)))
                new_names = {DEFAULT_NAME: GENERATOR_NAME, FORK_NAME: SKIP_NAME}
                renamed = tuple(new_names.get(name, name) for name in names)
                function.__code__ = code.replace(co_names=renamed)


def _skips(is_in_bad_fork: Callable[[], bool]) -> bool:
    """True if torch.manual_seed must not seed the generators of a kind of device."""
    return is_in_bad_fork() or is_redirected()


class PrivateDraws(TorchFunctionMode):
    """A mode, of one thread, in which torch's functions draw from a generator of that thread.

    It is seeded with `make_seed()` at the first draw after `restart()`, or by a seed that samples
    set themselves with torch.manual_seed. So is a generator for each GPU on which they draw, though
    not by torch.manual_seed. A call costs 1 us more in this mode, a seed 1 us; with an explicit
    generator a function draws from that.
    """

    def __init__(self, make_seed: Callable[[], int]) -> None:
        super().__init__()
        self._make_seed = make_seed
        self._generators = {"cpu": torch.Generator("cpu")}
        self._seeded: set[str] = set()

    def __enter__(self) -> PrivateDraws:
        _redirect_seeds()
        _active.draws = [*getattr(_active, "draws", ()), self]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _active.draws = _active.draws[:-1]

    def restart(self) -> None:
        """Seed the generators anew at the next draw."""
        self._seeded.clear()

    @property
    def generator_names(self) -> set[str]:
        """The names of the global generators in the place of which something was drawn since
        `restart`."""
        return {"torch" if name == "cpu" else name.partition(":")[0] for name in self._seeded}

    def generator(self, device: Any = "cpu") -> torch.Generator:
        """The thread's generator for a device, seeded."""
        name = _name_of(device)
        if name not in self._seeded:
            self._seeded.add(name)
            if name not in self._generators:
                self._generators[name] = torch.Generator(name)
            self._generators[name].manual_seed(self._make_seed())
        return self._generators[name]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        # The user has passed a generator: it is used in every thread.
        if kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if name in TAKES_GENERATOR:
            generator = self.generator(_device_of(args, kwargs))
            return func(*args, **kwargs | {"generator": generator})
        if name in FILLS_LIKE:
            others = {key: value for key, value in kwargs.items() if key != "generator"}
            empty = torch.empty_like(*args, **others)
            return FILLS_LIKE[name](empty, generator=self.generator(empty.device))
        # Dispatch costs more per operation, so that it is only entered for these.
        if name in HIDES_DRAWS or isinstance(func, FunctionType):
            with _HiddenDraws(self.generator):
                return func(*args, **kwargs)
        return func(*args, **kwargs)


class _HiddenDraws(TorchDispatchMode):
    """A mode in which the operations below torch's functions draw from the generator."""

    def __init__(self, generator: Callable[[Any], torch.Generator]) -> None:
        super().__init__()
        self._generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            # The overload that was called may lack the argument, which its sibling has.
            overload = WITH_GENERATOR.get(func._overloadname, "")
            func = getattr(func.overloadpacket, overload, func) if overload else func
            if not any(argument.name == "generator" for argument in func._schema.arguments):
                reason = "it takes no generator; num_threads=0 reads samples in the loop"
                raise RuntimeError(f"{func} draws random numbers in a thread: {reason}")
            kwargs = kwargs | {"generator": self._generator(_device_of(args, kwargs))}
        return func(*args, **kwargs)


def _device_of(args: tuple, kwargs: dict[str, Any]) -> Any:
    """The device on which a function of torch with these arguments draws."""
    if kwargs.get("device") is not None:
        return kwargs["device"]
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return "cpu" if value.is_cpu else value.device
    # Only a mode around this one, such as that of `with torch.device("cuda")`, sets another device.
    return torch.get_default_device() if torch._C._len_torch_function_stack() else "cpu"


def _name_of(device: Any) -> str:
    """A device's name for torch.Generator, with its number if it has one."""
    if device == "cpu":
        return "cpu"
    device = torch.device(device)
    # Tensors of the device meta have no values.
    if device.type in ("cpu", "meta"):
        return "cpu"
    number = torch.accelerator.current_device_index() if device.index is None else device.index
    return f"{device.type}:{number}"


def is_redirected() -> bool:
    """True in a thread of another loader, a sample of which iterates over this one.

    Its draws are redirected, and other threads draw from the global generators meanwhile.
    """
    return bool(getattr(_active, "draws", None))
