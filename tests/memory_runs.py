"""Small real runs of mx.mod with every role that a module's arrays can have."""

from __future__ import annotations

from bucketlab import mx

ROWS, CONTEXTS = 4, (mx.cpu(0), mx.cpu(1))


def sym_gen(length: int):
    """Mean of embedded words through a normalised layer, with a state that is added before the end."""
    embed = mx.sym.Embedding(mx.sym.Variable("data"), input_dim=12, output_dim=5, name="embed")
    hidden = mx.sym.FullyConnected(mx.sym.mean(embed, axis=1), num_hidden=6, name="fc")
    normal = mx.sym.BatchNorm(hidden, name="bn")
    net = mx.sym.FullyConnected(normal + mx.sym.Variable("memory"), num_hidden=3, name="out")
    return mx.sym.SoftmaxOutput(net, name="softmax"), ("data",), ("softmax_label",)


def batch(length: int) -> mx.io.DataBatch:
    return mx.io.DataBatch(
        [mx.nd.ones((ROWS, length))],
        [mx.nd.zeros((ROWS,))],
        bucket_key=length,
        provide_data=[("data", (ROWS, length))],
        provide_label=[("softmax_label", (ROWS,))],
    )


def step(module, length: int) -> None:
    module.forward_backward(batch(length))
    module.update()


def bucketing(lengths=(8, 5), namespace=mx.mod, kvstore="local"):
    """A BucketingModule on two contexts that trained one step in each bucket; the first is the default."""
    module = namespace.BucketingModule(
        sym_gen, default_bucket_key=lengths[0], context=list(CONTEXTS), state_names=["memory"]
    )
    first = batch(lengths[0])
    module.bind(first.provide_data, first.provide_label, inputs_need_grad=False)
    module.init_params()
    module.init_optimizer(kvstore=kvstore, optimizer_params={"learning_rate": 0.1, "momentum": 0.9})
    for length in lengths:
        step(module, length)
    mx.nd.waitall()
    return module
