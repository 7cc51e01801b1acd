"""Contract of every execution in conf/execution, and of every precision."""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from itertools import product
from threading import Event

import psutil
import pytest
import torch
from model_steps import batches_for, losses_of, session_of, step_job
from options import compose_job, options, require_cuda

from fastloop.core.spans import now_ns
from fastloop.core.types import Leaves, Unsupported
from fastloop.trial.instrumented_pass import run_instrumentation
from fastloop.trial.prefetch.thread import prefetch_by_thread
from fastloop.trial.profiling import profile_paths, run_profiling
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

EXECUTIONS = options("execution")
ON_CPU = {"eager", "compiled"}
"""Executions that need no GPU."""
BENCHMARKS = ("training", "inference")
gpu = pytest.mark.gpu


@pytest.fixture(autouse=True)
def compiler_isolation(shared_outputs, monkeypatch):
    """Cache compiled code in the tests' outputs, and reset the compiler after each test."""
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(shared_outputs))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    yield
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def skip_unless_supported(execution: str, benchmark: str, device: str = "cpu") -> None:
    """Skip where the execution is unsupported; one that needs no GPU must be supported."""
    job = compose_job(f"execution={execution}", f"benchmark={benchmark}", f"device={device}")
    if device == "cuda":
        require_cuda()
    try:
        check_support(job)
    except Unsupported as error:
        if execution in ON_CPU and "compiler" not in str(error):
            raise
        pytest.skip(str(error))


def inference_results(session, batches) -> list[float]:
    """Results of the inference steps on these batches, after one start."""
    session.start(lambda batch: batch)
    return [float(session.step(source, targets)) for source, targets in batches]


