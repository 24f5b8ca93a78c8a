from __future__ import annotations

import math

import pytest
import torch
from torch import fx, nn

from pocketbayes import nets

MAKERS = {
    "mlp": (lambda: nets.mlp([8, 50, 50, 2], nn.Tanh), (8,), 2),
    "digits_net": (nets.digits_net, (1, 8, 8), 10),
    "lenet": (nets.lenet, (1, 28, 28), 10),
    "lenet_rgb": (lambda: nets.lenet(7, in_channels=3, image_size=32), (3, 32, 32), 7),
    "resnet20": (nets.resnet20, (3, 32, 32), 10),
    "resnet32": (lambda: nets.resnet32(num_classes=100, in_channels=1), (1, 32, 32), 100),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_net_can_be_traced_and_leaves_its_input_alone(name: str) -> None:
    maker, shape, outputs = MAKERS[name]
    torch.manual_seed(0)
    net = maker().eval()
    x = torch.randn(2, *shape)
    before = x.clone()
    y = net(x)
    assert y.shape == (2, outputs)
    assert torch.equal(x, before)
    torch.testing.assert_close(fx.symbolic_trace(net)(x), y)


@pytest.mark.parametrize(
    ("maker", "parameters"),
    [
        (lambda: nets.mlp([8, 50, 50, 2]), 8 * 50 + 50 + 50 * 50 + 50 + 50 * 2 + 2),
        (nets.digits_net, 22_954),
        (nets.lenet, 61_706),
        (nets.resnet20, 269_722),
        (nets.resnet32, 464_154),
        (nets.resnet44, 658_586),
        (nets.resnet56, 853_018),
    ],
)
def test_parameter_counts_are_those_of_the_literature(maker: type, parameters: int) -> None:
    assert sum(p.numel() for p in maker().parameters()) == parameters


def test_resnet_keys_are_the_usual_ones() -> None:
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in range(3)]
    convs = ["conv1", *(f"{block}.conv{i}" for block in blocks for i in (1, 2))]
    norms = ["bn1", *(f"{block}.bn{i}" for block in blocks for i in (1, 2))]
    expected = {f"{conv}.weight" for conv in convs} | {"linear.weight", "linear.bias"}
    expected |= {
        f"{norm}.{part}" for norm in norms for part in ("weight", "bias", "running_mean", "running_var")
    }
    keys = {key for key in nets.resnet20().state_dict() if not key.endswith("num_batches_tracked")}
    assert keys == expected


def test_a_resnet_takes_a_state_dict_without_batch_counters() -> None:
    state = {k: v for k, v in nets.resnet20().state_dict().items() if not k.endswith("num_batches_tracked")}
    nets.resnet20().load_state_dict(state, strict=True)


def test_the_option_a_shortcut_subsamples_and_pads_with_zero_channels() -> None:
    x = torch.randn(2, 16, 8, 8)
    y = nets.OptionA(16, 32, stride=2)(x)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert y[:, :8].abs().sum() == y[:, 24:].abs().sum() == 0


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_signals_keep_their_size_through_a_deep_mlp(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = nets.mlp([256] * 6, activation)
    spread = net(torch.randn(500, 256)).std().item()
    assert (0.5 if activation is nn.ReLU else 0.2) < spread < 2.0
    plain = nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(256, 256), activation())))
    assert plain(torch.randn(500, 256)).std().item() < 0.1  # PyTorch's own start lets them fade


def test_an_untrained_classifier_starts_near_chance() -> None:
    torch.manual_seed(0)
    for net, shape in ((nets.digits_net(), (1, 8, 8)), (nets.resnet20(), (3, 32, 32))):
        loss = nn.functional.cross_entropy(net(torch.randn(64, *shape)), torch.randint(10, (64,)))
        assert loss.item() < 2.5 * math.log(10)


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \[3\]"):
        nets.mlp([3])
    with pytest.raises(ValueError, match="positive"):
        nets.mlp([3, 0, 1])
    with pytest.raises(ValueError, match="28 or 32, got 64"):
        nets.lenet(image_size=64)
