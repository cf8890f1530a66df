"""Charts of the lessons: one function a kind, from values to a plot that ``show`` takes; plotly only when it draws.

A cell says which values are drawn; how stands here. The text of a chart is made from the same values.
"""

from minikv.course.charts.bars import bars
from minikv.course.charts.chart import Chart
from minikv.course.charts.heat_map import heat_map
from minikv.course.charts.lines import lines

__all__ = ["Chart", "bars", "heat_map", "lines"]
