"""The Hugging Face Hub: a pocket file with its model card up, and a `Predictor` down."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbayes.artifact.open import Net, open
from pocketbayes.artifact.predictor import Predictor
from pocketbayes.artifact.summary import Summary, inspect

if TYPE_CHECKING:
    from huggingface_hub import HfApi

FILE, CARD = "model.pocket", "README.md"


def push_to_hub(
    path: str | os.PathLike[str],
    repo_id: str,
    *,
    scores: Mapping[str, float] | None = None,
    dataset: str | None = None,
    text: str = "",
    public: bool = True,
    token: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Put a pocket file on the Hub, or into a folder, with a model card as its README.md.

    Args:
        path: the pocket file.
        repo_id: "user/name", made if it is not there; or a folder, one that exists or begins with "." or "/".
        scores: what `evaluate` found; they stand in the card, and in its metadata if `dataset` says on what.
        dataset: the data that the scores are of, such as "cifar10".
        text: what you want to say about the model, Markdown.
        public: whether a repository that is made may be read by all.
        token: of the Hub; by default the one that `hf auth login` keeps.
        endpoint: another server than huggingface.co.

    Returns:
        The address of the repository, or the path of the folder.

    Examples:
        >>> import pocketbayes as pb
        >>> _ = pb.save(pb.bayesianize(torch.nn.Linear(2, 3)), "small.pocket")
        >>> _ = pb.push_to_hub("small.pocket", "./hub", scores={"accuracy": 0.9}, dataset="flowers")
        >>> sorted(path.name for path in pathlib.Path("hub").iterdir())
        ['README.md', 'model.pocket']
    """
    card = _card(inspect(path), dict(scores or {}), dataset, text, repo_id)
    content = Path(path).read_bytes()
    folder = _folder(repo_id)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_bytes(content)
        (folder / CARD).write_text(card, encoding="utf-8")
        return str(folder)
    from huggingface_hub import CommitOperationAdd

    api = _api(token, endpoint)
    made = api.create_repo(repo_id, private=not public, exist_ok=True)
    files = [CommitOperationAdd(FILE, content), CommitOperationAdd(CARD, card.encode())]
    api.create_commit(made.repo_id, files, commit_message="Add a pocket file and its card")
    return str(made)


def from_pretrained(
    name: str | os.PathLike[str],
    net: Net | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> Predictor:
    """The pocket file of a Hub repository, or of a folder, opened as `open` does.

    Args:
        name: "user/name" on the Hub, or the path of a folder that `push_to_hub` wrote.
        net: the network, where it is not one of the library's own: see `open`.  Code in a repository is never run.
        revision: a branch, a tag or a commit.
        token, endpoint: as of `push_to_hub`.

    Returns:
        What answers by the file.

    Examples:
        >>> import pocketbayes as pb
        >>> card = {"net": "mlp:8", "args": {"in_features": 2, "out_features": 3}, "shape": [2],
        ...         "classes": ["a", "b", "c"], "scale": [[0.0, 0.0], [1.0, 1.0], 1.0]}
        >>> network = pb.bayesianize(torch.nn.Sequential(torch.nn.Flatten(), *pb.nets.mlp([2, 8, 3])))
        >>> _ = pb.save(network, "small.pocket", metadata=card)
        >>> _ = pb.push_to_hub("small.pocket", "./hub")
        >>> pb.from_pretrained("./hub").predict([[1.0, 2.0]]).probs.shape
        torch.Size([1, 3])
    """
    folder = _folder(name)
    if folder is not None:
        return open(folder / FILE, net)
    api = _api(token, endpoint)
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    try:
        path = api.hf_hub_download(str(name), FILE, revision=revision)
    except (EntryNotFoundError, RepositoryNotFoundError) as error:
        raise FileNotFoundError(
            f"{name}: no repository with a {FILE} that you may read, and no folder (a folder begins with ./). {error}"
        ) from error
    return open(path, net)


def _folder(name: str | os.PathLike[str]) -> Path | None:
    """The folder that a name means, if it is no name on the Hub."""
    is_folder = isinstance(name, os.PathLike) or name.startswith((".", "/", "~")) or Path(name).is_dir()
    return Path(name).expanduser() if is_folder else None


def _api(token: str | None, endpoint: str | None) -> HfApi:
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise ImportError("The Hub needs huggingface_hub: pip install 'pocketbayes[hub]'") from error
    return HfApi(endpoint=endpoint, token=token, library_name="pocketbayes")


# --- the model card ------------------------------------------------------------------------------------------------


def _card(summary: Summary, scores: dict[str, float], dataset: str | None, text: str, name: str) -> str:
    """README.md: metadata that the Hub reads, then Markdown for people."""
    title = Path(name).name
    head = _yaml_lines(title, scores, dataset)
    use = f'import pocketbayes as pb\n\nmodel = pb.from_pretrained("{name}")\nanswer = model.predict(inputs)'
    parts = [
        "\n".join(["---", *head, "---"]),
        f"# {_plain(title)}",
        *([text] if text else []),
        f"A Bayesian neural network in {summary.total_bytes:,} bytes: every weight has a mean and a standard "
        "deviation, and its answers say how sure they are.",
        f"```python\n{use}\n```",
        _facts(summary),
    ]
    if scores:
        rows = "\n".join(f"| {_plain(key)} | {value:.4g} |" for key, value in scores.items())
        parts.append(
            f"## Scores{f' on {_plain(dataset)}' if dataset else ''}\n\n| metric | |\n|---|---|\n{rows}"
        )
    return "\n\n".join(parts) + "\n"


def _facts(summary: Summary) -> str:
    kinds = [t for t in summary.tensors if not t.kind.startswith("tied")]
    classes = summary.metadata.get("classes")
    count = len(classes) if isinstance(classes, list) else classes
    rows = {
        "architecture": summary.architecture,
        "tensors": len(kinds),
        "Gaussians that the weights share": summary.codebook or None,
        "classes": count,
        "file format": f"version {summary.version}",
    }
    shown = "\n".join(f"| {key} | {_plain(str(value))} |" for key, value in rows.items() if value)
    return f"| | |\n|---|---|\n{shown}"


def _plain(text: str) -> str:
    """On one line, and nothing in it is Markdown or HTML: a file is data."""
    line = " ".join(text.split())[:200]
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in line)


def _yaml_lines(title: str, scores: dict[str, float], dataset: str | None) -> list[str]:
    """The head of the card; a JSON value is a YAML value."""
    lines = [
        "library_name: pocketbayes",
        "tags: [pocketbayes, bayesian-neural-network, uncertainty, compression]",
    ]
    if scores and dataset:
        result = {
            "task": {"type": "other"},
            "dataset": {"type": dataset, "name": dataset},
            "metrics": [{"type": key, "value": float(value)} for key, value in scores.items()],
        }
        lines.append("model-index: " + json.dumps([{"name": title, "results": [result]}]))
    return lines
