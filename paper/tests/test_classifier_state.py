"""What is kept alongside a training, in its checkpoint."""

import pytest
import torch
from classified import brightness

from neuralef import training
from neuralef.networks import ResNet
from paper.classifier import train_classifier


class Trace:
    """The number of steps, and the sum of what a weight was after each."""

    def __init__(self, model):
        self.model, self.count, self.total = model, 0, torch.zeros(2)

    def after(self, step):
        self.count += 1
        self.total += self.model.fc.bias.detach()

    def state_dict(self):
        return {"count": torch.tensor(self.count), "total": self.total.clone()}

    def load_state_dict(self, state):
        self.count, self.total = int(state["count"]), state["total"].clone()


def traced(path=None, stop=None, **settings):
    """A training of three epochs of four steps with two traces, interrupted after a step."""
    x, labels = brightness()
    model = ResNet(8, 4, outputs=2, seed=0)
    first, second = Trace(model), Trace(model)
    called = []

    def after(step):
        called.append(step)
        first.after(step)
        if step % 2 == 0:
            second.after(step)
        if step == stop:
            raise KeyboardInterrupt

    settings = {"batch_size": 32, "schedule": "trajectory"} | settings
    train_classifier(
        model, x, labels, 3, checkpoint=path, after=after,
        alongside={"first": first, "second": second}, **settings,
    )  # fmt: skip
    return model, first, second, called


@pytest.fixture(scope="module")
def whole():
    return traced()


@pytest.mark.parametrize("stop", [1, 4, 6, 8, 12])
def test_what_is_kept_alongside_goes_on_as_if_nothing_had_happened(
    stop, whole, tmp_path, monkeypatch
):
    """Killed in an epoch, or at its end when nothing of it is written yet."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", -1.0)
    path = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        traced(path, stop)
    resumed = traced(path)
    over = 4 * ((stop - 1) // 4)  # steps of epochs that were over
    assert resumed[3] == list(range(over + 1, 13))
    again = traced(path)  # only read
    assert again[3] == []
    for model, first, second, _ in (resumed, again):
        for name, value in whole[0].state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name
        for trace, truth in ((first, whole[1]), (second, whole[2])):
            assert trace.count == truth.count
            assert torch.equal(trace.total, truth.total)
    assert (whole[1].count, whole[2].count) == (12, 6)


def test_checkpoints_are_not_written_more_often_than_they_should_be(whole, tmp_path):
    path = tmp_path / "c.safetensors"
    with pytest.raises(KeyboardInterrupt):
        traced(path, stop=11)
    assert not path.exists()
    assert torch.equal(traced(path)[1].total, whole[1].total)
    assert path.exists()


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    traced(path)
    content = path.read_bytes()
    for change in ({"schedule": "steps"}, {"weight_decay": 0.0}, {"seed": 1}):
        with pytest.raises(ValueError, match=r"c\.safetensors is of another run"):
            traced(path, **change)
    assert path.read_bytes() == content


def test_a_checkpoint_without_what_should_be_alongside_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    x, labels = brightness()
    model = ResNet(8, 4, outputs=2, seed=0)
    train_classifier(model, x, labels, 3, batch_size=32, schedule="trajectory", checkpoint=path)
    with pytest.raises(ValueError, match=r"c\.safetensors is of another run: first, second differ"):
        traced(path)
