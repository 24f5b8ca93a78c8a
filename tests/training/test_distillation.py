"""Soft targets: the loss, the loader that makes them, and compression that learns from the network as it came."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import pocketbayes as pb
from pocketbayes import nets
from pocketbayes.data.batches import BatchLoader
from pocketbayes.data.loaders import count_examples
from pocketbayes.errors import NonFiniteError
from pocketbayes.likelihood import Categorical, Homoscedastic
from pocketbayes.training.distillation import Distilled
from pocketbayes.training.temperature import HELD_OUT_BATCHES


def blobs(n: int = 96, seed: int = 0) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    return TensorDataset(torch.eye(3)[y] @ torch.ones(3, 4).triu() + 0.3 * torch.randn(n, 4, generator=g), y)


def loader(shuffle: bool = True) -> DataLoader:
    return DataLoader(blobs(), 16, shuffle=shuffle)


def network() -> nn.Module:
    """With all that a forward pass in training mode would move, or draw."""
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def softmax_by_hand(logits: Tensor) -> Tensor:
    powers = (logits - logits.amax(1, keepdim=True)).exp()
    return powers / powers.sum(1, keepdim=True)


# --- the loss ----------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(2, 6), st.lists(st.integers(1, 3), max_size=2), st.integers(0, 2**31))
def test_the_loss_and_its_gradient_are_those_of_torch(n: int, c: int, rest: list[int], seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(n, c, *rest, generator=g, dtype=torch.float64)).requires_grad_()
    q = torch.rand(n, c, *rest, generator=g, dtype=torch.float64)
    q /= q.sum(1, keepdim=True)
    ours = Categorical().nll(logits, q)
    theirs = F.cross_entropy(logits, q, reduction="none").reshape(n, -1).sum(1)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(each.sum(), logits)[0] for each in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_the_gradient_is_that_of_finite_differences() -> None:
    logits = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    q = torch.randn(3, 4, 2, dtype=torch.float64).softmax(1)
    q[0, :, 1] = 0.0  # ignored
    assert torch.autograd.gradcheck(lambda f: Categorical().nll(f, q), logits)


@settings(max_examples=30)
@given(st.integers(0, 2**31))
def test_a_distribution_with_one_class_is_its_label_bit_by_bit(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, 5, generator=g, requires_grad=True)
    y = torch.randint(5, (7,), generator=g)
    hard, soft = (Categorical().nll(logits, target) for target in (y, F.one_hot(y, 5).float()))
    assert torch.equal(hard, soft)
    gradients = [torch.autograd.grad(each.mean(), logits)[0] for each in (hard, soft)]
    assert torch.equal(*gradients)


def test_a_class_that_is_ruled_out_costs_nothing_unless_it_is_asked_for() -> None:
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], dtype=torch.float64, requires_grad=True)
    loss = Categorical().nll(logits, torch.tensor([[0.25, 0.75, 0.0]], dtype=torch.float64))
    assert loss.item() == pytest.approx(torch.tensor(2.0).log().item())
    assert torch.isfinite(torch.autograd.grad(loss.sum(), logits)[0]).all()
    assert Categorical().nll(logits, torch.tensor([[0.25, 0.25, 0.5]])).item() == torch.inf


def test_half_precision_probabilities_are_near_enough_to_one() -> None:
    q = torch.randn(50, 10).softmax(1).to(torch.bfloat16)
    assert (q.float().sum(1) - 1).abs().max() > 1e-3
    assert torch.isfinite(Categorical().nll(torch.randn(50, 10), q)).all()


LOGITS = torch.zeros(2, 3)
BAD_TARGETS = {
    "logits in place of probabilities": (
        torch.tensor([[1.0, 0, 0], [2, -1, 0]]),
        r"position 1 .* from -1 to 2",
    ),
    "a sum that is not one": (torch.tensor([[0.5, 0.2, 0], [1, 0, 0]]), "position 0 .* add up to 0.7"),
    "NaN": (torch.tensor([[1.0, 0, 0], [torch.nan, 0, 1]]), "position 1 .* nan"),
    "infinity": (torch.tensor([[1.0, 0, 0], [torch.inf, 0, 0]]), "position 1 .* inf"),
    "another number of classes": (
        torch.full((2, 4), 0.25),
        r"\(2, 3\) and soft targets of shape \(2, 4\) do not fit",
    ),
    "integers like soft targets": (torch.eye(3).long()[:2], "do not fit.* as floats"),
}


@pytest.mark.parametrize(("target", "message"), BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_soft_targets_that_are_no_distribution_are_refused(target: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Categorical().nll(LOGITS, target)


def test_classes_last_in_targets_are_found_out_even_where_the_shape_fits() -> None:
    output = torch.randn(2, 3, 3)  # [N, T, C]
    q = output.softmax(-1)
    likelihood = Categorical(class_dim=-1)
    with pytest.raises(ValueError, match="second axis"):
        likelihood.nll(output, q)
    entropy = torch.special.entr(q).sum((1, 2))
    torch.testing.assert_close(likelihood.nll(output, q.movedim(-1, 1)), entropy)


# --- the loader --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_soft_targets_mix_labels_with_the_teachers_answers(fraction: float) -> None:
    teacher = network()
    inputs = loader(shuffle=False)
    for (x, y), (x_again, q) in zip(inputs, Distilled(inputs, teacher, fraction=fraction), strict=True):
        with torch.no_grad():
            answers = softmax_by_hand(copy.deepcopy(teacher).eval()(x))
        assert torch.equal(x, x_again) and not q.requires_grad
        torch.testing.assert_close(q, (1 - fraction) * torch.eye(3)[y] + fraction * answers)


def test_without_a_fraction_training_is_that_with_labels_bit_by_bit() -> None:
    teacher, start = network(), pb.bayesianize(nets.mlp([4, 8, 3]))
    ends = []
    for batches in (
        loader(),
        Distilled(loader(), teacher, fraction=0.0),
        Distilled(loader(), teacher, fraction=0.1),
    ):
        student = copy.deepcopy(start)
        pb.fit(student, batches, epochs=2, progress=False)
        ends.append(state(student))
    assert same(ends[0], ends[1])
    assert not same(ends[0], ends[2])


def test_the_loss_is_least_at_the_teachers_probabilities() -> None:
    """With fraction 1, over free logits: there the gradient is zero, and the loss the entropy.  Not so with labels."""
    teacher = network().double()
    x, y = blobs(20).tensors
    (((x, q),)) = Distilled([(x.double(), y)], teacher, fraction=1.0)
    logits = copy.deepcopy(teacher).eval()(x).detach().requires_grad_()
    answers = torch.distributions.Categorical(logits=logits.detach())
    loss = Categorical().nll(logits, q)
    torch.testing.assert_close(loss.detach(), answers.entropy())
    assert torch.autograd.grad(loss.sum(), logits)[0].abs().max() < 1e-12
    assert torch.autograd.grad(Categorical().nll(logits, y).sum(), logits)[0].abs().max() > 0.1
    moved = logits.detach() + 0.1 * torch.randn_like(logits)
    assert (Categorical().nll(moved, q) > loss.detach()).all()


def test_a_student_comes_to_answer_as_its_teacher_and_not_as_the_labels() -> None:
    teacher = nn.Linear(4, 3)
    nn.init.normal_(teacher.weight, generator=torch.Generator().manual_seed(5))
    x, _ = blobs(256).tensors
    wrong = torch.zeros(256, dtype=torch.long)
    students = []
    for batches in ([(x, wrong)], Distilled([(x, wrong)], teacher, fraction=1.0)):
        student = nn.Linear(4, 3)
        pb.fit_map(student, batches, epochs=200, lr=0.2, progress=False)
        students.append(student)
    by_labels, taught = ((s(x).softmax(1) - teacher(x).softmax(1)).abs().max().item() for s in students)
    assert taught < 0.03
    assert by_labels > 0.5


def test_the_teacher_is_left_as_it_was() -> None:
    """Weights, running statistics, modes of every module, even where the student is the teacher itself."""
    teacher = network()
    teacher[1].eval()
    before, modes = state(teacher), [m.training for m in teacher.modules()]
    batches = Distilled(loader(), teacher, fraction=0.5)
    pb.fit(pb.bayesianize(copy.deepcopy(teacher)), batches, epochs=1, progress=False)
    assert same(state(teacher), before)
    assert [m.training for m in teacher.modules()] == modes
    first, kept = (next(iter(Distilled(loader(False), teacher)))[1] for _ in range(2))
    assert torch.equal(first, kept)
    own = Distilled(loader(False), teacher)
    pb.fit_map(teacher, own, epochs=1, progress=False)
    assert not same(state(teacher), before)  # it has learned, and still its old self teaches
    assert torch.equal(next(iter(own))[1], first)


def test_a_bayesian_teacher_answers_at_its_means() -> None:
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    wide = pb.bayesianize(copy.deepcopy(plain), sigma=pb.Absolute(3.0))
    pairs = [[q for _, q in Distilled(loader(False), teacher, fraction=0.7)] for teacher in (plain, wide)]
    for q, from_means in zip(*pairs, strict=True):
        torch.testing.assert_close(q, from_means)


@pytest.mark.parametrize("kind", [list, tuple, nn.ModuleList])
def test_every_mode_has_a_teacher_of_its_own_where_that_is_asked_for(kind: Any) -> None:
    teachers, (x, y) = [network(), network()], blobs(8).tensors
    ((_, q),) = Distilled([(x, y)], kind(teachers), fraction=0.6, by_mode=True)
    ((_, mean),) = Distilled([(x, y)], kind(teachers), fraction=0.6)
    for mine, teacher in zip(q, teachers, strict=True):
        ((_, alone),) = Distilled([(x, y)], teacher, fraction=0.6)
        torch.testing.assert_close(mine, alone)
        assert (mine - mean).abs().max() > 1e-3  # a control: teachers differ


def test_modes_with_targets_of_their_own_are_trained_as_if_each_were_alone() -> None:
    x, y = blobs(8).tensors
    modes = pb.Modes([pb.bayesianize(nn.Linear(4, 3), sigma=pb.Absolute(1e-6)) for _ in range(2)])
    ((_, q),) = Distilled([(x, y)], [network(), network()], fraction=0.6, by_mode=True)
    together = pb.nelbo(modes, (x, q), num_data=8, samples=3).nll
    alone = [pb.nelbo(mode, (x, t), num_data=8).nll for mode, t in zip(modes, q, strict=True)]
    crossed = [pb.nelbo(mode, (x, t), num_data=8).nll for mode, t in zip(modes, q[::-1], strict=True)]
    torch.testing.assert_close(together, sum(alone) / 2, rtol=1e-4, atol=1e-4)
    assert abs(sum(alone) - sum(crossed)) > 1e-2


@pytest.mark.parametrize("own", [True, False])
def test_modes_learn_from_themselves_and_from_the_mean_of_teachers_that_are_given(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    made = Distilled.__init__
    monkeypatch.setattr(
        Distilled, "__init__", lambda self, *a, **k: asked.append(k["by_mode"]) or made(self, *a, **k)
    )
    networks = [network(), network()]
    plan = pb.Plan(epochs=1, finetune_epochs=0, distillation=0.5, temperature=0.01)
    teacher = None if own else networks
    path = tmp_path / "net.pocket"
    pb.compress(
        networks, loader(), path=path, max_bytes=2000, plan=plan, teacher=teacher, graph=False, progress=False
    )
    assert asked == [own] and path.stat().st_size <= 2000


@pytest.mark.parametrize("kind", [list, tuple, nn.ModuleList])
def test_several_teachers_answer_with_the_mean_of_their_probabilities(kind: Any) -> None:
    teachers = [network(), network(), network()]
    x, y = blobs(8).tensors
    ((_, q),) = Distilled([(x, y)], kind(teachers), fraction=0.6)
    with torch.no_grad():
        logits = [teacher.eval()(x) for teacher in teachers]
    mean = sum(softmax_by_hand(each) for each in logits) / 3
    torch.testing.assert_close(q, 0.4 * torch.eye(3)[y] + 0.6 * mean)
    of_logits = softmax_by_hand(sum(logits) / 3)
    assert (mean - of_logits).abs().max() > 1e-3  # another thing


def test_teacher_and_student_see_the_same_augmentation() -> None:
    teacher = network()
    x, y = blobs().tensors
    noisy = BatchLoader(x, y, 32, transform=lambda batch: batch + torch.randn_like(batch))
    asked = copy.deepcopy(teacher).eval()
    for (seen, q), clean in zip(Distilled(noisy, teacher, fraction=1.0), x.split(32), strict=True):
        torch.testing.assert_close(q, asked(seen).softmax(1).detach())
        assert (q - asked(clean).softmax(1)).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["DataLoader", "BatchLoader"])
def test_order_and_random_numbers_are_those_of_the_loader(kind: str) -> None:
    """Drawn when iteration starts, as `fit` expects it to resume; a teacher with dropout draws none."""
    data = blobs()
    bare = loader() if kind == "DataLoader" else BatchLoader(*data.tensors, 16, shuffle=True)
    seen = []
    for batches in (bare, Distilled(bare, network())):
        torch.random.default_generator.manual_seed(4)
        stream = iter(batches)
        torch.random.default_generator.manual_seed(5)
        seen.append((torch.cat([x for x, _ in stream]), torch.rand(3)))
    assert torch.equal(seen[0][0], seen[1][0]) and torch.equal(seen[0][1], seen[1][1])
    assert not torch.equal(seen[0][0], data.tensors[0])


def test_lengths_and_examples_are_those_of_the_loader() -> None:
    batches = [(x, y) for x, y in DataLoader(blobs(50), 16)]
    for bare in (DataLoader(blobs(50), 16), batches, tuple(batches)):
        wrapped = Distilled(bare, network())
        assert len(wrapped) == 4 and count_examples(wrapped) == 50
        pb.fit(pb.bayesianize(nets.mlp([4, 8, 3])), wrapped, epochs=1, progress=False)  # without num_data
    part = Distilled(DataLoader(blobs(50), 16, sampler=SubsetRandomSampler(range(20))), network())
    assert count_examples(part) == 20
    with pytest.raises(ValueError, match="num_data"):  # a data set of whole batches
        count_examples(Distilled(DataLoader(batches, batch_size=None), network()))
    stream = Distilled(iter(batches), network())
    assert [len(x) for x, _ in stream] == [16, 16, 16, 2]
    with pytest.raises(TypeError, match="no length"):
        len(stream)


def test_targets_that_are_soft_already_are_mixed_like_labels() -> None:
    x, y = blobs(8).tensors
    smooth = 0.9 * F.one_hot(y, 3) + 0.1 / 3
    ((_, q),) = Distilled([(x, smooth)], teacher := network(), fraction=0.25)
    torch.testing.assert_close(q, 0.75 * smooth + 0.25 * teacher.eval()(x).softmax(1).detach())


class Words(nn.Module):
    """A language model's manners: keyword arguments, and logits [N, T, C] in a dict."""

    def __init__(self, words: int = 6) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, 5), nn.Linear(5, words)

    def forward(self, ids: Tensor, scale: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.table(ids)) * scale[:, None, None]}


