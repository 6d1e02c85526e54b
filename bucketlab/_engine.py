"""The only place that imports mxnet: repairs what it needs of numpy, then hands out the one ``mx``."""

from __future__ import annotations

import os

import numpy as np

for _name, _type in (("bool", bool), ("int", int), ("float", float), ("object", object), ("str", str),
                     ("complex", complex)):
    if _name not in np.__dict__:
        setattr(np, _name, _type)
os.environ.setdefault("MXNET_SUBGRAPH_VERBOSE", "0")

import mxnet as mx  # noqa: E402

__all__ = ["mx"]
