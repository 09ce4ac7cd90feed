"""Networks: k eigenfunctions as one module, (n, …) ↦ (n, k) or (n, c, k)."""

from neuralef.modules.heads import L2BatchNorm, Normalized
from neuralef.networks.activation_head import ActivationHead, Activations, past_the_model
from neuralef.networks.images import ResNet, SharedCNN, SharedResNet, StackedCNN, StackedResNet
from neuralef.networks.mlp import SharedMLP, StackedMLP, default_network
from neuralef.networks.pretrained import Pretrained

__all__ = [
    "ActivationHead", "Activations", "L2BatchNorm", "Normalized", "Pretrained", "ResNet",
    "SharedCNN", "SharedMLP", "SharedResNet", "StackedCNN", "StackedMLP", "StackedResNet",
    "default_network", "past_the_model",
]  # fmt: skip
