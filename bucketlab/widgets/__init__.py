"""The dashboard and the plan explorer: plain ipywidgets around the pure views."""

from bucketlab.widgets.lab import Lab
from bucketlab.widgets.planner import PlanExplorer

__all__ = ["Lab", "PlanExplorer"]
