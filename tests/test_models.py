"""The contract of every model found in conf/model and every benchmark that runs one."""

from __future__ import annotations

import math

import pytest
import torch
from options import compose_job, options
from steps import CLASSES, IMAGES, TOKENS, batches_for, losses_of, sample_of, setup_of, step_job
from torch.nn.functional import cross_entropy

from fastloop.config import ConfigError
from fastloop.job import check_support
from fastloop.network import built
from fastloop.prepared import prepare
from fastloop.spans import now_ns
from fastloop.trial import run_trial
from fastloop.types import BadData, Unsupported

MODELS = options("model")
OF_IMAGES = [name for name in MODELS if name != "transformer"]
TRAINING = "benchmark=training"


@pytest.mark.parametrize("model", MODELS)
def test_its_first_loss_is_that_of_a_guess_and_falls(model):
    job = step_job(model, TRAINING)
    (batch,) = batches_for(model, sizes=(16,))
    losses = losses_of(job, setup_of(job, model), [batch] * 12)
    choices = 50 if model == "transformer" else CLASSES
    assert losses[0] == pytest.approx(math.log(choices), rel=0.3)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("model", MODELS)
def test_each_start_begins_at_the_seed(model):
    job, batches = step_job(model, TRAINING), batches_for(model)
    setup = setup_of(job, model)
    first = losses_of(job, setup, batches)
    assert len(first) == len(batches)
    assert losses_of(job, setup, batches) == first
    assert losses_of(job, setup_of(job, model), batches) == first
    assert losses_of(job, setup_of(job, model, seed=1), batches) != first


@pytest.mark.parametrize("model", MODELS)
def test_the_losses_are_those_of_a_plain_torch_loop(model):
    job, batches = step_job(model, TRAINING), batches_for(model)
    module, wanted = built(setup_of(job, model)), []
    optimizer = torch.optim.SGD(module.parameters(), lr=job.learning_rate)
    for source, targets in batches:
        loss = cross_entropy(module(source), targets)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        wanted.append(loss.item())
    assert losses_of(job, setup_of(job, model), batches) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_inference_changes_nothing_and_leaves_no_gradient(model):
    job = step_job(model, "benchmark=inference")
    setup = setup_of(job, model)
    before = built(setup).state_dict()
    step, losses = job.benchmark["inference"].start(lambda batch: batch, setup)
    for batch in batches_for(model):
        step(batch)
    module, _ = setup.kept["inference"]
    assert not module.training
    assert losses == []
    assert before.keys() == module.state_dict().keys()
    assert all(torch.equal(before[name], now) for name, now in module.state_dict().items())
    assert all(one.grad is None for one in module.parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (4, 9, 7), (8, 8)])
