"""The command line.  Torch is imported inside the commands that need it, so that `--help` answers at once."""

from importlib import import_module

from pocketbayes.cli.entry import app, main

COMMANDS = (
    "demo",
    "train",
    "compress",
    "evaluate",
    "predict",
    "inspect",
    "export",
    "report",
    "noise",
    "bench",
)

for _command in COMMANDS:  # in this order in the help
    import_module(f"pocketbayes.cli.{_command}")

__all__ = ["COMMANDS", "app", "main"]
