"""Training: the losses equal those of a plain torch loop and fall on real images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fastloop.core.seeds import epoch_seed
from fastloop.core.spans import now_ns
from fastloop.trial.timed_trial import run_trial

TRAINING = ("benchmark=training", "loader=np_memmap", "epochs=3")


def plain_losses(data: torch.Tensor, labels: torch.Tensor, lr: float, epochs: int) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(data[0].numel(), 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )
    optimizer, means = torch.optim.SGD(model.parameters(), lr=lr), []
    for epoch in range(epochs):
        generator, losses = torch.Generator().manual_seed(epoch_seed(0, epoch)), []
        order = torch.randperm(len(data), generator=generator)
        for index in order.split(64):
            loss = nn.functional.cross_entropy(model(data[index]), labels[index])
            optimizer.zero_grad(), loss.backward(), optimizer.step()
            losses.append(loss.detach())
        means.append(torch.stack(losses).mean().item())
    return means


def test_training_losses_equal_those_of_a_plain_torch_loop(prepared_job):
    job, prepared = prepared_job("dataset=digits", "learning_rate=0.1", *TRAINING)
    samples = job.dataset.open()
    data = torch.stack([samples[index][0] for index in range(len(samples))])
    labels = torch.tensor(samples.targets)
    losses = run_trial(job, prepared, 0, now_ns()).benchmarks["training"].losses
    assert losses == pytest.approx(plain_losses(data, labels, lr=0.1, epochs=3), rel=1e-5)


@pytest.mark.parametrize("dataset", ["digits", "fashion_mnist"])
def test_training_loss_falls_clearly_on_real_images(prepared_job, fashion_root, dataset):
    overrides = (
        [f"dataset.root={fashion_root}", "dataset.download=false"] if dataset != "digits" else []
    )
    job, prepared = prepared_job(
        f"dataset={dataset}", "learning_rate=0.1", *TRAINING, "epochs=8", *overrides
    )
    losses = run_trial(job, prepared, 0, now_ns()).benchmarks["training"].losses
    assert len(losses) == 8
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.heavy
def test_trials_have_separate_seeds_and_the_first_has_the_jobs(prepared_job):
    job, prepared = prepared_job("dataset=digits", *TRAINING, "epochs=1", "seed=5")
    trials = [run_trial(job, prepared, number, now_ns()) for number in (0, 1)]
    assert [trial.seed for trial in trials] == [5, 10_005]
    assert trials[0].benchmarks["training"].losses != trials[1].benchmarks["training"].losses
