"""The classifiers of the tangent kernel study, on images that differ in brightness."""

import copy
import shutil

import pytest
import torch
from classified import SIDE, N, brightness
from torch import nn

from neuralef import training
from neuralef.networks import ResNet
from paper.classifier import accuracy, train_classifier
from paper.device import can_compile


def train(outputs=1, classes=2, epochs=6, seed=0, **settings):
    x, labels = brightness(classes)
    model = ResNet(8, 4, outputs=outputs, seed=0)
    settings = {"batch_size": 32, "seed": seed} | settings
    return train_classifier(model, x, labels, epochs, **settings)


@pytest.mark.parametrize(("outputs", "classes"), [(1, 2), (2, 2), (3, 3), (5, 3)])
def test_classes_that_differ_are_learned(outputs, classes):
    model = train(outputs, classes, epochs=10)
    x, labels = brightness(classes, seed=1)
    untrained = ResNet(8, 4, outputs=outputs, seed=0).eval()
    assert accuracy(model, x, labels) >= 0.95 > accuracy(untrained, x, labels)
    assert not any(part.training for part in model.modules())


def test_the_model_itself_is_trained_and_handed_back():
    x, labels = brightness()
    model = ResNet(8, 4, outputs=1, seed=0)
    assert train_classifier(model, x, labels, 1) is model


def test_the_same_seed_gives_the_same_weights():
    first, second, other = train(seed=3), train(seed=3), train(seed=4)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert not torch.equal(first.fc.weight, other.fc.weight)


@pytest.mark.skipif(shutil.which("c++") is None, reason="compiled code needs a compiler")
def test_a_compiled_training_is_the_same_training():
    x, labels = brightness()

    def trained(compiled):
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()]
        model = nn.Sequential(*layers, nn.Linear(2 * (SIDE - 2) ** 2, 1))
        return train_classifier(model, x, labels, 2, batch_size=32, compiled=compiled)

    plain, compiled = trained(False), trained(True)
    assert type(compiled) is nn.Sequential
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("there", "able"), [("gcc", True), ("clang", True), ("make", False)])
def test_a_compiler_is_looked_for(monkeypatch, there, able):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name == there else None)
    assert can_compile() is able
    monkeypatch.setenv("CC", there)
    assert can_compile()


def test_what_is_to_be_compiled_is_compiled(monkeypatch):
    made = []
    monkeypatch.setattr(torch, "compile", lambda model, **given: made.append(model) or model)
    plain, compiled = (train(epochs=1, compiled=compiled) for compiled in (False, True))
    assert made == [compiled]
    assert torch.equal(plain.fc.weight, compiled.fc.weight)


def test_the_global_random_state_neither_matters_nor_changes():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = train(epochs=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12)
    assert torch.equal(first.fc.weight, train(epochs=1).fc.weight)


def test_the_random_state_survives_a_failure():
    x, labels = brightness()
    model = ResNet(8, 4, channels=1, outputs=1, seed=0)
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match="takes images"):
        train_classifier(model, x, labels, 1, seed=5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch_size", [N + 1, 10 * N])
def test_fewer_images_than_a_batch_are_refused(batch_size):
    with pytest.raises(ValueError, match=f"{N} images are fewer than a batch of {batch_size}"):
        train(batch_size=batch_size)
    assert train(batch_size=N, epochs=1).fc.weight.isfinite().all()


def test_progress_is_reported():
    lines = []
    train(epochs=10, report=lines.append)
    assert [line.split(",")[0] for line in lines] == [
        f"classifier: epoch {epoch} of 10" for epoch in (2, 4, 6, 8, 10)
    ]


def test_the_first_loss_that_is_reported_is_that_of_the_first_step():
    lines = []
    train(epochs=1, batch_size=N, learning_rate=1e-6, report=lines.append)
    (loss,) = (float(line.split("loss ")[1]) for line in lines)
    assert 0.4 < loss < 2  # about ln 2, before anything is learned


def test_data_are_left_alone():
    x, labels = brightness()
    kept = copy.deepcopy((x, labels))
    train_classifier(ResNet(8, 4, outputs=1, seed=0), x, labels, 1)
    assert torch.equal(x, kept[0])
    assert torch.equal(labels, kept[1])


class Fixed(nn.Module):
    """Logits that are the points."""

    def forward(self, x):
        return x


def test_accuracy_by_hand():
    labels = torch.tensor([1, 0, 1, 0])
    assert accuracy(Fixed(), torch.tensor([[2.0], [-1.0], [-0.1], [0.5]]), labels) == 0.5
    assert accuracy(Fixed(), torch.tensor([[0.0], [0.0], [0.0], [0.0]]), labels) == 0.5
    logits = torch.tensor([[0.0, 1.0, 0.5], [3.0, 1.0, 2.0], [0.0, 0.1, 0.2], [1.0, 0.0, 0.0]])
    assert accuracy(Fixed(), logits, labels) == 0.75
    many = torch.arange(2500)[:, None].float() - 1000.5  # more than a part
    assert accuracy(Fixed(), many, (many[:, 0] > 0).long()) == 1


@pytest.mark.parametrize("schedule", ["cycle", "steps"])
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(
    schedule, tmp_path, monkeypatch
):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)
    path, given = tmp_path / "c.safetensors", {"schedule": schedule, "epochs": 3}
    whole = train(**given)

    seen = []

    def stop(line):
        seen.append(line)
        if len(seen) == 2:  # in the second epoch, of which nothing is kept
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(**given, checkpoint=path, report=stop)
    resumed = train(**given, checkpoint=path)
    again = train(**given, checkpoint=path)  # only read
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
        assert torch.equal(value, again.state_dict()[name]), name
    with pytest.raises(ValueError, match="is of another run: epochs differ"):
        train(schedule=schedule, epochs=4, checkpoint=path)


def test_the_papers_schedule_steps_down_twice():
    from paper.classifier import SCHEDULES

    factor, nesterov = SCHEDULES["steps"]
    found = [factor(epoch / 150) for epoch in (0, 79, 80, 119, 120, 149)]
    assert found == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    assert not nesterov


def test_the_papers_trajectory_rises_again_and_stays():
    from paper.classifier import SCHEDULES

    factor, _ = SCHEDULES["trajectory"]
    found = [0.1 * factor(epoch / 200) for epoch in (0, 80, 120, 149, 150, 152.5, 155, 199)]
    assert found == pytest.approx([0.1, 0.01, 0.001, 0.001, 0.001, 0.0255, 0.05, 0.05])


def test_every_step_may_be_followed():
    x, labels = brightness()
    model, seen = ResNet(8, 4, outputs=1, seed=0), []

    def after(step):
        seen.append((step, float(model.fc.bias.detach())))

    train_classifier(model, x, labels, 2, batch_size=32, after=after)
    assert [step for step, _ in seen] == list(range(1, 9))
    assert len({bias for _, bias in seen}) == 8  # the weights of each step are there to be read


class Watcher(nn.Module):
    """A linear classifier that keeps what it has seen."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(3 * SIDE * SIDE, 2), []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.layer(x.flatten(1))


def test_images_are_cropped_and_mirrored():
    x, labels = brightness()
    model = Watcher()
    train_classifier(model, x, labels, 2, batch_size=32)
    seen = torch.cat(model.seen).flatten(1)
    assert len(seen) == 2 * N
    same = (seen[:, None] == x.flatten(1)).all(2)
    assert int(same.any(1).sum()) < 0.1 * len(seen)
