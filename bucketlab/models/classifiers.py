"""Classifiers: a plain multi-layer perceptron, and a small convolutional net for images of any size."""

from __future__ import annotations

from collections.abc import Sequence

from bucketlab._engine import mx
from bucketlab.models._common import Symbol, positive, share


def mlp(
    classes: int = 10,
    hidden: Sequence[int] = (64,),
    *,
    dropout: float = 0.0,
    data_name: str = "data",
    label_name: str = "softmax_label",
) -> Symbol:
    """A perceptron with relu layers: data (rows, ...) are flattened, labels are (rows,)."""
    positive("classes", classes)
    share("dropout", dropout)
    with mx.name.NameManager():
        x = mx.sym.Flatten(mx.sym.Variable(data_name), name="flat")
        for layer, width in enumerate(hidden):
            x = mx.sym.FullyConnected(x, num_hidden=positive(f"hidden[{layer}]", width), name=f"fc{layer}")
            x = mx.sym.Activation(x, act_type="relu", name=f"relu{layer}")
            if dropout:
                x = mx.sym.Dropout(x, p=dropout, name=f"dropout{layer}")
        return _softmax(x, classes, label_name)


def small_convnet(
    classes: int = 10,
    filters: Sequence[int] = (16, 32),
    *,
    data_name: str = "data",
    label_name: str = "softmax_label",
) -> Symbol:
    """A convolutional net for images (rows, channels, height, width) of any height and width.

    Every stage halves the picture; a mean over all places makes the rest independent of its size.
    """
    positive("classes", classes)
    with mx.name.NameManager():
        x = mx.sym.Variable(data_name)
        for stage, width in enumerate(filters):
            x = mx.sym.Convolution(
                x,
                num_filter=positive(f"filters[{stage}]", width),
                kernel=(3, 3),
                stride=(2, 2),
                pad=(1, 1),
                no_bias=True,
                name=f"conv{stage}",
            )
            x = mx.sym.BatchNorm(x, fix_gamma=False, name=f"norm{stage}")
            x = mx.sym.Activation(x, act_type="relu", name=f"relu{stage}")
        x = mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(1, 1), name="everywhere")
        return _softmax(mx.sym.Flatten(x, name="features"), classes, label_name)


def _softmax(features: Symbol, classes: int, label_name: str) -> Symbol:
    scores = mx.sym.FullyConnected(features, num_hidden=classes, name="pred")
    return mx.sym.SoftmaxOutput(scores, mx.sym.Variable(label_name), normalization="null", name="softmax")
