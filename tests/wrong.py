"""Calls that have to be refused: for each what is wrong with it, and the words that the refusal has to have.

All are for the network of :mod:`kinds`, bound to 4 rows.
"""

from __future__ import annotations

import numpy as np

from bucketlab import mx
from kinds import CLASSES, WIDTH, shapes

BAD_SHAPES = {
    "name": (([("words", (4, WIDTH))], shapes()[1]), ["words", "data"]),
    "rows": ((shapes()[0], [("softmax_label", (3,))]), ["softmax_label", "3", "4"]),
    "width": (([("data", (4, WIDTH + 1))], shapes()[1]), ["fc_weight", "(3, 5)", "(3, 4)"]),
    "size": (([("data", (0, WIDTH))], shapes()[1]), ["data", "(0, 4)"]),
    "axes": (([("data", 4)], shapes()[1]), ["data"]),
    "none": ((None, None), ["data_shapes"]),
    "twice": ((shapes()[0] * 2, shapes()[1]), ["data"]),
    "contexts": (([shapes()[0]] * 3, None), ["3 contexts"]),
}
BAD_PARAMS = {
    "shape": ({"fc_weight": mx.nd.ones((3, 5))}, ["fc_weight", "(3, 5)", "(3, 4)"]),
    "kind": ({"fc_bias": "ones"}, ["fc_bias", "str"]),
    "extra": ({"fd_weight": mx.nd.ones((1,))}, ["fd_weight"]),
}
BAD_BATCHES = {
    "label rows": ({"label": [mx.nd.zeros((9,))]}, ["softmax_label", "9"]),
    "two labels": ({"label": [mx.nd.zeros((4,))] * 2}, ["label"]),
    "width": ({"data": [mx.nd.ones((4, 9))], "provide_data": None}, ["fc_weight"]),
    "rank": ({"data": [mx.nd.ones((4,))], "provide_data": None}, ["fc_weight"]),
    "two arrays": ({"data": [mx.nd.ones((4, WIDTH))] * 2, "provide_data": None}, ["data"]),
    "names": ({"provide_data": [("words", (4, WIDTH))]}, ["words", "data"]),
    "nothing": ({"data": []}, ["data"]),
    "no arrays": ({"data": [None]}, ["data"]),
    "objects": ({"data": [np.full((4, WIDTH), None)]}, ["data", "object"]),
    "no list": ({"data": mx.nd.ones((4, WIDTH))}, ["data is NDArray"]),
    "label no list": ({"label": mx.nd.zeros((4,))}, ["label is NDArray"]),
    "both forms": ({"data": [mx.nd.ones((4, WIDTH)), [mx.nd.ones((4, WIDTH))]]}, ["data"]),
}
BAD_HEADS = {
    "rows": ([mx.nd.ones((9, CLASSES))], ["out_grads", "(9, 3)"]),
    "width": ([mx.nd.ones((4, 9))], ["out_grads", "(4, 9)"]),
    "number": ([mx.nd.ones((4, CLASSES))] * 2, ["out_grads", "2"]),
    "kind": (["ones"], ["out_grads", "str"]),
}
BAD_OPTIMIZERS = {
    "name": ({"optimizer": "none-such"}, ["none-such"]),
    "setting": ({"optimizer_params": {"speed": 1}}, ["speed"]),
    "kind": ({"optimizer": 3}, ["optimizer", "int"]),
    "kvstore": ({"kvstore": 3}, ["kvstore", "int"]),
}
