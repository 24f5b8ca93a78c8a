"""Neurons followed through real modules: moving them as the graph says must leave the function as it is."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from pocketbayes.structure import (
    MAP,
    Constant,
    Heavy,
    Light,
    NeuronGraph,
    Zero,
    fix_weights,
    neuron_graph,
    permute_weights,
    residual_symmetry,
)

# --- networks --------------------------------------------------------------------------------------------------


class Shortcut(nn.Module):
    """Any function as a module, as many CIFAR ResNets have it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1:
            p = outputs // 4
            self.shortcut = Shortcut(lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, p, p), "constant", 0))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    """He et al.'s CIFAR ResNet with parameter-free shortcuts."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        stages = [
            Block(width * 2 ** max(s - (b == 0), 0), width * 2**s, 2 if s and b == 0 else 1)
            for s in range(3)
            for b in range(blocks)
        ]
        self.stages = nn.Sequential(*stages)
        self.linear = nn.Linear(4 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.stages(F.relu(self.bn1(self.conv1(x))))
        out = F.avg_pool2d(out, out.size()[3])
        return self.linear(out.view(out.size(0), -1))


class Mobile(nn.Module):
    """Depthwise convolution and a group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.mix = nn.Conv2d(4, 4, 1)
        self.norm = nn.GroupNorm(2, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.depthwise(torch.tanh(self.first(x))))
        x = F.adaptive_avg_pool2d(F.relu(self.norm(self.mix(x))), 1)
        return self.last(torch.flatten(x, 1))


class Gated(nn.Module):
    """Squeeze and excitation, a gated linear unit from one layer's two halves, and a concatenation, flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3)
        self.squeeze = nn.Conv2d(3, 2, 1)
        self.excite = nn.Conv2d(2, 3, 1)
        self.halves = nn.Conv2d(3, 4, 1)
        self.last = nn.Linear(5 * 36, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        a, b = self.halves(x).chunk(2, dim=1)
        x = torch.cat([x, a * torch.sigmoid(b)], dim=1)
        return self.last(x.reshape(x.shape[0], -1))


class LeNet(nn.Module):
    """Everything elementwise as functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(3 * 2 * 2, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2), (2, 2))
        x = F.avg_pool2d(F.relu(self.conv2(input=x)), (2, 2), (2, 2))
        x = F.dropout(F.hardtanh(self.fc1(x.view(-1, 12)), -2.0, 2.0), 0.5, self.training)
        return F.log_softmax(self.fc2(x), dim=1)


class Transformer(nn.Module):
    """Patches, a class token, positions, one pre-norm block with two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 4, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.position = nn.Parameter(torch.randn(1, 5, 4))
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.up, self.down, self.last = nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.last(x[:, 0])


class Recurrent(nn.Module):
    """One layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.again(x))
        return self.last(torch.tanh(self.again(x)))


def randomised(model: nn.Module) -> nn.Module:
    """float64, eval mode, and every parameter and statistic random, so that nothing is symmetric by accident."""
    torch.manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.5 if "var" in name else torch.randn_like(tensor))
    return model.double().eval()


