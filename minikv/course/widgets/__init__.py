"""The live drawings of the lessons."""

from minikv.course.widgets.budget import BudgetWidget

__all__ = ["BudgetWidget"]
