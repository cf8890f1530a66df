"""The live drawings of the lessons."""

from minikv.course.widgets.blocks import BlocksWidget, SequenceBlocks
from minikv.course.widgets.budget import BudgetWidget
from minikv.course.widgets.growth import GrowthWidget
from minikv.course.widgets.pool import PoolWidget

__all__ = ["BlocksWidget", "BudgetWidget", "GrowthWidget", "PoolWidget", "SequenceBlocks"]