def images() -> Tensor:
    return torch.randn(3, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def outputs_after(
    model: nn.Module, graph: NeuronGraph, x: Tensor, permutation: np.ndarray, signs: np.ndarray | None = None
) -> Tensor:
    moved = permute_weights(graph, model.state_dict(), permutation, signs)
    result: Tensor = torch.func.functional_call(model, moved, (x,))
    return result


def shuffled(graph: NeuronGraph, seed: int) -> np.ndarray:
    """Each hidden group shuffled."""
    rng, permutation = np.random.default_rng(seed), np.arange(graph.size)
    for group in graph.hidden:
        permutation[group.neurons] = rng.permutation(group.neurons)
    return permutation


# --- groups ------------------------------------------------------------------------------------------------------


def test_an_mlp_has_a_group_for_each_layer() -> None:
    graph = neuron_graph(
        nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    )
    found = [(group.name, len(group.neurons), group.distinguished, group.odd) for group in graph.groups]
    assert found == [
        ("input", 3, True, False),
        ("0", 5, False, True),
        ("2", 4, False, False),
        ("4", 2, True, False),
    ]
    assert [weight.name for weight in graph.weights] == ["0.weight", "2.weight", "4.weight"]
    assert "0: 5 neurons, odd" in str(graph)


def test_resnet20_has_the_streams_that_option_a_shortcuts_leave() -> None:
    graph = neuron_graph(ResNet(3, 16))
    sizes = sorted(len(group.neurons) for group in graph.hidden)
    # 9 inner layers of 16, 32 and 64, and streams of 16, 16 and 32: stage 2 shares 16 of its 32 with stage 1,
    # stage 3 shares 32 of its 64 with stage 2.
    assert sizes == sorted([16] * 3 + [32] * 3 + [64] * 3 + [16, 16, 32])
    bare = residual_symmetry(graph)
    assert bare.log10_permutations == pytest.approx(475.59, abs=5e-3)
    assert bare.signed == bare.permutations


def test_schemes_leave_no_permutation_in_resnet20_within_seconds() -> None:
    model = ResNet(3, 16)
    start = time.perf_counter()
    graph = neuron_graph(model)
    for scheme in (Light(), Heavy()):
        for values in (Zero(), Constant(1.0), MAP(model.state_dict())):
            assert residual_symmetry(graph, fix_weights(graph.weights, scheme, values)).permutations == 1
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("seed", range(3))
def test_shuffling_the_groups_of_a_residual_network_keeps_its_function(seed: int) -> None:
    model = randomised(ResNet(2, 4))
    graph = neuron_graph(model)
    permutation = shuffled(graph, seed)
    assert (permutation != np.arange(graph.size)).sum() > graph.size / 2
    torch.testing.assert_close(outputs_after(model, graph, images(), permutation), model(images()))


def test_new_channels_may_also_be_written_as_a_stream_times_zero() -> None:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.wide = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 6, 3, padding=1)
            self.last = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.first(x))
            x = self.wide(x) + torch.cat((x, x.mul(0)), 1)
            return self.last(x.mean(dim=(2, 3)))

    model = randomised(Doubling())
    graph = neuron_graph(model)
    assert sorted(len(group.neurons) for group in graph.hidden) == [3, 3]
    torch.testing.assert_close(outputs_after(model, graph, images(), shuffled(graph, 0)), model(images()))


def test_groups_of_a_residual_network_cannot_be_larger() -> None:
    """Swapping channels of two groups within a stage, consistently in every layer, changes the function."""
    model = randomised(ResNet(1, 4))
    graph = neuron_graph(model)
    groups = {group.name: group.neurons for group in graph.groups}
    shared, own = groups["conv1"][0], groups["stages.1.conv2"][0]
    permutation = np.arange(graph.size)
    permutation[[shared, own]] = own, shared
    with pytest.raises(ValueError, match="out of its group"):
        outputs_after(model, graph, images(), permutation)


def test_flattened_channels_move_as_blocks() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 2)
    )
    model = randomised(model)
    graph = neuron_graph(model)
    assert [len(group.neurons) for group in graph.hidden] == [4]
    torch.testing.assert_close(outputs_after(model, graph, images(), shuffled(graph, 0)), model(images()))


def test_networks_written_with_functions_are_followed() -> None:
    model = randomised(LeNet())
    graph = neuron_graph(model)
    assert [(len(group.neurons), group.odd) for group in graph.hidden] == [(4, False), (3, False), (5, True)]
    torch.testing.assert_close(outputs_after(model, graph, images(), shuffled(graph, 0)), model(images()))


def test_transposed_convolutions_and_prelu_move_with_their_channels() -> None:
    model = randomised(
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.ConvTranspose2d(4, 5, 2), nn.Tanh(), nn.Conv2d(5, 2, 1)
        )
    )
    graph = neuron_graph(model)
    torch.testing.assert_close(outputs_after(model, graph, images(), shuffled(graph, 0)), model(images()))
    assert [(len(group.neurons), group.odd) for group in graph.hidden] == [(4, False), (5, True)]


# --- functions and symmetries must agree -------------------------------------------------------------------------


def functional_count(model: nn.Module, x: Tensor) -> int:
    """How many permutations of the layers' hidden neurons leave the function unchanged, by trying all of them."""
    graph = neuron_graph(model)
    in_layers = np.unique(np.concatenate([layer.outputs.neurons for layer in graph.layers]))
    groups = [group.neurons for group in graph.hidden if np.isin(group.neurons, in_layers).all()]
    before, count = model(x), 0
    for choice in itertools.product(*(itertools.permutations(neurons) for neurons in groups)):
        permutation = np.arange(graph.size)
        for neurons, moved in zip(groups, choice, strict=True):
            permutation[neurons] = moved
        try:
            after = outputs_after(model, graph, x, permutation)
        except ValueError:  # a grouped convolution torn apart
            continue
        count += int(torch.allclose(after, before, rtol=1e-8, atol=1e-10))
    return count


