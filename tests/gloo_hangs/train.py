"""A job that hangs on purpose: rank 1 of three does not reach the sixth all-reduce.

    torchrun --nproc-per-node 3 train.py sleep|mismatch|data

`record` in this folder starts it and tells each rank when to write its Flight Recorder dump: gloo does not write one when an
operation times out, as NCCL does.
"""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

STUCK_RANK = 1
STUCK_STEP = 5


class Samples(Dataset):
    """Samples, of which one comes from a pipe that nobody writes to, as from a file server that does not answer."""

    def __init__(self, pipe):
        self.pipe = pipe

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index == STUCK_STEP and self.pipe:
            with open(self.pipe, "rb") as pipe:
                return torch.tensor(float(len(pipe.read())))
        return torch.tensor(float(index))


def train_step(gradient, kind, step):
    if step == STUCK_STEP and dist.get_rank() == STUCK_RANK:
        if kind == "sleep":
            time.sleep(3600)
        if kind == "mismatch":
            evaluate(gradient)
    dist.all_reduce(gradient)


def evaluate(gradient):
    parts = [torch.zeros_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, gradient)


def dump_later(rank):
    from torch._C._distributed_c10d import _dump_fr_trace_file

    while not os.path.exists(os.environ["HANG_DUMP"]):
        time.sleep(0.1)
    _dump_fr_trace_file(rank, includeStackTraces=True)


def main(kind):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    threading.Thread(target=dump_later, args=(rank,), daemon=True, name="dump").start()
    pipe = os.environ["HANG_PIPE"] if kind == "data" and rank == STUCK_RANK else None
    loader = DataLoader(Samples(pipe), batch_size=1, num_workers=1 if kind == "data" else 0)
    for step, sample in enumerate(loader):
        train_step(torch.ones(1024) * sample, kind, step)


if __name__ == "__main__":
    main(sys.argv[1])