@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_dict_batches_with_classes_last_keep_their_ignored_positions(ignore_index: int) -> None:
    ids, scale = torch.randint(6, (4, 7)), torch.rand(4)
    labels = ids.roll(-1, 1)
    labels[:, -2:] = ignore_index
    likelihood = Categorical(class_dim=-1, ignore_index=ignore_index)
    teacher, student = Words(), Words()
    raw = {"ids": ids, "scale": scale, "labels": labels}
    (batch,) = Distilled([raw], teacher, fraction=0.4, likelihood=likelihood)
    assert set(batch) == set(raw) and batch["labels"].shape == (4, 6, 7)
    assert raw["labels"] is labels  # the loader's own batch is left alone
    counted = labels != ignore_index
    assert torch.equal(batch["labels"].sum(1) > 0.5, counted)
    assert (batch["labels"].movedim(1, -1)[~counted] == 0).all()
    # The loss, position by position from its definition.
    answers = teacher(ids, scale)["logits"].log_softmax(-1).exp()
    log_p = student(ids, scale)["logits"].log_softmax(-1)
    expected = torch.zeros(4)
    for n, t in counted.nonzero().tolist():
        expected[n] -= 0.6 * log_p[n, t, labels[n, t]] + 0.4 * (answers[n, t] * log_p[n, t]).sum()
    torch.testing.assert_close(likelihood.nll(student(ids, scale), batch["labels"]), expected)
    pb.fit(pb.bayesianize(student), [batch], epochs=1, likelihood=likelihood, progress=False)


