"""The interactive widgets of the lessons."""

from minikv.course.widgets.allocation import AllocationWidget
from minikv.course.widgets.blocks import BlocksWidget, SequenceBlocks
from minikv.course.widgets.budget import BudgetWidget
from minikv.course.widgets.engine import EngineWidget
from minikv.course.widgets.fleet import FleetWidget
from minikv.course.widgets.growth import GrowthWidget
from minikv.course.widgets.heat_map import HeatMapWidget
from minikv.course.widgets.pool import PoolWidget
from minikv.course.widgets.report_bar import ReportBar, report_bar
from minikv.course.widgets.roofline import RooflineWidget
from minikv.course.widgets.segments import AllocatorStep, SegmentsWidget
from minikv.course.widgets.swap_cost import SwapCostWidget
from minikv.course.widgets.walk import WalkWidget

__all__ = [
    "AllocationWidget",
    "AllocatorStep",
    "BlocksWidget",
    "BudgetWidget",
    "EngineWidget",
    "FleetWidget",
    "GrowthWidget",
    "HeatMapWidget",
    "PoolWidget",
    "ReportBar",
    "RooflineWidget",
    "SegmentsWidget",
    "SequenceBlocks",
    "SwapCostWidget",
    "WalkWidget",
    "report_bar",
]
