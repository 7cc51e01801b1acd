"""A training script for `traceml run`: a pipeline as a plain loop."""

import json
import os

import torch
import traceml_ai as traceml

from experiments.explain.pipelines import Pipeline
from experiments.explain.plain import build_loader, build_step, train_batch
from experiments.explain.traceml import VARIABLE

EPOCHS = 6


def main() -> None:
    pipeline = Pipeline(**json.loads(os.environ[VARIABLE]))
    torch.set_num_threads(pipeline.threads)
    traceml.init(mode="auto")
    loader, (model, optimizer) = build_loader(pipeline), build_step(pipeline)
    for _ in range(EPOCHS):
        for batch in loader:
            with traceml.trace_step(model):
                train_batch(model, optimizer, batch)


if __name__ == "__main__":
    main()
