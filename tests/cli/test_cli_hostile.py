"""A file is data: no command calls, imports or builds what a file names, unless the user names it too."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from cli_runs import complaint, result, run
from pocketbayes import artifact

# Every command that opens a file, with the file's name as {}.
COMMANDS = {
    "predict": "predict {} one.npy",
    "evaluate": "evaluate {} --data digits",
    "bench": "bench {} --rounds 1",
    "export": "export {} more.pocket",
    "report": "report {} --data digits",
    "noise": "noise readings.csv --model {} --data digits",
    "compress": "compress --weights {} --data digits --max-bytes 3000 --out made",
}
PLAIN = ("predict", "evaluate")  # commands that read weights without a posterior too, and run graphs
EVIL = "from pathlib import Path\nPath('called').touch()\n\ndef net(**_):\n    raise SystemExit\n\nsplits = net\n"


def say(source: Path, target: Path, **changes: Any) -> None:
    """The same file with other metadata."""
    if source.suffix == ".pocket":
        pocket = artifact.decode(source)
        pocket.metadata.update(changes)
        target.write_bytes(artifact.encode(pocket).data)
        return
    with safe_open(source, framework="np") as file:
        metadata = json.loads(file.metadata()["pocketbayes"]) | changes
    save_file(load_file(source), target, metadata={"pocketbayes": json.dumps(metadata)})


def drop_graph(file: Path) -> None:
    file.write_bytes(artifact.encode(replace(artifact.decode(file), graph=b"")).data)


@pytest.fixture
def trap(here: Path) -> Path:
    """A folder with a module that leaves a file named `called` when it is imported or called."""
    (here / "evil.py").write_text(EVIL)
    np.save("one.npy", np.zeros((8, 8)))
    np.savetxt("readings.csv", np.random.default_rng(0).normal(size=200))
    return here


@pytest.mark.parametrize("name", ["evil:net", "os:system", "shopnets:net", "pathlib:Path.touch"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_network_that_only_the_file_names_is_not_run(
    command: str, name: str, trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = {"command": "touch called"} if name == "os:system" else {}
    for source in ("small.pocket", "plain.safetensors")[: 2 if command in PLAIN else 1]:
        file = f"hostile{Path(source).suffix}"
        say(trap / source, trap / file, net=name, args={})
        line = COMMANDS[command].format(file)
        if command in PLAIN and source == "small.pocket":
            assert run(f"{line} --samples 2") == 0  # by the file's own graph
            drop_graph(trap / file)
        assert "not one of the library's own" in complaint(line, 1, capsys)
        if args:
            say(trap / source, trap / file, net=name, args=args)
            assert "do not say how to use it" in complaint(COMMANDS[command].format(file), 1, capsys)
    assert not (trap / "called").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_network_that_the_user_names_is_used_and_the_name_in_the_file_ignored(
    command: str, trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say(trap / "small.pocket", trap / "hostile.pocket", net="evil:net")
    line = f"{COMMANDS[command].format('hostile.pocket')} --net shopnets:net"
    if command == "compress":  # a shared posterior cannot be shared again; it was opened all the same
        assert "shared" in complaint(line, 1, capsys)
    else:
        extra = {"bench": "--samples 1", "export": "--debug", "noise": "--samples 4 --repeats 2 --examples 5"}
        assert run(f"{line} {extra.get(command, '--samples 2')}") == 0
    assert not (trap / "called").exists()


@pytest.mark.parametrize("key", ["data", "ood"])
def test_a_function_that_only_the_record_names_is_not_called(
    key: str, trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((trap / "small.json").read_text())
    record["settings"][key] = "evil:splits"
    (trap / "small.json").write_text(json.dumps(record))
    message = complaint("report small.pocket --net shopnets:net", 2, capsys)
    assert f"--{key} evil:splits" in message
    assert not (trap / "called").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"args": {"in_channels": 10**12}},
        {"args": {"num_classes": -1}},
        {"args": {"num_classes": 2.5}},
        {"args": {"num_classes": True}},
        {"args": {"path": "x"}},
        {"args": [1]},
        {"args": 7},
        {"classes": 10**12},
        {"classes": -3},
        {"classes": True},
        {"classes": [["a"]]},
        {"classes": {"a": 1}},
        {"shape": [1 << 19, 1 << 19]},
        {"shape": [8.5, 8]},
        {"shape": 64},
        {"scale": [[0.0], [0.0], 1.0]},
        {"scale": [[0.0], [1.0], 0.0]},
        {"scale": [["a"], [1.0], 1.0]},
        {"scale": [[1e300], [1.0], 1.0]},
        {"scale": [[0.0], [1e-60], 1.0]},
        {"scale": [[0.0], [1.0], 1e-60]},
        {"scale": [[0.0, 0.0], [1.0], 1.0]},
        {"net": ["lenet"]},
        {"net": {"lenet": 1}},
        {"unsure": "often"},
        {"unsure": -1.0},
        {"noise_sigma": [1]},
    ],
    ids=str,
)
def test_a_card_that_makes_no_sense_is_one_line(
    changes: dict[str, Any], trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in ("small.pocket", "plain.safetensors"):
        file = f"hostile{Path(source).suffix}"
        say(trap / source, trap / file, **{"net": "digits_net", **changes})
        started = time.perf_counter()
        assert "do not say how to use it" in complaint(f"predict {file} one.npy", 1, capsys)
        assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("net", "args", "code", "message"),
    [
        ("mlp:" + "1," * 200_000 + "1", {"in_features": 64, "out_features": 10}, 1, "hidden widths"),
        ("mlp:" + "9" * 30, {"in_features": 64, "out_features": 10}, 1, "hidden widths"),
        ("mlp:1000000,1000000", {"in_features": 64, "out_features": 10}, 1, "does not fit"),
        ("mlp:8", {"in_features": 1 << 20, "out_features": 1 << 20}, 1, "does not fit"),
        ("resnet56", {"in_channels": 1 << 20, "num_classes": 1 << 20}, 1, "does not fit"),
        ("lenet", {"image_size": 31}, 1, "image_size"),
        ("mlp:8", {}, 1, "does not fit"),
        ("mlps", {}, 1, "not one of the library"),
        ("mlp:64, 64\n", {"in_features": 64, "out_features": 10}, 1, "does not fit"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_network_too_large_for_its_file_is_never_built(
    net: str, args: dict[str, int], code: int, message: str, trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in ("small.pocket", "plain.safetensors"):
        file = f"hostile{Path(source).suffix}"
        say(trap / source, trap / file, net=net, args=args)
        if source == "small.pocket":
            drop_graph(trap / file)
        started = time.perf_counter()
        assert message in complaint(f"predict {file} one.npy", code, capsys)
        assert time.perf_counter() - started < 2


def test_a_network_of_the_library_needs_no_name_from_the_user(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = result("evaluate narrow.pocket --data shopnets:line --samples 2", capsys)
    assert found["examples"] == 60