def with_nan() -> list[tuple[Tensor, Tensor]]:
    x, y = blobs(32).tensors
    return [(x[:16], y[:16]), (x[16:].clone().fill_(torch.nan), y[16:])]


def through(batches: Any, **options: Any) -> None:
    for _ in Distilled(batches, network(), **options):
        pass


BAD = {
    "a fraction above one": (lambda: through([], fraction=1.5), ValueError, "from 0 to 1, got 1.5"),
    "a fraction that is no number": (lambda: through([], fraction=float("nan")), ValueError, "from 0 to 1"),
    "no module": (
        lambda: Distilled(network(), loader()),
        ValueError,
        "teacher must be an nn.Module, or a list of them, got DataLoader",
    ),
    "no teacher in a list": (lambda: Distilled(loader(), []), ValueError, "got an empty list"),
    "something else in a list": (lambda: Distilled(loader(), [network(), 3]), ValueError, "got int"),
    "a regression": (
        lambda: through([], likelihood=Homoscedastic(0.1)),
        ValueError,
        "Categorical.*got Homoscedastic",
    ),
    "a function": (lambda: through([], likelihood=F.cross_entropy), ValueError, "Categorical.*got Custom"),
    "labels out of range": (
        lambda: through([(torch.ones(2, 4), torch.tensor([0, 7]))]),
        ValueError,
        "Label 7",
    ),
    "NaN in the inputs": (lambda: through(with_nan()), NonFiniteError, "batch 1: the teacher's answers"),
    "a batch without targets": (lambda: through([torch.ones(2, 4)]), ValueError, "batch must be"),
    "a dict without targets": (
        lambda: through([{"x": torch.ones(2, 4)}]),
        ValueError,
        "targets under one of",
    ),
    "a plan's fraction below zero": (
        lambda: pb.Plan(distillation=-0.1),
        ValueError,
        "distillation .* got -0.1",
    ),
    "a plan's fraction above one": (lambda: pb.Plan(distillation=2), ValueError, "distillation .* got 2"),
}


