"""The contract of every execution found in conf/execution, and of every precision."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from threading import Event

import psutil
import pytest
import torch
from options import compose_job, options
from steps import batches_for, losses_of, setup_of, step_job

from fastloop.ahead.thread import by_thread
from fastloop.job import check_support
from fastloop.profiling import profile_paths
from fastloop.spans import now_ns
from fastloop.trial import run_instrumented, run_profiled, run_trial
from fastloop.types import Leaves, Unsupported

EXECUTIONS = options("execution")
HERE = {"eager", "compiled"}
"""Those that need no GPU."""
BENCHMARKS = ("training", "inference")
gpu = pytest.mark.gpu
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")


@pytest.fixture(autouse=True)
def compiles_here(shared_outputs, monkeypatch):
    """What is compiled goes to the tests' outputs; no test finds what others have compiled."""
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(shared_outputs))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    yield
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def runs_here(execution: str, benchmark: str, device: str = "cpu") -> None:
    """Skip where the execution is unsupported here; what needs no GPU must be supported."""
    job = compose_job(f"execution={execution}", f"benchmark={benchmark}", f"device={device}")
    try:
        check_support(job)
    except Unsupported as why:
        if execution in HERE and "compiler" not in str(why):
            raise
        pytest.skip(str(why))


def answers_of(job, setup, batches) -> list[float]:
    """Of one inference start on these batches."""
    job.benchmark["inference"].start(lambda one: one, setup)
    _, answer = setup.kept["inference"]
    return [float(answer(source, targets)) for source, targets in batches]


def figures(job, benchmark, setup, batches) -> list[float]:
    return (losses_of if benchmark == "training" else answers_of)(job, setup, batches)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(("model", "benchmark"), [("toynet", "training"), ("toynet", "inference")])
def test_its_figures_are_those_of_an_eager_step(model, execution, benchmark):
    runs_here(execution, benchmark)
    batches = batches_for(model)
    plain, job = (
        step_job(model, f"benchmark={benchmark}", f"execution={name}", "device=cpu")
        for name in ("eager", execution)
    )
    wanted = figures(plain, benchmark, setup_of(plain, model), batches)
    assert figures(job, benchmark, setup_of(job, model), batches) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("dynamic", ["null", "true"])
def test_nothing_is_compiled_after_the_warm_up_not_even_for_the_last_short_batch(dynamic):
    runs_here("compiled", "training")
    model, dynamic = "toynet", f"execution.dynamic={dynamic}"
    job = step_job(model, "execution=compiled", dynamic, "benchmark=training")
    setup, batches = setup_of(job, model), batches_for(model)
    first = losses_of(job, setup, batches)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert losses_of(job, setup, batches) == pytest.approx(first, rel=1e-5)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            losses_of(job, setup_of(job, model), batches_for(model, sizes=(5, 1)))


