"""Networks: k eigenfunctions as one module, (n, …) ↦ (n, k) or (n, c, k)."""

from neuralef.modules.normalization import L2BatchNorm, Normalized
from neuralef.networks.activation_head import ActivationHead, Activations
from neuralef.networks.cnn import SharedCNN, StackedCNN
from neuralef.networks.mlp import SharedMLP, StackedMLP
from neuralef.networks.pretrained import Pretrained
from neuralef.networks.resnet import ResNet, SharedResNet, StackedResNet

__all__ = [
    "ActivationHead",
    "Activations",
    "L2BatchNorm",
    "Normalized",
    "Pretrained",
    "ResNet",
    "SharedCNN",
    "SharedMLP",
    "SharedResNet",
    "StackedCNN",
    "StackedMLP",
    "StackedResNet",
]