@pytest.mark.parametrize(("attempt", "error", "message"), BAD.values(), ids=BAD)
def test_bad_input_gets_an_error_that_teaches(attempt, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        attempt()


# --- compression -------------------------------------------------------------------------------------------------

PLAN = {"epochs": 2, "finetune_epochs": 1, "posterior_epochs": 1, "temperature": 0.01, "components": 8}


class Watched:
    """A loader, and the targets that came out of it in the hands of whoever asked."""

    def __init__(self, batches: DataLoader) -> None:
        self.batches, self.dataset, self.asked = batches, batches.dataset, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.asked += 1
        return iter(self.batches)


@pytest.fixture
def trained() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    pb.fit_map(model, loader(), epochs=20, lr=0.02, progress=False)
    return model


def test_compression_with_distillation_keeps_the_budget_and_trains_on_soft_targets_only_where_it_trains(
    trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation, targets = DataLoader(blobs(128, seed=1), 128), list[Tensor]()
    nll = Categorical.nll

    def noted(self: Categorical, output: Any, target: Tensor) -> Tensor:
        targets.append(target)
        return nll(self, output, target)

    monkeypatch.setattr(Categorical, "nll", noted)
    monkeypatch.setattr(sys.modules["pocketbayes.compression.compress"], "LOST", float("inf"))
    before = pb.evaluate(trained, validation)
    original, path = copy.deepcopy(trained).eval(), tmp_path / "small.pocket"
    report = pb.compress(
        trained,
        train := Watched(loader()),
        path=path,
        validation_loader=validation,
        max_bytes=700,
        plan=pb.Plan(**PLAN, distillation=0.5, bfloat16=False),
        graph=False,
        progress=False,
    )
    assert path.stat().st_size == report.bytes <= 700
    fresh = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    assert pb.evaluate(pb.load(path, fresh), validation).accuracy > before.accuracy - 0.05
    hard, soft = (
        [t for t in targets if not t.is_floating_point()],
        [t for t in targets if t.is_floating_point()],
    )
    # batches: Fisher information, that of held-out data; posterior, sharing, fine-tuning
    assert len(hard) == 6 + HELD_OUT_BATCHES and len(soft) == 6 * 4
    assert train.asked == 1 + 4
    x, y = blobs().tensors
    for model, teaches in (
        (original, True),
        (trained.eval(), False),
    ):  # the network as it came, not as it goes
        with pb.mean_weights(model), torch.no_grad():
            possible = 0.5 * torch.eye(3)[y] + 0.5 * model(x).softmax(1)  # [96, 3]
        apart = (torch.cat(soft)[:, None] - possible).abs().amax(2).amin(1)
        assert bool(apart.max() < 1e-5) == teaches


def test_no_distillation_is_the_plan_without_it(trained: nn.Module, tmp_path: Path) -> None:
    files = []
    for name, plan in (
        ("a", PLAN),
        ("b", {**PLAN, "distillation": 0.0}),
        ("c", {**PLAN, "distillation": 1.0}),
    ):
        pb.compress(
            copy.deepcopy(trained),
            loader(),
            path=tmp_path / name,
            max_bytes=700,
            plan=pb.Plan(**plan),
            graph=False,
            progress=False,
        )
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1] != files[2]


def test_a_posterior_is_compressed_with_its_means_as_the_teacher(trained: nn.Module, tmp_path: Path) -> None:
    posterior = pb.bayesianize(trained, sigma=pb.Absolute(0.02))
    plan = pb.Plan(**PLAN, distillation=0.5)
    path, options = tmp_path / "small.pocket", {"graph": False, "progress": False}
    assert pb.compress(posterior, loader(), path=path, max_bytes=700, plan=plan, **options).bytes <= 700


def test_compression_learns_from_the_teachers_it_is_given(trained: nn.Module, tmp_path: Path) -> None:
    """Teachers that swap two classes, and no labels: so does the small network; with itself as the teacher, not."""
    swapped = copy.deepcopy(trained)
    for p in swapped[-1].parameters():
        p.data = p.data[[1, 0, 2]]
    x, y = blobs().tensors
    answers = {}
    for name, teacher in {"own": None, "two": [swapped, swapped]}.items():
        student, plan = (
            copy.deepcopy(trained),
            pb.Plan(temperature=0.01, epochs=60, lr=0.01, distillation=1.0),
        )
        options: dict[str, Any] = {"plan": plan, "teacher": teacher, "graph": False, "progress": False}
        pb.compress(student, loader(), path=tmp_path / name, max_bytes=2000, **options)
        answers[name] = pb.predict(student, x).labels
    assert (answers["own"] == y).float().mean() > 0.9
    assert (answers["two"] == torch.tensor([1, 0, 2])[y]).float().mean() > 0.9
    with pytest.raises(ValueError, match="the teacher has no fraction"):
        pb.compress(trained, loader(), path=tmp_path / "x", max_bytes=700, teacher=swapped)


def test_a_regression_cannot_be_distilled_and_is_left_as_it_was(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 1), blobs().tensors[0]
    before = state(model)
    with pytest.raises(ValueError, match="Categorical"):
        pb.compress(
            model,
            [(x, x[:, :1])],
            path=tmp_path / "small.pocket",
            max_bytes=700,
            likelihood=Homoscedastic(0.1),
            plan=pb.Plan(distillation=0.5),
            checkpoints=tmp_path / "checkpoints",
        )
    assert same(state(model), before) and not list(tmp_path.iterdir())
