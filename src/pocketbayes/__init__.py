"""pocketbayes: any PyTorch network as a Bayesian one that fits in a pocket."""

from __future__ import annotations

import importlib
from typing import Any

from pocketbayes.errors import not_installed

__version__ = "0.2.0"

# The public names in pipeline order, and where each lives; imported on first use, since torch alone takes seconds.
_HOME = {
    "bayesianize": "posterior.convert",
    "Modes": "posterior.modes",
    "describe": "posterior.describe",
    "ZeroMean": "posterior.priors",
    "Pretrained": "posterior.priors",
    "FanIn": "posterior.priors",
    "Absolute": "posterior.priors",
    "Relative": "posterior.priors",
    "one_draw": "posterior.draws",
    "mean_weights": "posterior.draws",
    "to_deterministic": "posterior.convert",
    "break_symmetry": "structure.breaking",
    "kl_divergence": "posterior.weights",
    "nelbo": "training.objective",
    "fit": "training.fit",
    "fit_map": "training.fit",
    "Distilled": "training.distillation",
    "fisher_information": "posterior.laplace",
    "laplace_sigma": "posterior.laplace",
    "share": "sharing.share",
    "Rate": "sharing.rate",
    "Paper": "sharing.share",
    "calibrate": "prediction.calibrate",
    "conformal": "prediction.conformal",
    "compress": "compression.compress",
    "Plan": "compression.plan",
    "predict": "prediction.predict",
    "evaluate": "prediction.evaluate",
    "Predictive": "prediction.answer",
    "Regression": "prediction.answer",
    "choose_threshold": "prediction.threshold",
    "selective": "prediction.threshold",
    "save": "artifact.store",
    "add_graph": "artifact.store",
    "load": "artifact.store",
    "read": "artifact.store",
    "to_onnx": "artifact.to_graph",
    "open": "runtime.choice",
    "Predictor": "artifact.predictor",
    "push_to_hub": "artifact.hub",
    "from_pretrained": "artifact.hub",
    "fit_noise": "noise",
    "with_noise": "posterior.with_noise",
    "energy_distance": "noise",
    "shape_sensitivity": "prediction.noise_shape",
}
_MODULES = (
    "noise",
    "likelihood",
    "structure",
    "sharing",
    "metrics",
    "artifact",
    "runtime",
    "data",
    "nets",
    "errors",
)

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module 'pocketbayes' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"pocketbayes.{_HOME.get(name, name)}")
    except ModuleNotFoundError as error:
        raise not_installed(error, f"pocketbayes.{name}") from error
    value = getattr(module, name) if name in _HOME else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
