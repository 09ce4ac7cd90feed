"""What belongs to a network's weights: whether they have changed, and what training may change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from neuralef.checks import marked, traces
from neuralef.modules.heads import L2BatchNorm
from neuralef.warnings import warn_user

if TYPE_CHECKING:
    from typing import Self

NORMALIZATIONS = (L2BatchNorm, _NormBase)  # what a batch changes beside the weights
FINGERPRINT = "fingerprint"


class Tracked(nn.Module):
    """A module with results that belong to the weights its `network` had when they were found.

    The fingerprint of those weights is a buffer, and so part of copies, state dicts and files. In
    train mode batch norms, `L2BatchNorm` too, stay in eval mode: a function of a point is then
    the same in every batch, and fine-tuning moves no averages unless asked.
    """

    network: nn.Module
    fingerprint: Tensor  # of the network's parameters and persistent buffers; zeros: not known
    normalization_trains: bool = False
    _warned: bool = False
    _seen: list[Any] | None = None

    def track(self, known: Tensor | None = None) -> None:
        """Say that the results belong to the weights as they are now, or to those `known`."""
        raise NotImplementedError

    @property
    def stale(self) -> bool:
        """Whether the network's weights are others than those that the results were found for."""
        current = marked(self.network)
        if not bool(self.fingerprint.any()):  # of a state dict that does not tell
            self.fingerprint.copy_(current)
        return not torch.equal(current, self.fingerprint.cpu())

    def warn_if_stale(self) -> None:
        """Warn once, however the weights were changed."""
        try:
            now = traces(self.network)
        except RuntimeError:  # within torch.func's transforms weights have no place in memory
            return
        if self._warned or now == self._seen:
            return
        self._seen, self._warned = now, self.stale
        if self._warned:
            warn_user(
                "the network has changed since this spectrum was found: its eigenvalues and "
                "residuals are not those of its functions any more; spectrum.refit(gram) finds new "
                "ones"
            )

    def train(self, mode: bool = True) -> Self:
        """Train mode, but for the batch norms, unless `train_normalization` has asked for them."""
        super().train(mode)
        if not self.normalization_trains:
            for part in self.network.modules():
                if isinstance(part, NORMALIZATIONS):
                    part.eval()
        return self

    def train_normalization(self, mode: bool = True) -> Self:
        """Let train mode change batch norms, too: they use each batch and move their averages."""
        self.normalization_trains = mode
        return self.train(self.training)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        stale = self.stale  # a cast changes weights, and leaves the results what they are
        super()._apply(*args, **kwargs)
        if not stale:
            self.track()
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if any(prefix + name in state_dict for name in self._buffers):
            # those of version 0.2 have no fingerprint; this dict is torch's copy of the user's
            state_dict.setdefault(prefix + FINGERPRINT, torch.zeros_like(self.fingerprint))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._warned, self._seen = False, None
