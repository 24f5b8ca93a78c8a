"""The options that commands share: names, types and help in one place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from pocketbayes.cli.config import read_config

NETWORK, DATA, OUTPUT, PLAN, BAYESIAN = "Network", "Data", "Output", "How it works", "Bayesian"
_UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def byte_count(text: str | int) -> int:
    """90000, "90 KB" (thousands) or "88KiB" (1024s) as a number of bytes."""
    match = re.fullmatch(r"\s*([\d_]*\.?\d+)\s*([KMG]I?)?B?\s*", str(text).upper())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a size. Write bytes such as 90000, 90KB or 88KiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


# --- every command ---------------------------------------------------------------------------------------------

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON and nothing else.", rich_help_panel=OUTPUT)
]
Debug = Annotated[bool, typer.Option("--debug", help="On an error, show the traceback.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="All random numbers follow from it.")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        is_eager=True,
        callback=read_config,
        help="Options from a file; the command line wins.",
    ),
]

# --- network and files -----------------------------------------------------------------------------------------

Net = Annotated[
    str | None,
    typer.Option(
        "--net",
        metavar="NET",
        rich_help_panel=NETWORK,
        help="package.module:function that builds the network, or a name: digits_net, lenet, resnet20, "
        "resnet32, resnet44, resnet56, mlp:64,64 (hidden widths).",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(
        "--weights",
        metavar="FILE",
        rich_help_panel=NETWORK,
        help="Its trained weights: safetensors, a torch state_dict, or a pocket file with a posterior.",
    ),
]
PocketFile = Annotated[Path, typer.Argument(metavar="FILE", help="A pocket file.", show_default=False)]

# --- data ------------------------------------------------------------------------------------------------------

Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DATA",
        rich_help_panel=DATA,
        help="digits, diabetes, mnist, fashion-mnist, cifar10, cifar100, svhn; an .npz or .csv file; a folder of "
        "images; or package.module:function.",
    ),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        rich_help_panel=DATA,
        help="Where named data sets are, or go; POCKETBAYES_DATA or ~/.cache/pocketbayes by default.",
    ),
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", min=1, rich_help_panel=DATA, help="Examples in a batch.")
]
Validation = Annotated[
    float,
    typer.Option(
        "--validation",
        metavar="FRACTION",
        min=0.0,
        max=0.9,
        rich_help_panel=DATA,
        help="Share of the training data held out to choose by; 0 for none.",
    ),
]
Augment = Annotated[
    bool, typer.Option("--augment", rich_help_panel=DATA, help="Shift and mirror images at random.")
]
Mean = Annotated[
    str | None,
    typer.Option(
        "--mean",
        metavar="M1,M2,...",
        rich_help_panel=DATA,
        help="Input mean by channel, pixels from 0 to 1, that the weights were trained with.",
    ),
]
Std = Annotated[
    str | None,
    typer.Option("--std", metavar="S1,S2,...", rich_help_panel=DATA, help="Input deviation, likewise."),
]
ImageSize = Annotated[
    str | None,
    typer.Option(
        "--image-size", metavar="HxW", rich_help_panel=DATA, help="Resize the images of a folder to this."
    ),
]
Targets = Annotated[
    int, typer.Option("--targets", min=1, rich_help_panel=DATA, help="Last columns of a CSV to predict.")
]
Ood = Annotated[
    str | None,
    typer.Option(
        "--ood",
        metavar="DATA",
        rich_help_panel=DATA,
        help="Foreign inputs, named like --data; labels are not used.",
    ),
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="Draws of the network that are averaged.")]

# --- training --------------------------------------------------------------------------------------------------

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", rich_help_panel=OUTPUT, help="The file to write."),
]
Restart = Annotated[
    bool, typer.Option("--restart", help="Begin anew where an unfinished run would be resumed.")
]
Page = Annotated[
    bool, typer.Option("--page/--no-page", rich_help_panel=OUTPUT, help="Write the report page OUT.html.")
]
MaxRisk = Annotated[
    float | None,
    typer.Option(
        "--max-risk",
        metavar="FRACTION",
        min=0.0,
        max=1.0,
        help="Wrong answers allowed among the sure ones, on validation data; half the error rate by default. "
        'Less sure ones are "not sure".',
    ),
]
TestSamples = Annotated[
    int, typer.Option("--test-samples", min=1, help="Draws of the network for the test metrics.")
]

Epochs = Annotated[int, typer.Option("--epochs", min=1, help="Passes over the training data.")]
Lr = Annotated[float, typer.Option("--lr", min=0.0, help="Learning rate of Adam, with a cosine.")]
Clip = Annotated[float | None, typer.Option("--clip", min=0.0, help="Largest norm of the gradient.")]
Patience = Annotated[
    int | None, typer.Option("--patience", min=1, help="Stop after so many epochs without a better NLL.")
]
Prior = Annotated[
    str | None,
    typer.Option(
        "--prior",
        metavar="PRIOR",
        help="Standard deviation of the weights' prior: 0.2, fan-in, fan-in:GAIN, or pretrained:0.1 around the "
        "given weights. By default fan-in with --bayesian, and none without.",
    ),
]
Bayesian = Annotated[
    bool, typer.Option("--bayesian", rich_help_panel=BAYESIAN, help="Train a posterior; write a pocket file.")
]
KlWeight = Annotated[
    float,
    typer.Option("--temperature", min=0.0, rich_help_panel=BAYESIAN, help="Weight of the KL; 1 is the ELBO."),
]
KlAnneal = Annotated[
    float,
    typer.Option(
        "--anneal", min=0.0, max=1.0, rich_help_panel=BAYESIAN, help="Share of the steps in which it rises."
    ),
]
Sigma = Annotated[
    str,
    typer.Option(
        "--sigma",
        metavar="WIDTH",
        rich_help_panel=BAYESIAN,
        help="Where the widths start: relative:0.1 to the weights, fan-in:GAIN, or a number.",
    ),
]
OwnRhoLr = Annotated[
    float | None,
    typer.Option(
        "--rho-lr", min=0.0, rich_help_panel=BAYESIAN, help="Learning rate of rho; 10 lr by default."
    ),
]
TrainingSamples = Annotated[
    int, typer.Option("--samples", min=1, rich_help_panel=BAYESIAN, help="Draws a step.")
]

# --- the budget and the plan of compress -----------------------------------------------------------------------

BUDGET = "Budget: exactly one"
MaxBytes = Annotated[
    int | None,
    typer.Option(
        "--max-bytes",
        metavar="SIZE",
        parser=byte_count,
        rich_help_panel=BUDGET,
        help="Size of the file: 90000, 90KB, 88KiB.",
    ),
]
MaxAccuracyDrop = Annotated[
    float | None,
    typer.Option(
        "--max-accuracy-drop",
        metavar="FRACTION",
        min=0.0,
        rich_help_panel=BUDGET,
        help="Loss of validation accuracy: 0.01 is one point.",
    ),
]
MaxNllRise = Annotated[
    float | None,
    typer.Option(
        "--max-nll-rise", metavar="NATS", min=0.0, rich_help_panel=BUDGET, help="Rise of validation NLL."
    ),
]
PriorScale = Annotated[
    str,
    typer.Option(
        "--prior",
        metavar="SCALE",
        rich_help_panel=PLAN,
        help="Standard deviation of the weights' prior: 0.2, or fan-in, or fan-in:GAIN.",
    ),
]
Temperature = Annotated[
    float,
    typer.Option(
        "--temperature",
        min=1e-9,
        rich_help_panel=PLAN,
        help="Of the posterior: weight of the KL, and width; choose on validation data.",
    ),
]
FisherBatches = Annotated[
    int,
    typer.Option(
        "--fisher-batches",
        min=0,
        rich_help_panel=PLAN,
        help="Batches that measure the widths; 0 for all.",
    ),
]
PosteriorEpochs = Annotated[
    int,
    typer.Option(
        "--posterior-epochs", min=0, rich_help_panel=PLAN, help="Epochs on the ELBO before sharing."
    ),
]
SharingEpochs = Annotated[
    int, typer.Option("--epochs", min=1, rich_help_panel=PLAN, help="Epochs that alternate with sharing.")
]
FinetuneEpochs = Annotated[
    int, typer.Option("--finetune-epochs", min=0, rich_help_panel=PLAN, help="Epochs with the labels fixed.")
]
RhoLr = Annotated[
    float,
    typer.Option(
        "--rho-lr", min=0.0, rich_help_panel=PLAN, help="Learning rate of the widths while sharing."
    ),
]
FinetuneLr = Annotated[
    float,
    typer.Option("--finetune-lr", min=0.0, rich_help_panel=PLAN, help="Learning rate with the labels fixed."),
]
Distillation = Annotated[
    float,
    typer.Option(
        "--distillation",
        metavar="SHARE",
        min=0.0,
        max=1.0,
        rich_help_panel=PLAN,
        help="Share of the given network's answers in the targets, beside the labels; for classes.",
    ),
]
Calibrate = Annotated[
    bool,
    typer.Option(
        "--calibrate",
        rich_help_panel=PLAN,
        help="At the end, scale all widths by the factor with the least validation NLL.",
    ),
]
RenewEvery = Annotated[
    int,
    typer.Option(
        "--renew-every",
        min=1,
        rich_help_panel=PLAN,
        help="Steps between assignments; more is faster, and worse.",
    ),
]
Anneal = Annotated[
    float,
    typer.Option(
        "--anneal",
        min=0.0,
        max=1.0,
        rich_help_panel=PLAN,
        help="Share of the steps in which sharing tightens.",
    ),
]
Components = Annotated[
    int, typer.Option("--components", min=1, rich_help_panel=PLAN, help="Gaussians to share, at most.")
]
Tries = Annotated[
    int,
    typer.Option("--tries", min=1, rich_help_panel=PLAN, help="Trainings in the search for a loss budget."),
]
ValidationSamples = Annotated[
    int, typer.Option("--samples", min=1, rich_help_panel=PLAN, help="Draws in validation.")
]