def test_what_is_compiled_lies_in_the_outputs_and_leaves_no_process(prepared_job, shared_outputs):
    runs_here("compiled", "training")
    temporary = Path(tempfile.gettempdir())
    before = {path.name for path in temporary.iterdir()}, psutil.Process().children(recursive=True)
    job, prepared = prepared_job("execution=compiled", "epochs=1", "benchmark=[training,inference]")
    trial = run_trial(job, prepared, 0, now_ns())
    assert len(trial.benchmarks["training"].losses) == 1
    assert any((shared_outputs / "compiled").iterdir())
    after = {path.name for path in temporary.iterdir()}, psutil.Process().children(recursive=True)
    assert after == before
    seen = run_instrumented(job, prepared, "inference")
    assert len(seen.wait_s) == -(-prepared.num_samples // job.batch_size)


@pytest.mark.parametrize("by_the_user", [True, False])
def test_what_is_compiled_lies_where_the_user_says_or_in_the_outputs(
    shared_outputs, tmp_path, monkeypatch, by_the_user
):
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # dynamo names a folder of its own as soon as it is imported, which tensordict does
    given = str(tmp_path) if by_the_user else default_cache_dir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", given)
    job = compose_job("execution=compiled", "device=cpu")
    job.execution.forward(torch.nn.Linear(2, 2), torch.device("cpu"))
    wanted = str(tmp_path if by_the_user else shared_outputs / "compiled")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == wanted


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_without_a_model_to_run_it_is_unsupported(execution):
    job = compose_job(f"execution={execution}", "benchmark=traversal")
    if execution == "eager":
        check_support(job)
        return
    with pytest.raises(Unsupported, match=f"execution={execution}: no model runs in benchmark=tra"):
        check_support(job)
    with pytest.raises(Unsupported, match="precision=bf16: no model runs in benchmark=traversal"):
        check_support(compose_job("precision=bf16", "benchmark=traversal"))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("execution=cuda_graph", "execution=cuda_graph needs a CUDA device, device is cpu"),
        ("execution=data_parallel", "needs two CUDA devices, . are here and device is cpu"),
        ("execution=tensorrt", "execution=tensorrt runs no training: benchmark=inference"),
        ("execution=tensorrt benchmark=inference", "execution=tensorrt needs "),
    ],
)
def test_what_a_cpu_can_not_run_is_unsupported_with_its_reason(overrides, said):
    with pytest.raises(Unsupported, match=said):
        check_support(compose_job(*overrides.split(), "device=cpu"))


def test_without_a_compiler_it_is_unsupported_with_the_command_that_installs_one(monkeypatch):
    job = compose_job("execution=compiled", "device=cpu")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unsupported, match=r"no-such-compiler is not here: apt-get install g\+\+"):
        check_support(job)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("model", ["toynet", "resnet18", "transformer"])
def test_a_lower_precision_is_near_and_not_the_same(model, precision, benchmark):
    names = ("device=cpu", "learning_rate=0.001", f"benchmark={benchmark}")
    full, low = (step_job(model, *names, f"precision={one}") for one in ("float32", precision))
    batches = batches_for(model)
    wanted = figures(full, benchmark, setup_of(full, model), batches)
    setup = setup_of(low, model)
    got = figures(low, benchmark, setup, batches)
    assert got != wanted
    assert got == pytest.approx(wanted, rel=0.1, abs=0.5)
    if benchmark == "training":
        assert losses_of(low, setup, batches) == got


@gpu
@no_gpu
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_on_cuda_a_lower_precision_is_near_and_begins_anew(precision, benchmark):
    names = ("device=cuda", "learning_rate=0.001", f"benchmark={benchmark}")
    full, low = (step_job("toynet", *names, f"precision={one}") for one in ("float32", precision))
    batches = batches_for("toynet", "cuda")
    wanted = figures(full, benchmark, setup_of(full, "toynet"), batches)
    setup = setup_of(low, "toynet")
    got = figures(low, benchmark, setup, batches)
    assert got != wanted
    assert got == pytest.approx(wanted, rel=0.1, abs=0.1)
    assert figures(low, benchmark, setup, batches) == pytest.approx(got, rel=1e-3, abs=1e-3)


@gpu
@no_gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_captured_step_at_lower_precision(precision):
    names = ("device=cuda", "execution=cuda_graph", f"precision={precision}")
    job = step_job("toynet", *names, "benchmark=training")
    if precision == "fp16":
        with pytest.raises(Unsupported, match="scaler waits for the device"):
            check_support(job)
        return
    plain = step_job("toynet", "device=cuda", f"precision={precision}", "benchmark=training")
    batches = batches_for("toynet", "cuda")
    wanted = losses_of(plain, setup_of(plain, "toynet"), batches)
    assert losses_of(job, setup_of(job, "toynet"), batches) == pytest.approx(wanted, rel=1e-2)


