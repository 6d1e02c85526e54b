"""One training run in a process of its own: prints its bytes by the engine's counters as JSON."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import bucketlab as bl
from benchmarks.memory import Case
from bucketlab import mx
from bucketlab.memory import counters

VOCAB, HIDDEN, LAYERS = 200, 32, 2
# The scale is given: else ours follows the rows of each batch, where mx.mod keeps those of the default bucket.
SETTINGS = {"learning_rate": 0.01, "momentum": 0.9, "rescale_grad": 1.0 / 16}


def sym_gen_of(model: str) -> Any:
    if model != "mlp":
        return bl.models.lstm_lm(VOCAB, hidden=HIDDEN, embed=HIDDEN, layers=LAYERS, fused=model == "fused")

    def words_mlp(length: int) -> Any:
        x = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=VOCAB, output_dim=HIDDEN, name="embed")
        for layer in range(4):
            x = mx.sym.FullyConnected(x, num_hidden=HIDDEN, flatten=False, name=f"fc{layer}")
            x = mx.sym.Activation(x, act_type="tanh")
        x = mx.sym.FullyConnected(mx.sym.reshape(x, shape=(-1, HIDDEN)), num_hidden=VOCAB, name="pred")
        label = mx.sym.reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
        return mx.sym.SoftmaxOutput(x, label, name="softmax"), ("data",), ("softmax_label",)

    return words_mlp


def batch_of(case: Case, length: int) -> Any:
    shape = (case.rows(length), length)
    words = mx.nd.ones(shape)
    descs = [mx.io.DataDesc("data", shape, layout="NT")], [mx.io.DataDesc("softmax_label", shape, layout="NT")]
    return mx.io.DataBatch([words], [words], bucket_key=length, provide_data=descs[0], provide_label=descs[1])


def arrivals(case: Case) -> list[int]:
    """The lengths as they come, the default one first: it is bound first."""
    lengths = case.lengths if case.only is None else [case.only]
    default = {"largest": lengths[-1], "middle": lengths[len(lengths) // 2], "smallest": lengths[0]}[case.default]
    rest = [length for length in lengths if length != default]
    if case.order == "falling":
        rest.reverse()
    elif case.order == "random":
        random.Random(3).shuffle(rest)
    return [default, *rest]


def at_rest() -> int:
    mx.nd.waitall()
    gc.collect()
    mx.nd.waitall()
    return sum((counters.read() or {}).values())


def main(case: Case) -> dict[str, Any]:
    contexts = [mx.cpu(number) for number in range(case.contexts)]
    counters.start(contexts)
    lengths = arrivals(case)
    namespace = mx.mod if case.namespace == "mxnet" else bl
    more = {"working_memory": "arena"} if case.namespace == "arena" else {}
    logger = logging.getLogger("benchmark")
    module = namespace.BucketingModule(sym_gen_of(case.model), lengths[0], logger=logger, context=contexts, **more)
    first = batch_of(case, lengths[0])
    module.bind(first.provide_data, first.provide_label)
    mx.random.seed(1)
    module.init_params(mx.init.Uniform(0.1))
    module.init_optimizer(optimizer="sgd", optimizer_params=SETTINGS)
    del first
    # Thrice: executors that were let go of for a better plan, in the second round too, have come back by then.
    for length in lengths * 3:
        batch = batch_of(case, length)
        module.forward_backward(batch)
        module.update()
        mx.nd.waitall()
        del batch
    total = at_rest()
    beside = 0
    if namespace is bl:
        beside = sum(row.counted - row.held for row in bl.memory(module).engine)
    digest = hashlib.sha256()
    for _, value in sorted(module.get_params()[0].items()):
        digest.update(value.asnumpy().tobytes())
    return {"bytes": total, "beside": beside, "weights": digest.hexdigest()}


if __name__ == "__main__":
    print(json.dumps(main(Case(**json.loads(sys.argv[1])))))