def test_depthwise_channels_move_with_their_inputs_and_group_norms_within_groups() -> None:
    model = randomised(Mobile())
    found = residual_symmetry(neuron_graph(model)).permutations
    assert found == math.factorial(4) * 2 * 2**2


@pytest.mark.slow
def test_trying_all_permutations_of_a_depthwise_network_agrees() -> None:
    model = randomised(Mobile())
    assert functional_count(model, images()[:1]) == residual_symmetry(neuron_graph(model)).permutations


def test_trying_all_permutations_of_a_recurrent_network_agrees() -> None:
    model = randomised(Recurrent())
    x = torch.randn(5, 3, dtype=torch.float64)
    found = residual_symmetry(neuron_graph(model))
    assert found.permutations == functional_count(model, x) == 24
    assert found.flips == 2**4


def test_trying_all_permutations_of_a_gated_network_agrees() -> None:
    model = randomised(Gated())
    found = residual_symmetry(neuron_graph(model))
    assert found.permutations == functional_count(model, images()[:1]) == 6 * 2 * 2
    assert found.flips == 2 ** (3 + 2)  # the gated neurons, before and after the second gate


def heads_of(graph: NeuronGraph) -> dict[str, np.ndarray]:
    return {group.name.removeprefix("attention "): group.neurons for group in graph.groups}


def swapped(graph: NeuronGraph, pairs: list[tuple[int, int]]) -> np.ndarray:
    permutation = np.arange(graph.size)
    for a, b in pairs:
        permutation[[a, b]] = b, a
    return permutation


def test_attention_heads_move_as_a_whole() -> None:
    model = randomised(Transformer())
    graph = neuron_graph(model)
    part = heads_of(graph)
    query, key, value = part["query"], part["key"], part["value"]
    symmetries = [
        [(query[0], query[1]), (key[0], key[1])],
        [(value[2], value[3])],
        [(p[i], p[i + 2]) for p in (query, key, value) for i in (0, 1)],
    ]
    others = [
        [(query[0], query[1])],
        [(value[1], value[2])],
        [(p[i], p[i + 2]) for p in (query, key) for i in (0, 1)],
    ]
    before = model(images())
    for pairs in symmetries:
        torch.testing.assert_close(outputs_after(model, graph, images(), swapped(graph, pairs)), before)
    for pairs in others:
        assert not torch.allclose(
            outputs_after(model, graph, images(), swapped(graph, pairs)), before, rtol=1e-6
        )


def test_a_transformer_has_the_symmetries_of_its_heads_stream_and_hidden_layer() -> None:
    found = residual_symmetry(neuron_graph(Transformer()))
    heads = 2 * (2 * 2) ** 2  # two heads, each with two query-key pairs and two values
    assert found.permutations == math.factorial(4) * math.factorial(3) * heads
    assert found.flips == 2 ** (4 + 4 + 1)  # query-key pairs, values, and the whole stream under its norms


def test_flips_through_a_transformer_keep_its_function() -> None:
    model = randomised(Transformer())
    graph = neuron_graph(model)
    part = heads_of(graph)
    signs = np.ones(graph.size, np.int64)
    signs[[part["query"][1], part["key"][1], part["value"][2]]] = -1
    signs[[*part["patch"], *part["norm1 as a whole"], *part["norm2 as a whole"]]] = -1
    after = outputs_after(model, graph, images(), np.arange(graph.size), signs)
    torch.testing.assert_close(after, model(images()))
    signs[part["patch"][0]] = 1
    after = outputs_after(model, graph, images(), np.arange(graph.size), signs)
    assert not torch.allclose(after, model(images()), rtol=1e-6)


# --- symmetries of masked networks, applied ------------------------------------------------------------------------


def masked_mlp() -> tuple[nn.Module, NeuronGraph, dict[str, np.ndarray]]:
    """[1, 5, 5, 1], tanh, light mask with zeros in place."""
    model = randomised(nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1)))
    graph = neuron_graph(model)
    fixed = fix_weights(graph.weights, Light(), Zero())
    with torch.no_grad():
        model[2].weight[torch.from_numpy(fixed["2.weight"].mask)] = 0.0
    return model, graph, {name: part.mask for name, part in fixed.items()}