@gpu
@no_gpu
def test_a_capture_holds_while_a_thread_pins_allocates_and_copies():
    device, module = torch.device("cuda", 0), torch.nn.Linear(3, 2, device="cuda")
    captures, copied = Event(), Event()

    def epochs(epoch):
        for number in range(4):  # each larger than what is free in any cache
            yield torch.full((1 << (20 + number),), number, dtype=torch.int32)
            assert captures.wait(60)
        copied.set()

    @contextmanager
    def opened():
        yield epochs

    def deliver(batch):
        return batch.pin_memory().to(device, non_blocking=True)

    def step(source, targets):
        if torch.cuda.is_current_stream_capturing():
            captures.set()
            assert copied.wait(60)
        return module(source).sum() + targets.sum()

    execution = compose_job("execution=cuda_graph").execution
    replay, source = execution.step(step, module), torch.rand(5, 3, device=device)
    with torch.no_grad(), by_thread(opened, deliver, 4, device) as ahead:
        batches = ahead(0)
        sums = [int(next(batches).sum())]
        for scale in (1.0, 2.0):
            wanted = step(scale * source, source)
            assert torch.allclose(replay(scale * source, source), wanted, rtol=1e-4)
        sums += [int(batch.sum()) for batch in batches]
    assert sums == [number << (20 + number) for number in range(4)]


ASIDE = [
    ("pin_memory=true", "num_workers=2"),
    *(
        (f"device_prefetch_by={way}", "device_prefetch=2", *pinned)
        for way in ("stream", "thread", "process")
        for pinned in ((), ("pinned_buffers=3",))
    ),
]


@gpu
@no_gpu
@pytest.mark.parametrize("aside", ASIDE, ids=" ".join)
def test_a_whole_trial_with_captured_steps_beside_what_moves_batches(prepared_job, aside):
    names = ("execution=cuda_graph", "device=cuda", "epochs=2", *aside)
    job, prepared = prepared_job(*names, "benchmark=[training,inference]", "learning_rate=0.1")
    losses = run_trial(job, prepared, 0, now_ns()).benchmarks["training"].losses
    plain, _ = prepared_job("device=cuda", "epochs=2", "benchmark=training", "learning_rate=0.1")
    wanted = run_trial(plain, prepared, 0, now_ns()).benchmarks["training"].losses
    assert losses == pytest.approx(wanted, rel=1e-2)


@gpu
@no_gpu
def test_a_profile_on_cuda_has_the_devices_kernels_and_copies(prepared_job, tmp_path):
    job, prepared = prepared_job("device=cuda", "benchmark=training", "device_prefetch=2")
    run_profiled(job, prepared, "training", tmp_path)
    trace, table = profile_paths(tmp_path, "training")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {"kernel", "gpu_memcpy"} <= {one.get("cat") for one in events}
    assert "Self CUDA" in table.read_text()


# The last, for it takes longest.

LARGER: Leaves = (("float32", (3, 64, 64)), ("int64", ()))
RATES = {"toynet": "0.05", "resnet18": "0.001", "transformer": "1.0"}
"""With which a step that is left out shows, and rounding to TF32 does not."""
ON_CUDA = [
    *product(("cuda_graph", "tensorrt", "data_parallel"), ("toynet", "resnet18", "transformer")),
    *product(("compiled",), ("toynet", "transformer")),  # a resnet18 takes a minute to compile
]


@gpu
@no_gpu
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize(("execution", "model"), ON_CUDA)
def test_on_cuda_the_figures_are_those_of_an_eager_step(model, execution, benchmark):
    """Of one batch again and again, and a short one; of larger images, for the norms of a resnet18
    on 8 of 12 x 10 make a tenth of a thousandth."""
    runs_here(execution, benchmark, "cuda")
    whole, short = batches_for(model, "cuda", (32, 16), LARGER)
    batches = [whole, whole, whole, short]
    names = (f"benchmark={benchmark}", "device=cuda", f"learning_rate={RATES[model]}")
    plain, job = (step_job(model, f"execution={name}", *names) for name in ("eager", execution))
    wanted = figures(plain, benchmark, setup_of(plain, model, images=LARGER), batches)
    setup = setup_of(job, model, images=LARGER)
    for _ in range(2):
        got = figures(job, benchmark, setup, batches)
        assert got == pytest.approx(wanted, rel=5e-3, abs=5e-3)
