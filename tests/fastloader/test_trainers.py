"""The usual trainers train with FastLoader, and resume with it from their own checkpoints."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.utils.data import Dataset

from fastloop import FastLoader

pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]
NUMBERS = torch.arange(24)


class Rows(Dataset):
    def __len__(self) -> int:
        return len(NUMBERS)

    def __getitem__(self, index: int) -> dict:
        return {"x": NUMBERS[index], "labels": NUMBERS[index]}


def make_loader(**settings) -> FastLoader:
    # a seed of its own: two loaders then have one order, whatever was drawn before
    return FastLoader(Rows(), 4, shuffle=True, **{"seed": 0} | settings)


def expected_epochs(count: int) -> list:
    loader = make_loader()
    return [[batch["x"].tolist() for batch in loader] for _ in range(count)]


class Seen(torch.nn.Module):
    """A model that notes its batches, as the trainer of transformers calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.batches = torch.nn.Parameter(torch.ones(())), []

    def forward(self, x, labels):
        self.batches.append(x.tolist())
        return {"loss": self.weight * x.float().mean(), "logits": x}


class TestLightning:
    @pytest.fixture(autouse=True)
    def lightning(self, tmp_path):
        self.library = pytest.importorskip("lightning", reason="lightning is not installed")
        self.folder = tmp_path

    def fit(self, max_epochs: int, loader: FastLoader, checkpoint=None, **settings) -> list:
        class Module(self.library.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.model, self.validated = Seen(), 0

            def training_step(self, batch, number):
                return self.model(**batch)["loss"]

            def validation_step(self, batch, number):
                self.validated += len(batch["x"])

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.0)

        module = Module()
        trainer = self.library.Trainer(
            max_epochs=max_epochs,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            default_root_dir=self.folder,
            **settings,
        )
        trainer.fit(module, loader, FastLoader(Rows(), 6), ckpt_path=checkpoint)
        assert module.validated == len(NUMBERS) * max_epochs or settings
        return module.model.batches

    def test_trains_and_validates(self):
        batches = self.fit(2, make_loader(), enable_checkpointing=False)
        # Lightning begins an epoch once more before the first, of which it takes nothing
        assert batches == sum(expected_epochs(3)[1:], [])  # noqa: RUF017

    def test_resumes_within_an_epoch(self):
        callbacks = self.library.pytorch.callbacks
        saver = callbacks.ModelCheckpoint(self.folder, "{step}", every_n_train_steps=4)
        settings = {"callbacks": [saver], "limit_val_batches": 0}
        first = self.fit(1, make_loader(), **settings)
        path = str(self.folder / "step=4.ckpt")
        rest = self.fit(1, make_loader(), path, callbacks=[], limit_val_batches=0)
        assert first[:4] + rest == first == expected_epochs(2)[1]


class TestTransformers:
    @pytest.fixture(autouse=True)
    def transformers(self, tmp_path):
        self.library = pytest.importorskip("transformers", reason="transformers is not installed")
        pytest.importorskip("accelerate", reason="accelerate is not installed")
        self.folder = tmp_path

    def train(self, epochs: int, checkpoint=None, epoch: int = 0) -> list:
        class Trainer(self.library.Trainer):
            def get_train_dataloader(self):
                loader = make_loader()
                loader.set_epoch(epoch)  # skip_first_batches takes the loader's next epoch
                return loader

        model = Seen()
        arguments = self.library.TrainingArguments(
            self.folder,
            num_train_epochs=epochs,
            save_strategy="steps",
            save_steps=4,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model, arguments).train(resume_from_checkpoint=checkpoint)
        return model.batches

    def test_trains_and_resumes_within_an_epoch(self):
        batches = self.train(2)
        assert batches == sum(expected_epochs(2), [])  # noqa: RUF017
        assert self.train(2, str(self.folder / "checkpoint-4")) == batches[4:]
        assert self.train(2, str(self.folder / "checkpoint-8"), epoch=1) == batches[8:]


class TestAccelerate:
    @pytest.fixture(autouse=True)
    def accelerate(self, tmp_path):
        self.library = pytest.importorskip("accelerate", reason="accelerate is not installed")
        self.folder = tmp_path

    def test_trains_and_resumes_by_the_loaders_state(self):
        accelerator = self.library.Accelerator(cpu=True)
        model, loader = accelerator.prepare(Seen(), make_loader())
        accelerator.register_for_checkpointing(loader)
        batches = iter(loader)
        for batch in islice(batches, 3):
            accelerator.backward(model(**batch)["loss"])
        accelerator.save_state(str(self.folder))
        rest = [batch["x"].tolist() for batch in batches]
        assert model.batches + rest == expected_epochs(1)[0]

        resumed = self.library.Accelerator(cpu=True)
        again = make_loader()
        resumed.prepare(Seen(), again)
        resumed.register_for_checkpointing(again)
        resumed.load_state(str(self.folder))
        assert [batch["x"].tolist() for batch in again] == rest

    def test_skips_the_first_batches(self):
        loader = make_loader()
        rest = [batch["x"].tolist() for batch in self.library.skip_first_batches(loader, 2)]
        assert rest == expected_epochs(1)[0][2:]


def test_torchdata_s_checkpoints_hold_the_loaders_state(tmp_path):
    """Code that was written for StatefulDataLoader calls the same two methods."""
    stateful = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed"
    )
    for make in (make_loader, lambda: stateful.StatefulDataLoader(Rows(), 4)):
        loader = make()
        running = iter(loader)
        first = [batch["x"].tolist() for batch in islice(running, 2)]
        torch.save({"loader": loader.state_dict()}, tmp_path / "checkpoint.pt")
        rest = [batch["x"].tolist() for batch in running]
        resumed = make()
        state = torch.load(tmp_path / "checkpoint.pt", weights_only=False)
        resumed.load_state_dict(state["loader"])
        assert [batch["x"].tolist() for batch in resumed] == rest
        assert len(first + rest) == 6