def test_a_joint_permutation_keeps_function_and_fixed_entries() -> None:
    """The second matrix is flipped: neuron i of the first hidden layer is joined to 5 - i of the second."""
    model, graph, masks = masked_mlp()
    first, second = (group.neurons for group in graph.hidden)
    joint = swapped(graph, [(first[1], first[3]), (second[4], second[2])])
    x = torch.randn(7, 1, dtype=torch.float64)
    torch.testing.assert_close(outputs_after(model, graph, x, joint), model(x))
    moved = permute_weights(graph, model.state_dict(), joint)["2.weight"]
    assert (moved[torch.from_numpy(masks["2.weight"])] == 0).all()


def test_other_permutations_keep_the_function_but_not_the_fixed_entries() -> None:
    model, graph, masks = masked_mlp()
    first, second = (group.neurons for group in graph.hidden)
    x = torch.randn(7, 1, dtype=torch.float64)
    for pairs in (
        [(first[1], first[3])],
        [(second[0], second[1])],
        [(first[0], first[1]), (second[0], second[4])],
    ):
        alone = swapped(graph, pairs)
        torch.testing.assert_close(outputs_after(model, graph, x, alone), model(x))
        moved = permute_weights(graph, model.state_dict(), alone)["2.weight"]
        assert not (moved[torch.from_numpy(masks["2.weight"])] == 0).all()


def test_sign_flips_of_tanh_neurons_keep_the_function_and_those_of_relu_do_not() -> None:
    x = torch.randn(7, 1, dtype=torch.float64)
    for activation, keeps in ((nn.Tanh, True), (nn.ReLU, False)):
        model = randomised(nn.Sequential(nn.Linear(1, 5), activation(), nn.BatchNorm1d(5), nn.Linear(5, 1)))
        graph = neuron_graph(model)
        signs = np.ones(graph.size, np.int64)
        signs[graph.hidden[0].neurons[:2]] = -1
        after = outputs_after(model, graph, x, np.arange(graph.size), signs)
        assert torch.allclose(after, model(x)) == keeps == graph.hidden[0].odd


@pytest.mark.parametrize(
    ("activation", "odd"),
    [
        (nn.Tanh(), True),
        (nn.Softsign(), True),
        (nn.Hardtanh(), True),
        (nn.Hardtanh(-1.0, 2.0), False),
        (nn.Softshrink(), True),
        (nn.Identity(), True),
        (nn.Dropout(0.5), True),
        (Shortcut(torch.sin), True),
        (Shortcut(lambda x: x.clamp(-2, 2)), True),
        (Shortcut(lambda x: x.clamp(min=-2)), False),
        (Shortcut(lambda x: 3 * x), True),
        (Shortcut(lambda x: x / x.size(-1)), True),
        (Shortcut(lambda x: x + x.shape[-1]), False),
        (Shortcut(lambda x: x + 1), False),
        (Shortcut(lambda x: x * x), False),
        (nn.ReLU(), False),
        (nn.ReLU6(), False),
        (nn.Sigmoid(), False),
        (nn.GELU(), False),
    ],
)
def test_odd_activations_are_recognised(activation: nn.Module, odd: bool) -> None:
    graph = neuron_graph(nn.Sequential(nn.Linear(2, 3), activation, nn.Linear(3, 1)))
    assert [group.odd for group in graph.hidden] == [odd]
    x = torch.linspace(-3, 3, 50)
    activation.eval()
    assert torch.allclose(activation(-x), -activation(x), atol=1e-6) == odd


# --- odd cases -----------------------------------------------------------------------------------------------------


def test_a_skip_from_the_input_leaves_nothing_to_permute() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x + torch.relu(self.first(x)))

    graph = neuron_graph(Skip())
    assert graph.hidden == ()
    assert residual_symmetry(graph).permutations == 1


def test_layers_that_share_a_weight_move_together() -> None:
    model = nn.Sequential(
        nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 1)
    )
    assert residual_symmetry(neuron_graph(model)).permutations == math.factorial(4) ** 3
    model[4].weight = model[2].weight
    graph = neuron_graph(model)
    assert residual_symmetry(graph).permutations == math.factorial(4)
    assert [weight.name for weight in graph.weights] == ["0.weight", "2.weight", "5.weight"]


