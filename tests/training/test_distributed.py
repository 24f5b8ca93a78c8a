"""DistributedDataParallel on two processes: draws differ by rank, gradients are averaged, the KL counts once."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

import pocketbayes as pb
from pocketbayes.likelihood import Homoscedastic
from pocketbayes.posterior.weights import stochastic_weights
from scenarios import prior_matters


def train(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    truth = prior_matters()
    model = pb.bayesianize(truth.model(), prior=pb.ZeroMean(truth.prior_sigma), sigma=pb.Absolute(0.05))
    wrapped = DistributedDataParallel(model)
    mine = [(truth.x[rank::2], truth.y[rank::2])]
    options = {"lr": 0.02, "rho_lr": 0.02, "samples": 2, "anneal": 0.0, "progress": False}
    pb.fit(wrapped, mine, epochs=700, num_data=60, likelihood=Homoscedastic(truth.noise), **options)
    q = stochastic_weights(model)[0].moments
    torch.save({"mu": q.mu.detach(), "sigma": q.sigma.detach()}, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def test_two_processes_train_one_posterior(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(train, (port, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert torch.equal(first["mu"], second["mu"])
    assert torch.equal(first["sigma"], second["sigma"])
    truth = prior_matters()
    assert (first["sigma"][0] / truth.sigma - 1).abs().max() < 0.15
    counted_twice = (truth.precision.diagonal() + 1 / truth.prior_sigma**2).rsqrt()
    assert (counted_twice / truth.sigma - 1).abs().max() > 0.2  # the control: that would be told apart
    assert ((first["mu"][0] - truth.mu) / truth.sigma).abs().max() < 0.3
