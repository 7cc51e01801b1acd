"""Contract of every model in conf/model, and of every benchmark that runs one."""

from __future__ import annotations

import math

import pytest
import torch
from model_steps import (
    CLASSES,
    IMAGES,
    TOKENS,
    batches_for,
    losses_of,
    sample_of,
    session_of,
    setup_of,
    step_job,
)
from options import compose_job, options
from torch.nn.functional import cross_entropy

from fastloop.config.messages import ConfigError
from fastloop.core.spans import now_ns
from fastloop.core.types import BadData, Unsupported
from fastloop.data.prepare_dataset import prepare
from fastloop.options.benchmark._model import build_seeded
from fastloop.trial.support import check_support
from fastloop.trial.timed_trial import run_trial

MODELS = options("model")
IMAGE_MODELS = [name for name in MODELS if name != "transformer"]
TRAINING = "benchmark=training"


@pytest.mark.parametrize("model", MODELS)
def test_model_loss_starts_at_a_random_guess_and_falls(model):
    job = step_job(model, TRAINING)
    (batch,) = batches_for(model, sizes=(16,))
    losses = losses_of(session_of(job, model), [batch] * 12)
    choices = 50 if model == "transformer" else CLASSES
    assert losses[0] == pytest.approx(math.log(choices), rel=0.3)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", MODELS)
def test_session_restarts_from_the_seed(model):
    job, batches = step_job(model, TRAINING), batches_for(model)
    session = session_of(job, model)
    first = losses_of(session, batches)
    assert len(first) == len(batches)
    assert losses_of(session, batches) == first
    assert losses_of(session_of(job, model), batches) == first
    assert losses_of(session_of(job, model, seed=1), batches) != first


@pytest.mark.parametrize("model", MODELS)
def test_model_losses_equal_those_of_a_plain_torch_loop(model):
    job, batches = step_job(model, TRAINING), batches_for(model)
    module, wanted = build_seeded(setup_of(job, model)), []
    optimizer = torch.optim.SGD(module.parameters(), lr=job.learning_rate)
    for source, targets in batches:
        loss = cross_entropy(module(source), targets)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        wanted.append(loss.item())
    assert losses_of(session_of(job, model), batches) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_inference_changes_no_weight_and_leaves_no_gradient(model):
    job = step_job(model, "benchmark=inference")
    before = build_seeded(setup_of(job, model)).state_dict()
    session = session_of(job, model)
    step, losses = session.start(lambda batch: batch)
    for batch in batches_for(model):
        step(batch)
    module = session.module
    assert not module.training
    assert losses == []
    assert before.keys() == module.state_dict().keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (4, 9, 7), (8, 8)])
