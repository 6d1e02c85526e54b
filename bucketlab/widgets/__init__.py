"""The dashboard of plain ipywidgets, around the pure views."""

from bucketlab.widgets.lab import Lab

__all__ = ["Lab"]
