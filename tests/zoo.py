"""Awkward models: what users really bring.  Each is built afresh, with the inputs it is called with."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import register_parametrization
from torch.utils.checkpoint import checkpoint

from pocketbayes import nets


class Animal(NamedTuple):
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    stochastic: int  # how many distinct parameters must become stochastic, counted by hand
    sites: int  # at how many places they are registered


def _images(channels: int = 3, size: int = 8) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(2, channels, size, size),)


def _rows(width: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(3, width),)


def _sequence() -> tuple[Tensor]:
    return (torch.randn(2, 5, 8),)


def _tokens() -> tuple[Tensor]:
    return (torch.randint(11, (2, 5)),)


class First(nn.Module):
    """The first output of a module that returns several."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class SelfAttention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.cat([x, x], -1) if self.attention.kdim == 16 else x
        return self.attention(x, wide, wide)[0]


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(tokens))))


class RawParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 6))
        self.scale = nn.Parameter(torch.ones(6))
        self.more = nn.ParameterList([nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))])
        self.named = nn.ParameterDict({"last": nn.Parameter(torch.randn(6, 2))})

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.matrix * self.scale @ self.more[0] + self.more[1]) @ self.named["last"]


class ReadsChild(nn.Module):
    """A parent that computes with its child's weight and never calls the child."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(4, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.child.weight @ self.child.weight.T


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


class Repeated(nn.Module):
    """One layer applied several times in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.step(x))
        return x


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + x.T) / 2


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        def block(t: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(t)))

        return self.a(checkpoint(block, x, use_reentrant=self.use_reentrant))


class DictOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.body(x))
        return {"logits": self.head(hidden), "hidden": hidden}


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        assert state is not None
        return state[0]


