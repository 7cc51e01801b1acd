"""PrivateDraws, a mode in which torch's random functions draw from a generator of one thread.

A process has one default generator of torch, from which the loop may draw at any moment. Other
threads that read samples draw from generators of their own instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fastloop.fastloader.sample_draws import call_at_begin, sample_seed

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
"""Functions and methods of torch that draw random numbers and accept a generator."""
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
"""Functions in C that draw inside, and to which no generator can be passed. All functions in
Python, such as torch.nn.init's, are treated like these."""
WITH_GENERATOR = {"default": "generator", "low": "low_generator"}
"""An overload of an operation that draws -> the overload that accepts a generator."""


DEFAULT_NAME, GENERATOR_NAME = "default_generator", "_fastloop_generator"
"""Names in torch.random of torch's generator, and of the one that its functions use instead."""
_redirecting = threading.Lock()
_active = threading.local()
"""Its attribute `draws` has the PrivateDraws that the thread has entered, the innermost last."""


class _ThreadsGenerator:
    """torch's default generator; in a thread with PrivateDraws the generator of that thread."""

    def __getattr__(self, name: str) -> Any:
        draws = getattr(_active, "draws", None)
        return getattr(draws[-1].generator() if draws else torch.default_generator, name)


def _redirect_seeds() -> None:
    """Make torch.manual_seed, get_rng_state, set_rng_state and fork_rng use a thread's generator.

    A sample may seed torch by itself, as torchvision's FakeData does. A mode of torch does not
    intercept these functions.
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
            code = function.__code__
            names = code.co_names
            if DEFAULT_NAME in names and function.__module__ == module.__name__:
                renamed = tuple(GENERATOR_NAME if n == DEFAULT_NAME else n for n in names)
                function.__code__ = code.replace(co_names=renamed)


class PrivateDraws(TorchFunctionMode):
    """A mode, of one thread, in which torch's functions draw from a generator of that thread.

    The thread's generator is seeded with `sample_seed()` at the first draw after `restart()`, or
    with a seed that samples set themselves by torch.manual_seed. A call costs 1 us more in this
    mode, a seed 1 us. A function that is passed a generator draws from that generator, and a
    function on a GPU draws from the GPU's own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator("cpu")
        self._is_seeded = False

    def __enter__(self) -> PrivateDraws:
        _redirect_seeds()
        _active.draws = [*getattr(_active, "draws", ()), self]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _active.draws = _active.draws[:-1]

    def restart(self) -> None:
        """Make the next draw seed the generator again."""
        self._is_seeded = False

    @property
    def has_drawn(self) -> bool:
        """True if something was drawn since `restart`."""
        return self._is_seeded

    def generator(self) -> torch.Generator:
        """The thread's generator, seeded."""
        if not self._is_seeded:
            self._is_seeded = True
            self._generator.manual_seed(sample_seed())
        return self._generator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        # The user has passed a generator: it is used in every thread.
        if kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if name in TAKES_GENERATOR:
            if _draws_on_cpu(args, kwargs):
                kwargs = kwargs | {"generator": self.generator()}
            return func(*args, **kwargs)
        if name in FILLS_LIKE and _draws_on_cpu(args, kwargs):
            others = {key: value for key, value in kwargs.items() if key != "generator"}
            return FILLS_LIKE[name](torch.empty_like(*args, **others), generator=self.generator())
        # Intercepting operations costs more per call, so this mode is entered only for these
        # functions.
        if name in HIDES_DRAWS or isinstance(func, FunctionType):
            with _HiddenDraws(self.generator):
                return func(*args, **kwargs)
        return func(*args, **kwargs)


@contextmanager
def draw_privately() -> Iterator[None]:
    """Redirect torch's draws in this thread to a generator that is seeded for each sample."""
    draws = PrivateDraws()
    with call_at_begin(draws.restart), draws:
        yield


class _HiddenDraws(TorchDispatchMode):
    """A mode in which the operations below torch's functions draw from the generator."""

    def __init__(self, generator: Callable[[], torch.Generator]) -> None:
        super().__init__()
        self._generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and _draws_on_cpu(args, kwargs):
            # The overload that was called may lack the argument, which its sibling has.
            overload = WITH_GENERATOR.get(func._overloadname, "")
            func = getattr(func.overloadpacket, overload, func) if overload else func
            if not any(argument.name == "generator" for argument in func._schema.arguments):
                reason = "so its random numbers can't be seeded for a sample in a thread"
                hint = "num_threads=0 reads samples in the loop"
                raise RuntimeError(f"{func} has no argument generator, {reason}; {hint}")
            kwargs = kwargs | {"generator": self._generator()}
        return func(*args, **kwargs)


def _draws_on_cpu(args: tuple, kwargs: dict[str, Any]) -> bool:
    """True unless a function of torch with these arguments draws on another device.

    A generator belongs to one device, and torch refuses it on any other.
    """
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"]).type == "cpu"
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value.is_cpu
    # A device set by `with torch.device(...)` or torch.set_default_device reaches the arguments
    # only after this mode has seen them.
    return torch.get_default_device().type == "cpu"


def is_redirected() -> bool:
    """True in a thread of another loader, a sample of which iterates over this one.

    Its draws are redirected, and other threads draw from the global generators meanwhile.
    """
    return bool(getattr(_active, "draws", None))


def is_own_mode(mode: Any) -> bool:
    """True for a mode that redirects draws in a thread of a loader."""
    return isinstance(mode, PrivateDraws | _HiddenDraws)