def skip_generated_code(monkeypatch) -> None:
    """Let torch.compile trace as ever, and run what it has traced without generating C++, which
    takes a minute; training with dynamic=null generates it below."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


STEP_RESULTS = {"training": losses_of, "inference": inference_results}


@pytest.mark.parametrize(
    ("execution", "benchmark"),
    # compiled training is compared below, where it is compiled anyway
    [each for each in product(EXECUTIONS, BENCHMARKS) if each != ("compiled", "training")],
)
def test_execution_computes_what_an_eager_step_computes(monkeypatch, execution, benchmark):
    model = "toynet"
    skip_unless_supported(execution, benchmark)
    if (execution, benchmark) == ("compiled", "inference"):
        skip_generated_code(monkeypatch)
    batches = batches_for(model)
    plain, job = (
        step_job(model, f"benchmark={benchmark}", f"execution={name}", "device=cpu")
        for name in ("eager", execution)
    )
    run_steps = STEP_RESULTS[benchmark]
    wanted = run_steps(session_of(plain, model), batches)
    assert run_steps(session_of(job, model), batches) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("dynamic", ["null", "true"])
def test_compiled_step_never_recompiles_for_the_last_short_batch(monkeypatch, dynamic):
    skip_unless_supported("compiled", "training")
    if dynamic == "true":
        skip_generated_code(monkeypatch)
    model, dynamic = "toynet", f"execution.dynamic={dynamic}"
    job = step_job(model, "execution=compiled", dynamic, "benchmark=training")
    session, batches = session_of(job, model), batches_for(model)
    first = losses_of(session, batches)
    eager = losses_of(session_of(step_job(model, "benchmark=training"), model), batches)
    assert first == pytest.approx(eager, rel=1e-3)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert losses_of(session, batches) == pytest.approx(first, rel=1e-5)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            losses_of(session_of(job, model), batches_for(model, sizes=(5, 1)))


@pytest.mark.heavy
@pytest.mark.nightly
def test_compiled_code_is_cached_in_the_outputs_and_leaves_no_process(
    prepared_job, shared_outputs, tmp_path, monkeypatch
):
    skip_unless_supported("compiled", "training")
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # A temporary folder of this process alone, as other tests write to the machine's. torch keeps
    # its own compiled headers, once for all programs, beside the default cache.
    headers = default_cache_dir()
    os.makedirs(headers, exist_ok=True)
    (tmp_path / os.path.basename(headers)).symlink_to(headers)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # the import has set it
    before = os.listdir(tmp_path)
    children = set(psutil.Process().children(recursive=True))
    job, prepared = prepared_job("execution=compiled", "epochs=1", "benchmark=inference")
    trial = run_trial(job, prepared, 0, now_ns())
    assert trial.benchmarks.keys() == {"inference"}
    assert any((shared_outputs / "compiled").iterdir())
    assert os.listdir(tmp_path) == before
    assert set(psutil.Process().children(recursive=True)) == children
    attribution = run_instrumentation(job, prepared, "inference")
    assert len(attribution.wait_s) == -(-prepared.num_samples // job.loading.batch_size)


@pytest.mark.parametrize("is_users", [True, False])
def test_compiler_cache_is_the_users_folder_or_in_the_outputs(
    shared_outputs, tmp_path, monkeypatch, is_users
):
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    # torch._dynamo sets a default folder when it is imported, which tensordict does
    folder = str(tmp_path) if is_users else default_cache_dir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
    job = compose_job("execution=compiled", "device=cpu")
    job.execution.forward(torch.nn.Linear(2, 2), torch.device("cpu"))
    wanted = str(tmp_path if is_users else shared_outputs / "compiled")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == wanted


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_execution_needs_a_benchmark_that_runs_a_model(execution):
    job = compose_job(f"execution={execution}", "benchmark=traversal")
    if execution == "eager":
        check_support(job)
        return
    needs = "needs a model: benchmark=traversal runs none; training and inference do"
    with pytest.raises(Unsupported, match=f"execution={execution} {needs}"):
        check_support(job)
    with pytest.raises(Unsupported, match=f"precision=bf16 {needs}"):
        check_support(compose_job("precision=bf16", "benchmark=traversal"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("execution=cuda_graph", "execution=cuda_graph needs a CUDA device, device is cpu"),
        ("execution=data_parallel", "needs two CUDA devices, got ., and device is cpu"),
        ("execution=tensorrt", "execution=tensorrt does not train: use benchmark=inference"),
        ("execution=tensorrt benchmark=inference", "execution=tensorrt needs "),
    ],
)
def test_execution_that_a_cpu_cannot_run_names_its_reason(overrides, message):
    with pytest.raises(Unsupported, match=message):
        check_support(compose_job(*overrides.split(), "device=cpu"))


def test_compiled_without_a_compiler_names_the_install_command(monkeypatch):
    job = compose_job("execution=compiled", "device=cpu")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unsupported, match=r"no-such-compiler not found: apt-get install g\+\+"):
        check_support(job)


@pytest.mark.heavy
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("model", ["toynet", "transformer"])
def test_lower_precision_is_close_to_float32_but_differs(model, precision, benchmark):
    overrides = ("device=cpu", "learning_rate=0.001", f"benchmark={benchmark}")
    full, low = (
        step_job(model, *overrides, f"precision={value}") for value in ("float32", precision)
    )
    batches, run_steps = batches_for(model), STEP_RESULTS[benchmark]
    wanted = run_steps(session_of(full, model), batches)
    session = session_of(low, model)
    results = run_steps(session, batches)
    assert results != wanted
    assert results == pytest.approx(wanted, rel=0.1, abs=0.5)
    if benchmark == "training":
        assert losses_of(session, batches) == results


@gpu
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_on_cuda_is_close_and_restarts_at_the_seed(precision, benchmark):
    overrides = ("device=cuda", "learning_rate=0.001", f"benchmark={benchmark}")
    full, low = (
        step_job("toynet", *overrides, f"precision={value}") for value in ("float32", precision)
    )
    require_cuda()
    batches, run_steps = batches_for("toynet", "cuda"), STEP_RESULTS[benchmark]
    wanted = run_steps(session_of(full, "toynet"), batches)
    session = session_of(low, "toynet")
    results = run_steps(session, batches)
    assert results != wanted
    assert results == pytest.approx(wanted, rel=0.1, abs=0.1)
    assert run_steps(session, batches) == pytest.approx(results, rel=1e-3, abs=1e-3)


@gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_captured_step_runs_at_lower_precision(precision):
    overrides = ("device=cuda", "execution=cuda_graph", f"precision={precision}")
    job = step_job("toynet", *overrides, "benchmark=training")
    plain = step_job("toynet", "device=cuda", f"precision={precision}", "benchmark=training")
    require_cuda()
    if precision == "fp16":
        with pytest.raises(Unsupported, match="scaler synchronizes with the device"):
            check_support(job)
        return
    batches = batches_for("toynet", "cuda")
    wanted = losses_of(session_of(plain, "toynet"), batches)
    assert losses_of(session_of(job, "toynet"), batches) == pytest.approx(wanted, rel=1e-2)


@gpu
def test_capture_survives_a_thread_that_pins_allocates_and_copies():
    execution = compose_job("execution=cuda_graph").execution
    require_cuda()
    device, module = torch.device("cuda", 0), torch.nn.Linear(3, 2, device="cuda")
    capturing, finished = Event(), Event()

    def epochs(epoch):
        for number in range(4):  # each larger than any free block in a cache
            yield torch.full((1 << (20 + number),), number, dtype=torch.int32)
            assert capturing.wait(60)
        finished.set()

    @contextmanager
    def open_epochs():
        yield epochs

    def deliver(batch):
        return batch.pin_memory().to(device, non_blocking=True)

    def step(source, targets):
        if torch.cuda.is_current_stream_capturing():
            capturing.set()
            assert finished.wait(60)
        return module(source).sum() + targets.sum()

    replay, source = execution.step(step, module), torch.rand(5, 3, device=device)
    with torch.no_grad(), prefetch_by_thread(open_epochs, deliver, 4, device) as ahead:
        batches = ahead(0)
        sums = [int(next(batches).sum())]
        for scale in (1.0, 2.0):
            wanted = step(scale * source, source)
            assert torch.allclose(replay(scale * source, source), wanted, rtol=1e-4)
        sums += [int(batch.sum()) for batch in batches]
    assert sums == [number << (20 + number) for number in range(4)]


TRANSFERS = [
    ("pin_memory=true", "num_workers=2"),
    *(
        (f"device_prefetch_by={mechanism}", "device_prefetch=2", *pinned)
        for mechanism in ("stream", "thread", "process")
        for pinned in ((), ("pinned_buffers=3",))
    ),
]


@gpu
@pytest.mark.parametrize("transfer", TRANSFERS, ids=" ".join)
def test_captured_steps_run_next_to_every_way_of_moving_batches(prepared_job, transfer):
    overrides = ("execution=cuda_graph", "device=cuda", "epochs=2", *transfer)
    job, prepared = prepared_job(*overrides, "benchmark=[training,inference]", "learning_rate=0.1")
    plain, _ = prepared_job("device=cuda", "epochs=2", "benchmark=training", "learning_rate=0.1")
    require_cuda()
    losses = run_trial(job, prepared, 0, now_ns()).benchmarks["training"].losses
    wanted = run_trial(plain, prepared, 0, now_ns()).benchmarks["training"].losses
    assert losses == pytest.approx(wanted, rel=1e-2)


@gpu
def test_profile_on_cuda_lists_kernels_and_copies(prepared_job, tmp_path):
    job, prepared = prepared_job("device=cuda", "benchmark=training", "device_prefetch=2")
    require_cuda()
    run_profiling(job, prepared, "training", tmp_path)
    trace, table = profile_paths(tmp_path, "training")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {"kernel", "gpu_memcpy"} <= {event.get("cat") for event in events}
    assert "Self CUDA" in table.read_text()


# Last in this file, since it takes longest.

LARGER: Leaves = (("float32", (3, 64, 64)), ("int64", ()))
RATES = {"toynet": "0.05", "resnet18": "0.001", "transformer": "1.0"}
"""Learning rates at which an omitted step shows in the losses and rounding to TF32 does not."""
ON_CUDA = [
    *product(("cuda_graph", "tensorrt", "data_parallel"), ("toynet", "resnet18", "transformer")),
    *product(("compiled",), ("toynet", "transformer")),  # a resnet18 takes a minute to compile
]


@gpu
@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize(("execution", "model"), ON_CUDA)
def test_execution_on_cuda_computes_what_an_eager_step_computes(model, execution, benchmark):
    """Compare on a repeated batch and a short one. The images are larger than elsewhere: the batch
    norms of a resnet18 on 8 images of 12 x 10 turn a difference of 0.001 into 0.1."""
    overrides = (f"benchmark={benchmark}", "device=cuda", f"learning_rate={RATES[model]}")
    plain, job = (step_job(model, f"execution={name}", *overrides) for name in ("eager", execution))
    skip_unless_supported(execution, benchmark, "cuda")
    whole, short = batches_for(model, "cuda", (32, 16), LARGER)
    batches = [whole, whole, whole, short]
    run_steps = STEP_RESULTS[benchmark]
    wanted = run_steps(session_of(plain, model, images=LARGER), batches)
    session = session_of(job, model, images=LARGER)
    for _ in range(2):
        results = run_steps(session, batches)
        assert results == pytest.approx(wanted, rel=5e-3, abs=5e-3)
