"""The usual peer, bayesian-torch, converted as its users convert."""

from __future__ import annotations

import contextlib
import io

from torch import nn


def bayesian_torch(model: nn.Module) -> nn.Module:
    """The model with its layers replaced by reparameterised ones, in place; raises ImportError without the peer."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    settings = {
        "prior_mu": 0.0,
        "prior_sigma": 1.0,
        "posterior_mu_init": 0.0,
        "posterior_rho_init": -3.0,
        "type": "Reparameterization",
        "moped_enable": False,
        "moped_delta": 0.5,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        dnn_to_bnn(model, settings)
    return model


def bayesian_torch_kl(model: nn.Module) -> object:
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    return get_kl_loss(model)
