"""torch.cov with weights, without its checks: they would read from the card if weights are negative or zero in sum."""

from typing import Optional

import torch
from torch import Tensor


def cov(input: Tensor, *, correction: int = 1, fweights: Optional[Tensor] = None, aweights: Optional[Tensor] = None) -> Tensor:
    """The steps of torch's own function, which allocate the same."""
    source = input.view(1, -1) if input.dim() < 2 else input
    weights = aweights if fweights is None else fweights if aweights is None else fweights * aweights
    if weights is None:
        return torch.cov(input, correction=correction)
    total = weights.sum()
    mean = (source * weights).sum(1) / total
    if aweights is None or correction == 0:
        norm = total - correction
    else:
        norm = total - correction * (weights * aweights).sum() / total
    # torch's cov takes 0 for a factor below 0.
    norm = norm.clamp_(min=0)
    source = source - mean.unsqueeze(1)
    return torch.true_divide(source @ (source * weights).t().conj(), norm).squeeze()