@pytest.mark.parametrize("model", OF_IMAGES)
def test_images_of_any_size_and_number_of_channels(model, shape):
    option = compose_job(f"model={model}").model
    option.check(5, (("float32", shape), ("int64", ())))
    assert option.build(shape, 5)(torch.rand(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize("model", OF_IMAGES)
def test_three_channels_leave_torchvisions_network_as_it_is(model):
    if model == "toynet":
        return
    import torchvision

    torch.manual_seed(3)
    plain = getattr(torchvision.models, model)(weights=None, num_classes=5).state_dict()
    torch.manual_seed(3)
    ours = compose_job(f"model={model}").model.build((3, 32, 32), 5).state_dict()
    assert plain.keys() == ours.keys()
    assert all(torch.equal(plain[name], ours[name]) for name in plain)


@pytest.mark.parametrize("benchmark", ["training", "inference"])
@pytest.mark.parametrize("model", MODELS)
def test_what_does_not_fit_is_unsupported_in_one_clear_line(model, benchmark):
    job = step_job(model, f"benchmark={benchmark}")
    check = job.benchmark[benchmark].check
    sample, num_classes = sample_of(model)
    check(job.model, num_classes, sample)
    check(job.model, num_classes, None)
    other, others_classes = (IMAGES, CLASSES) if sample is TOKENS else (TOKENS, None)
    said = rf"model={model} needs \(.*\) samples, got .*; benchmark=traversal takes any$"
    for wrong in (other, None, (("float32", (3,)), ("float32", ()))):
        with pytest.raises(Unsupported, match=said):
            check(job.model, others_classes, wrong)
    if model in ("resnet18", "mobilenet_v3_small"):
        with pytest.raises(Unsupported, match=r"\(height, width\) image.* got \(float32\[3\], int"):
            check(job.model, 5, (("float32", (3,)), ("int64", ())))


@pytest.mark.parametrize("model", ["resnet18", "mobilenet_v3_small"])
def test_a_last_batch_of_one_that_can_not_be_normalized_is_unsupported(model):
    job, setup = step_job(model, TRAINING), setup_of(step_job(model), model)
    with pytest.raises(Unsupported, match=r"a batch of one sample has .*: drop_last=true leaves"):
        losses_of(job, setup, batches_for(model, sizes=(8, 1)))
    step, _ = step_job(model, "benchmark=inference").benchmark["inference"].start(tuple, setup)
    for batch in batches_for(model, sizes=(8, 1)):
        step(batch)


@pytest.mark.parametrize("benchmark", ["training", "inference"])
def test_tokens_that_the_model_has_no_embedding_for_are_unsupported(benchmark):
    job = step_job("transformer", f"benchmark={benchmark}")
    step, _ = job.benchmark[benchmark].start(tuple, setup_of(job, "transformer"))
    with pytest.raises(Unsupported, match=r"has no embedding for: .*model.vocabulary has to be"):
        step((torch.full((2, 9), 50), torch.zeros(2, 9, dtype=torch.int64)))


def test_a_toynet_of_single_numbers():
    network = compose_job().model.build((), 4)
    assert network(torch.rand(3)).shape == (3, 4)


def test_tokens_and_the_default_model_stop_before_anything_is_prepared():
    with pytest.raises(Unsupported, match=r"model=toynet needs .* got samples without classes"):
        check_support(compose_job("dataset=tokens"))
    with pytest.raises(Unsupported, match=r"model=transformer needs .* got samples with classes"):
        check_support(compose_job("model=transformer"))
    check_support(compose_job("dataset=tokens", "model=transformer"))


def test_a_language_model_sees_no_token_that_is_to_come():
    job = step_job("transformer")
    module = built(setup_of(job, "transformer")).eval()
    tokens = torch.randint(50, (2, 9))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 50
    before, after = module(tokens), module(changed)
    assert before.shape == (2, 50, 9)
    assert torch.allclose(before[..., :5], after[..., :5], atol=1e-6)
    assert not torch.allclose(before[..., 5:], after[..., 5:], atol=1e-3)


def test_heads_share_the_width():
    with pytest.raises(ConfigError, match="heads=3: width=128 is no multiple of it"):
        compose_job("model=transformer", "model.heads=3")


def test_a_whole_trial_on_tokens_with_all_three_benchmarks(prepared_job):
    small = ("dataset.num_tokens=1000", "dataset.block_size=9", "batch_size=32", "epochs=1")
    model = ("model=transformer", "model.width=16", "model.heads=2", "model.layers=1")
    benchmarks = "benchmark=[traversal,training,inference]"
    job, prepared = prepared_job("dataset=tokens", *small, *model, benchmarks)
    trial = run_trial(job, prepared, 0, now_ns())
    assert list(trial.benchmarks) == ["traversal", "training", "inference"]
    assert {one.samples for one in trial.benchmarks.values()} == {prepared.num_samples}
    assert all(one.limit_samples_per_s > 0 for one in trial.benchmarks.values())
    assert trial.benchmarks["training"].losses[0] == pytest.approx(math.log(50_257), rel=0.1)
    assert trial.benchmarks["inference"].losses == []


@pytest.mark.parametrize(
    "own",
    [
        "model._target_=brought.Net",
        "model._target_=brought.Net +model.width=3",
        "model._target_=brought.make_net",
        "model._target_=brought.NET",
        "model._target_=torch.nn.LazyLinear +model.out_features=4",
    ],
)
def test_a_model_of_ones_own_is_trained_and_asked(outputs, own):
    squares = ("dataset._target_=brought.Squares", "batch_size=16", "epochs=1")
    job = compose_job(*own.split(), *squares, "benchmark=[training,inference]")
    assert job.model.kwargs.keys() <= {"width", "out_features"}
    if "Lazy" in own:
        with pytest.raises(Unsupported, match="LazyLinear"):
            run_trial(job, prepare(job.dataset, job.loader.store), 0, now_ns())
        return
    trial = run_trial(job, prepare(job.dataset, job.loader.store), 0, now_ns())
    assert trial.benchmarks["training"].losses[0] > 0


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("model._target_=brought.Net +model.wdith=3", "brought.Net: got an unexpected .*wdith"),
        ("model._target_=brought.NUMBER", "NUMBER: it is a int, neither to be called"),
        ("model._target_=brought.nope", "model._target_=brought.nope: .*no attribute 'nope'"),
    ],
)
def test_a_model_that_can_not_be_is_one_line(own, said):
    with pytest.raises(ConfigError, match=said):
        compose_job(*own.split())


def test_what_gives_no_module_is_bad_data(outputs):
    job = compose_job("model._target_=brought.generated", "benchmark=training")
    with pytest.raises(BadData, match=r"brought.generated: it gives \w+, no torch.nn.Module"):
        job.model.build((3,), 4)


def test_an_own_model_needs_pairs():
    model = compose_job("model._target_=brought.Net").model
    model.check(None, (("int64", (3,)), ("int64", (3,))))
    with pytest.raises(Unsupported, match=r"model=brought.Net needs \(input, int64 target\)"):
        model.check(None, (("float32", (3,)),))
