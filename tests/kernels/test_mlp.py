import math

import pytest
import torch
from truth import points

from neuralef.kernels import MLPNTK


@pytest.mark.parametrize(("activation", "function"), [("relu", torch.relu), ("erf", torch.erf)])
def test_tangent_kernel_is_the_limit_of_wide_networks(activation, function):
    weight, bias, width = 1.5, 0.3, 20_000
    x = points(4, 3)
    torch.manual_seed(0)
    w1, b1 = torch.randn(width, 3, dtype=x.dtype), torch.randn(width, dtype=x.dtype)
    w2, b2 = torch.randn(width, dtype=x.dtype), torch.randn((), dtype=x.dtype)
    parameters = [p.requires_grad_() for p in (w1, b1, w2, b2)]

    def output(point):
        hidden = function(math.sqrt(weight / 3) * w1 @ point + math.sqrt(bias) * b1)
        return math.sqrt(weight / width) * w2 @ hidden + math.sqrt(bias) * b2

    rows = [torch.cat([g.flatten() for g in torch.autograd.grad(output(p), parameters)]) for p in x]
    jacobian = torch.stack(rows)
    kernel = MLPNTK(activation, 2, weight, bias)
    torch.testing.assert_close(jacobian @ jacobian.T, kernel(x, x), rtol=0.04, atol=0.02)