def test_an_embedding_and_the_output_layer_may_share_a_weight() -> None:
    model = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 3), nn.Linear(3, 7, bias=False))
    assert residual_symmetry(neuron_graph(model)).permutations == math.factorial(3) ** 2
    model[2].weight = model[0].weight
    assert residual_symmetry(neuron_graph(model)).permutations == math.factorial(3)


def test_a_random_weight_under_a_parametrisation_is_not_drawn_while_tracing() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            Counting.calls += 1
            return weight

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    expected = neuron_graph(model)
    for layer in (model[0], model[3]):
        parametrize.register_parametrization(layer, "weight", Counting())
    Counting.calls = 0
    graph = neuron_graph(model)
    assert Counting.calls == 0
    assert graph.weights == expected.weights
    assert [group.name for group in graph.groups] == [group.name for group in expected.groups]


def test_layers_may_be_listed_by_hand() -> None:
    model = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1))
    traced, listed = neuron_graph(model), neuron_graph(model, layers=["0", "2", "4"], odd=True)
    for scheme in (Light(), Heavy()):
        fixed = fix_weights(traced.weights, scheme, Constant(1.0))
        assert residual_symmetry(listed, fixed) == residual_symmetry(traced, fixed)
    assert residual_symmetry(neuron_graph(model, layers=["0", "2", "4"])).flips == 1


def test_residual_streams_may_be_listed_by_hand() -> None:
    model = randomised(ResNet(1, 4).stages[0])  # conv1 and conv2 around one stream
    outer = nn.Sequential(nn.Conv2d(3, 4, 1), model, nn.Flatten(), nn.Linear(4 * 64, 2)).double().eval()
    streams = {"0": ("image", "s"), "1.conv1": ("s", "h"), "1.conv2": ("h", "s"), "3": ("s", "class")}
    listed, traced = neuron_graph(outer, layers=streams), neuron_graph(outer)
    assert residual_symmetry(listed) == residual_symmetry(traced)
    assert residual_symmetry(listed).permutations == math.factorial(4) ** 2


def test_unknown_numbers_of_axes_are_learnt_from_an_example() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Shortcut(lambda x: x.mean(1)), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"mean.*Pass example="):
        neuron_graph(model)
    graph = neuron_graph(model.train(), example=torch.zeros(2, 5, 3))
    assert model[0].training
    assert residual_symmetry(graph).permutations == 24


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else x


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, 2))
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.linear(x, self.w))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Branching(), "Branching: torch.fx cannot trace"),
        (Functional(), "linear in Functional.forward: linear cannot be followed"),
        (nn.Linear(2, 2), "Linear: a single layer has no hidden neurons"),
        (nn.Sequential(nn.Linear(2, 4), nn.GLU(), nn.Linear(2, 1)), "1: glu cannot be followed"),
        (nn.Sequential(nn.Linear(2, 4), nn.LSTM(4, 4)), "1: lstm cannot be followed"),
        (nn.Sequential(nn.LSTM(4, 4)), "0: LSTM cannot be followed"),
        (
            nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(8, 2)),
            "2: reads 8 values, which 3 flattened",
        ),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 2)), "1: it reads 4 values, and 3 neurons arrive"),
        (nn.Sequential(nn.Conv2d(1, 3, 3), nn.Linear(8, 2)), "1: its input does not have the neurons along"),
    ],
)
def test_what_cannot_be_traced_says_which_layer_and_what_to_pass(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        neuron_graph(model)
    assert str(caught.value).startswith(message)
    assert "Pass " in str(caught.value)


def test_bad_lists_of_layers_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(
        ValueError, match="nowhere: must name a Linear or convolution layer, but it is missing"
    ):
        neuron_graph(model, layers=["0", "nowhere"])
    with pytest.raises(ValueError, match="1: must name a Linear or convolution layer, but it is ReLU"):
        neuron_graph(model, layers=["0", "1"])
    with pytest.raises(ValueError, match="2: reads 4 values"):
        neuron_graph(model, layers=["0", "2"])
    with pytest.raises(ValueError, match="2: writes 2 neurons to stream 'h', which has 3"):
        neuron_graph(model, layers={"0": ("x", "h"), "2": ("y", "h")})
