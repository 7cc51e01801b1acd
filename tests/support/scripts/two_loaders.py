"""A script that validates inside of its loop of training, and then ends as its argument says."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, count, sleep_s):
        self.count, self.sleep_s = count, sleep_s

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index < 0:
            raise ValueError("no such sample")
        time.sleep(self.sleep_s)
        return torch.tensor(float(index))


def refuse(samples):
    raise ValueError("no such batch")


def validate(loader):
    for _batch in loader:
        time.sleep(0.002)


def train():
    training = DataLoader(Numbers(80, 0.0001), 4)
    validation = DataLoader(Numbers(16, 0.001), 4)
    next(iter(training))  # to look at a shape
    for number, _batch in enumerate(training):
        time.sleep(0.004)
        if number % 10 == 9:
            validate(validation)


way = sys.argv[1]
train()
if way != "wait":
    print("trained", flush=True)
if way == "raise":
    raise RuntimeError("diverged")
if way == "fail":
    list(DataLoader(Numbers(4, 0), sampler=[-1]))
if way == "worker":
    list(DataLoader(Numbers(4, 0), sampler=[-1], num_workers=1))
if way in ("collate", "collate in worker"):
    list(DataLoader(Numbers(4, 0), collate_fn=refuse, num_workers=int(way != "collate")))
if way == "exit":
    sys.exit(3)
if way == "wait":
    try:
        print("trained", flush=True)  # a signal may come at once
        # In turns: a signal that comes just before a wait without an end would not end it.
        while True:
            time.sleep(0.1)
    finally:
        print("finally", flush=True)
if way == "kill":
    time.sleep(0.3)
    next(iter(DataLoader(Numbers(4, 0))))  # what was recorded before is written at latest now
    os.kill(os.getpid(), signal.SIGKILL)