@pytest.mark.parametrize("model", IMAGE_MODELS)
def test_image_model_accepts_any_size_and_number_of_channels(model, shape):
    option = compose_job(f"model={model}").model
    option.check(5, (("float32", shape), ("int64", ())))
    assert option.build(shape, 5)(torch.rand(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize("model", IMAGE_MODELS)
def test_image_model_for_three_channels_is_torchvisions_unchanged(model):
    if model == "toynet":
        return
    import torchvision

    torch.manual_seed(3)
    plain = getattr(torchvision.models, model)(weights=None, num_classes=5).state_dict()
    torch.manual_seed(3)
    built = compose_job(f"model={model}").model.build((3, 32, 32), 5).state_dict()
    assert plain.keys() == built.keys()
    assert all(torch.equal(plain[name], built[name]) for name in plain)


@pytest.mark.parametrize("benchmark", ["training", "inference"])
@pytest.mark.parametrize("model", MODELS)
def test_model_rejects_unsuitable_samples_in_one_line(model, benchmark):
    job = step_job(model, f"benchmark={benchmark}")
    check = job.benchmark[benchmark].check
    sample, num_classes = sample_of(model)
    check(job.model, num_classes, sample)
    check(job.model, num_classes, None)
    other_sample, other_classes = (IMAGES, CLASSES) if sample is TOKENS else (TOKENS, None)
    message = rf"model={model} needs \(.*\) samples, got .*; benchmark=traversal takes any$"
    for unsuitable in (other_sample, None, (("float32", (3,)), ("float32", ()))):
        with pytest.raises(Unsupported, match=message):
            check(job.model, other_classes, unsuitable)
    if model in ("resnet18", "mobilenet_v3_small"):
        with pytest.raises(Unsupported, match=r"\(height, width\) image.* got \(float32\[3\], int"):
            check(job.model, 5, (("float32", (3,)), ("int64", ())))


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v3_small"])
def test_model_with_batch_norm_rejects_a_last_batch_of_one(model):
    session = session_of(step_job(model, TRAINING), model)
    with pytest.raises(Unsupported, match=r"a batch of one sample: drop_last=true leaves"):
        losses_of(session, batches_for(model, sizes=(8, 1)))
    step, _ = session_of(step_job(model, "benchmark=inference"), model).start(tuple)
    for batch in batches_for(model, sizes=(8, 1)):
        step(batch)


@pytest.mark.parametrize("benchmark", ["training", "inference"])
def test_transformer_rejects_tokens_beyond_its_embedding(benchmark):
    job = step_job("transformer", f"benchmark={benchmark}")
    step, _ = session_of(job, "transformer").start(tuple)
    with pytest.raises(Unsupported, match=r"beyond the model's embedding: .*model.vocabulary"):
        step((torch.full((2, 9), 50), torch.zeros(2, 9, dtype=torch.int64)))


def test_toynet_accepts_scalar_samples():
    network = compose_job().model.build((), 4)
    assert network(torch.rand(3)).shape == (3, 4)


def test_check_support_rejects_a_model_for_other_samples():
    with pytest.raises(Unsupported, match=r"model=toynet needs .* got samples without classes"):
        check_support(compose_job("dataset=tokens"))
    with pytest.raises(Unsupported, match=r"model=transformer needs .* got samples with classes"):
        check_support(compose_job("model=transformer"))
    check_support(compose_job("dataset=tokens", "model=transformer"))


def test_transformer_attends_to_no_later_token():
    job = step_job("transformer")
    module = build_seeded(setup_of(job, "transformer")).eval()
    tokens = torch.randint(50, (2, 9))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 50
    before, after = module(tokens), module(changed)
    assert before.shape == (2, 50, 9)
    assert torch.allclose(before[..., :5], after[..., :5], atol=1e-6)
    assert not torch.allclose(before[..., 5:], after[..., 5:], atol=1e-3)


def test_transformer_width_must_be_a_multiple_of_heads():
    with pytest.raises(ConfigError, match="heads=3: width=128 is not a multiple of it"):
        compose_job("model=transformer", "model.heads=3")


@pytest.mark.heavy
def test_trial_on_tokens_runs_all_three_benchmarks(prepared_job):
    overrides = ("dataset.num_tokens=1000", "dataset.block_size=9", "batch_size=32", "epochs=1")
    model = ("model=transformer", "model.width=16", "model.heads=2", "model.layers=1")
    benchmarks = "benchmark=[traversal,training,inference]"
    job, prepared = prepared_job("dataset=tokens", *overrides, *model, benchmarks)
    trial = run_trial(job, prepared, 0, now_ns())
    assert list(trial.benchmarks) == ["traversal", "training", "inference"]
    assert {measurement.samples for measurement in trial.benchmarks.values()} == {
        prepared.num_samples
    }
    # a Dataset makes the windows, to which a gather of rows is no limit
    assert trial.benchmarks["traversal"].limit_samples_per_s is None
    for name in ("training", "inference"):
        assert (trial.benchmarks[name].limit_samples_per_s or 0) > 0
    assert trial.benchmarks["training"].losses[0] == pytest.approx(math.log(50_257), rel=0.1)
    assert trial.benchmarks["inference"].losses == []


@pytest.mark.heavy
@pytest.mark.parametrize(
    "overrides",
    [
        "model._target_=my_code.Net",
        "model._target_=my_code.Net +model.width=3",
        "model._target_=my_code.ComputedNet",
        "model._target_=my_code.make_net",
        "model._target_=my_code.NET",
        "model._target_=torch.nn.LazyLinear +model.out_features=4",
    ],
)
def test_user_model_runs_training_and_inference(outputs, overrides):
    squares = ("dataset._target_=my_code.Squares", "batch_size=16", "epochs=1")
    job = compose_job(*overrides.split(), *squares, "benchmark=[training,inference]")
    assert job.model.kwargs.keys() <= {"width", "out_features"}
    if "Lazy" in overrides:
        with pytest.raises(Unsupported, match="LazyLinear"):
            run_trial(job, prepare(job.dataset, job.loader.store), 0, now_ns())
        return
    trial = run_trial(job, prepare(job.dataset, job.loader.store), 0, now_ns())
    assert trial.benchmarks["training"].losses[0] > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "model._target_=my_code.Net +model.wdith=3",
            "model.wdith=3: my_code.Net has no argument wdith",
        ),
        ("model._target_=my_code.NUMBER", "NUMBER: int is neither callable nor iterable"),
        (
            "model._target_=my_code.nope",
            "model._target_=my_code.nope: .*no attribute 'nope'",
        ),
    ],
)
def test_user_model_with_an_invalid_target_is_rejected(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose_job(*overrides.split())


@pytest.mark.parametrize("name", ["Net", "ComputedNet", "SharedNet", "make_net", "NET"])
def test_each_benchmark_has_a_user_model_of_its_own(name):
    model = compose_job(f"model._target_=my_code.{name}").model
    first, second = (model.build((2, 3), 4) for _ in range(2))
    tensors = {id(each) for module in (first, second) for each in module.parameters()}
    assert len(tensors) == 2 * len([*first.parameters()])


def test_user_model_that_returns_no_module_is_bad_data(outputs):
    job = compose_job("model._target_=my_code.generate_batches", "benchmark=training")
    with pytest.raises(
        BadData, match=r"my_code.generate_batches: it returns \w+, not a torch.nn.Module"
    ):
        job.model.build((3,), 4)


def test_user_model_needs_pairs_of_input_and_target():
    model = compose_job("model._target_=my_code.Net").model
    model.check(None, (("int64", (3,)), ("int64", (3,))))
    with pytest.raises(Unsupported, match=r"model=my_code.Net needs \(input, int64 target\)"):
        model.check(None, (("float32", (3,)),))
