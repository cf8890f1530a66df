"""The live drawings of the lessons."""

from minikv.course.widgets.blocks import BlocksWidget, SequenceBlocks
from minikv.course.widgets.budget import BudgetWidget

__all__ = ["BlocksWidget", "BudgetWidget", "SequenceBlocks"]
