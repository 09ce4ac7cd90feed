from image_networks import CNN, close, images
from torch import nn

from neuralef.networks import SharedCNN


def plain_cnn(state):
    """The paper's network as torch layers with given weights."""
    layers = nn.Sequential(
        nn.Conv2d(2, 3, 5, padding=2), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 5, padding=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 6),
    ).double()  # fmt: skip
    layers.load_state_dict(dict(zip(layers.state_dict(), state.values(), strict=True)))
    return layers


def test_the_cnn_is_the_papers():
    network = SharedCNN(2, outputs=3, normalize=False, **CNN).double()
    x = images(7)
    expected = plain_cnn(network.state_dict())(x).reshape(7, 3, 2)
    close(network(x), expected)
