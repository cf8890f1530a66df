"""Places: where the columns of a padded batch stand in their rows' texts. Lesson 14."""

import torch
from torch import Tensor


class Places:
    """Counts the columns of padding of each row: a token's place is its column without them."""

    def __init__(self, batch: int, device: torch.device):
        self._padding = torch.zeros(batch, dtype=torch.int64, device=device)

    def next(self, first: int, count: int, valid: Tensor | None) -> Tensor:
        """[B, count] int64: the places of the columns from ``first`` on, -1 for padding, which is counted.

        ``valid`` [B, count] bool: False for padding; None: there is none.
        """
        columns = torch.arange(first, first + count, device=self._padding.device)
        if valid is None:
            return columns - self._padding[:, None]
        valid = valid.to(self._padding.device)
        padding = self._padding[:, None] + (~valid).cumsum(-1)
        self._padding = padding[:, -1]
        return (columns - padding).masked_fill(~valid, -1)

    def rows(self, index: Tensor) -> None:
        """Keep the rows ``index`` of the batch, in that order."""
        self._padding = self._padding[index]