class Branches(nn.Module):
    """Control flow that depends on the data: cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) if float(x.sum()) > 1e9 else self.down(x)


def _conv_net(conv: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(conv(3, 4, 3, **options), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))


def _initialised(
    build: Callable[[], nn.Module], inputs: Callable[[], tuple[Any, ...]]
) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        model = build()
        with torch.no_grad():
            model(*inputs())
        return model

    return built


def _vision(
    name: str, conv: Callable[..., nn.Module], inputs: Callable[[], tuple[Tensor]], **options: Any
) -> Animal:
    return Animal(name, _initialised(_conv_net(conv, **options), inputs), inputs, 2, 2)


def _volume(*shape: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(2, 3, *shape),)


ZOO = [
    Animal("a bare layer as root", lambda: nn.Linear(4, 3), _rows(4), 1, 1),
    Animal("mlp", lambda: nets.mlp([4, 8, 8, 3]), _rows(4), 3, 3),
    Animal("bilinear", lambda: BilinearNet(), _rows(4), 1, 1),
    _vision("conv1d", nn.Conv1d, _volume(8)),
    _vision("conv2d", nn.Conv2d, _volume(8, 8)),
    _vision("conv3d", nn.Conv3d, _volume(4, 4, 4)),
    _vision("circular padding", nn.Conv2d, _volume(8, 8), padding=1, padding_mode="circular"),
    _vision("dilated and strided", nn.Conv2d, _volume(8, 8), stride=2, dilation=2, padding=2),
    _vision("transposed 1d", nn.ConvTranspose1d, _volume(8), stride=2),
    _vision(
        "transposed 2d with output padding", nn.ConvTranspose2d, _volume(4, 4), stride=2, output_padding=1
    ),
    Animal(
        "depthwise", lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Conv2d(6, 2, 1)), _images(), 2, 2
    ),
    Animal(
        "batch norm",
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        _images(),
        1,
        1,
    ),
    Animal(
        "group norm",
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)),
        _images(),
        1,
        1,
    ),
    Animal("layer norm", lambda: nn.Sequential(nn.Linear(8, 6), nn.LayerNorm([5, 6])), _sequence, 1, 1),
    Animal("resnet-20", nets.resnet20, _images(3, 32), 20, 20),
    Animal("attention", SelfAttention, _sequence, 2, 2),
    Animal("attention with other keys", lambda: SelfAttention(kdim=16, vdim=16), _sequence, 4, 4),
    Animal(
        "transformer encoder",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
        _sequence,
        8,
        8,
    ),
    Animal("transformer decoder layer", lambda: CrossDecoder(), _sequence, 6, 6),
    Animal(
        "deep two-way lstm",
        lambda: First(nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True)),
        _sequence,
        8,
        8,
    ),
    Animal(
        "lstm with projection", lambda: First(nn.LSTM(8, 4, proj_size=2, batch_first=True)), _sequence, 3, 3
    ),
    Animal("gru as root", lambda: nn.GRU(8, 4, 2, batch_first=True), _sequence, 4, 4),
    Animal("plain rnn", lambda: First(nn.RNN(8, 4, batch_first=True)), _sequence, 2, 2),
    Animal("lstm cell", Cells, _sequence, 2, 2),
    Animal("tied embedding and output", TiedLanguageModel, _tokens, 2, 3),
    Animal("embedding bag", lambda: nn.EmbeddingBag(11, 4), _tokens, 1, 1),
    Animal("raw parameters", RawParameters, _rows(4), 3, 3),
    Animal("a parent that reads its child's weight", ReadsChild, _rows(4), 1, 1),
    Animal("one module under two names", TwoNames, _rows(4), 1, 1),
    Animal("one layer used three times", Repeated, _rows(4), 1, 1),
    Animal("weight norm", lambda: parametrizations.weight_norm(nn.Linear(4, 3)), _rows(4), 2, 2),
    Animal(
        "spectral norm",
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3))),
        _rows(4),
        1,
        1,
    ),
    Animal("orthogonal", lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4))), _rows(4), 1, 1),
    Animal("a parametrization of the user's", lambda: nn.Sequential(_symmetric()), _rows(4), 1, 1),
    Animal("gradient checkpointing", Checkpointed, _rows(4), 2, 2),
    Animal("dict output", DictOutput, _rows(4), 2, 2),
    Animal("data-dependent control flow", Branches, _rows(4), 2, 2),
]


class BilinearNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Bilinear(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, x)


class CrossDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x)


def _symmetric() -> nn.Linear:
    layer = nn.Linear(4, 4)
    register_parametrization(layer, "weight", Symmetric())
    return layer


def hugging_face() -> list[Animal]:
    """Tiny random models of the real Hugging Face architectures; slow to import, so on request."""
    mend_torchvision()  # transformers imports it where it is installed
    from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTModel

    def gpt2() -> nn.Module:
        config = GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=2, n_head=2, use_cache=False)
        return GPT2LMHeadModel(config)

    def bert() -> nn.Module:
        config = BertConfig(
            vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
        return BertModel(config)

    def vit() -> nn.Module:
        config = ViTConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=8,
            patch_size=4,
        )
        return ViTModel(config)

    return [
        Animal("hugging face gpt-2 (tied)", gpt2, _tokens, 10, 11),
        Animal("hugging face bert", bert, _tokens, 10, 10),
        Animal("hugging face vit", vit, _images(3, 8), 10, 10),
    ]


def vision_transformers() -> list[Animal]:
    """The vision transformers of torchvision and timm, tiny; without them, none."""
    mend_torchvision()
    from timm.models.vision_transformer import VisionTransformer as Timm
    from torchvision.models import VisionTransformer

    def torchvision() -> nn.Module:
        return VisionTransformer(
            image_size=16, patch_size=8, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=3
        )

    def timm() -> nn.Module:
        return Timm(img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=2, num_classes=3)

    return [
        Animal("torchvision vit", torchvision, _images(3, 16), 8, 8),
        Animal("timm vit", timm, _images(3, 16), 8, 8),
    ]


def mend_torchvision() -> None:
    """A torchvision built for CUDA misses two operators beside a CPU build of torch, and fails to import."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError:
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            _MENDED.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_MENDED = torch.library.Library("torchvision", "FRAGMENT")
