"""Small models of every kind that a forecast is held against, and runs of them."""

from __future__ import annotations

import bucketlab as bl
from bucketlab import mx

_SIZES = {"vocab": 30, "hidden": 8, "embed": 8}


def _images(key: int):
    return bl.models.small_convnet(5, filters=(4, 8)), ("data",), ("softmax_label",)


#: A sym_gen and the buckets that it is run with, by kind.
MODELS = {
    "lstm": (bl.models.lstm_lm(layers=2, **_SIZES), [3, 6, 2]),
    "gru": (bl.models.gru_lm(**_SIZES), [4, 6, 3]),
    "fused": (bl.models.lstm_lm(layers=2, fused=True, **_SIZES), [4, 6, 3]),
    "attention": (bl.models.attention_lm(30, embed=8, heads=2, feed_forward=16, max_length=16), [4, 6, 3]),
    "images": (_images, [16, 24, 20]),
}


def shapes(key: int, rows: int):
    """(data_shapes, label_shapes): pictures of 16 points and more, words of fewer."""
    if key >= 16:
        return [("data", (rows, 3, key, key))], [("softmax_label", (rows,))]
    return (
        [mx.io.DataDesc("data", (rows, key), layout="NT")],
        [mx.io.DataDesc("softmax_label", (rows, key), layout="NT")],
    )


def batches(key: int, data):
    """Arrays for a batch of these shapes."""
    rows = data[0][1][0]
    label = (rows,) if key >= 16 else data[0][1]
    return [mx.nd.ones(data[0][1])], [mx.nd.ones(label)]


def run(model, given, contexts, workloads=None, optimizer=("sgd", {}), rounds=3, after=lambda module: None):
    """Train a step in every bucket of ``given``, ``rounds`` times over; a module is taken as it is.

    ``after(module)`` is called after every step.
    """
    module, keys = model, list(given)
    if not hasattr(model, "bind"):
        module = bl.BucketingModule(
            model, default_bucket_key=keys[0], context=contexts, work_load_list=workloads
        )
    module.bind(*given[module._default_bucket_key])
    module.init_params()
    module.init_optimizer(optimizer=optimizer[0], optimizer_params={"learning_rate": 0.1, **optimizer[1]})
    made = [
        mx.io.DataBatch(*batches(key, data), bucket_key=key, provide_data=data, provide_label=label)
        for key, (data, label) in given.items()
    ]
    for batch in made * rounds:
        module.forward_backward(batch)
        module.update()
        after(module)
    return module
