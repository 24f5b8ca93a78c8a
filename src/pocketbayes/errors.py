"""Errors and warnings that say what is wrong, where, and what to do.

Examples:
    >>> pathlib.Path("no.pocket").write_bytes(b"something else")
    14
    >>> try:
    ...     pb.artifact.decode("no.pocket")
    ... except pb.errors.ArtifactError as error:
    ...     print(error)
    no.pocket: ...
"""

from __future__ import annotations


class ArtifactError(ValueError):
    """A pocket file, or a checkpoint, that cannot be read or does not fit the model."""


class NetworkNotGivenError(ValueError):
    """A file's network is not one of the library's own, and the user did not name it."""


class NonFiniteError(ArithmeticError):
    """Training met a NaN or an infinity; names the step and the parameter."""


class RankError(RuntimeError):
    """Processes that work together do not agree, or one of them has ended."""


class ConvergenceWarning(UserWarning):
    """An iteration stopped at its limit before it met its tolerance."""


class ReproducibilityWarning(UserWarning):
    """A run that cannot be repeated bit by bit, and why."""


_EXTRAS = {
    "torch": "torch",
    "scipy": "torch",
    "safetensors": "torch",
    "onnxruntime": "runtime",
    "PIL": "runtime",
}


def not_installed(error: ModuleNotFoundError, what: str) -> ImportError:
    """The same error, with the command that installs what is missing, if it belongs to an extra."""
    package = str(error.name).partition(".")[0]
    if package not in _EXTRAS:
        return error
    return ImportError(
        f"{what} needs {package}, which is not installed. Run: pip install 'pocketbayes[{_EXTRAS[package]}]'"
    )
