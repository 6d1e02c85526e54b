"""Side by side with mx.mod: how batches lie in arrays and graphs over contexts, and whose gradients are kept."""

from __future__ import annotations

import itertools
import warnings

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import bucketlab as bl
from beside import CLASSES, ROWS, WIDTH, assert_same, batches, mlp, module, seed, side_by_side, train, values
from bucketlab import mx

CHANNELS = mx.sym.Variable("data")
LAYOUTS = {
    "NT": ((ROWS, WIDTH), CHANNELS),
    "TN": ((WIDTH, ROWS), mx.sym.transpose(CHANNELS)),
    "NCHW": ((ROWS, 2, 3, 3), mx.sym.mean(CHANNELS, axis=(2, 3))),
    "NHWC": ((ROWS, 3, 3, 2), mx.sym.mean(CHANNELS, axis=(1, 2))),
    "TNC": ((3, ROWS, 2), mx.sym.mean(CHANNELS, axis=0)),
    "CN": ((2, ROWS), mx.sym.transpose(CHANNELS)),
}


def classified(features):
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(features, num_hidden=CLASSES, name="fc"), name="softmax")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("contexts", [1, 2, 3])
def test_layouts(layout, contexts):
    shape, features = LAYOUTS[layout]
    some = batches(3, shape=shape)
    described = {
        "data": [mx.io.DataDesc("data", shape, layout=layout)],
        "label": [mx.io.DataDesc("softmax_label", (ROWS,), layout="N")],
    }

    def run(library):
        made = module(library, classified(features), contexts, bind={"inputs_need_grad": True}, **described)
        made.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        metric = mx.metric.create(["acc", "ce"])
        for given in some:
            train(made, [given])
            made.update_metric(metric, given.label)
        return {
            **values(made),
            "output": made.get_outputs()[0].asnumpy(),
            "gradient": made.get_input_grads()[0].asnumpy(),
            "metric": np.array(metric.get()[1]),
        }

    side_by_side(run)


def test_an_array_without_rows_is_whole_on_every_context():
    described = [mx.io.DataDesc("data", (ROWS, WIDTH)), mx.io.DataDesc("mask", (1, WIDTH), layout="C")]
    some = [mx.io.DataBatch([b.data[0], mx.nd.array([[1, 0, 1, 0, 1]])], b.label) for b in batches()]

    def run(library):
        masked = mx.sym.broadcast_mul(mx.sym.Variable("data"), mx.sym.Variable("mask"))
        made = module(library, classified(masked), 2, data=described, data_names=["data", "mask"])
        made.init_optimizer()
        return values(train(made, some))

    side_by_side(run)


@pytest.mark.parametrize("inputs", [["a", "b"], ["b", "a"]])
def test_several_inputs_labels_and_outputs(inputs):
    """In whatever order the names are given; one output has no label, another no gradient."""
    a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
    shared = mx.sym.Variable("shared_weight")
    hidden = [mx.sym.FullyConnected(part, shared, num_hidden=4, name=f"fc{i}") for i, part in enumerate((a, b))]
    net = mx.sym.Group(
        [
            mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden[0], num_hidden=3, name="x"), name="class"),
            mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(hidden[1], num_hidden=1, name="y"), name="size"),
            mx.sym.BlockGrad(hidden[0] + hidden[1], name="sum"),
            mx.sym.MakeLoss(mx.sym.mean(mx.sym.square(hidden[0] - hidden[1]), axis=1), name="gap", grad_scale=0.1),
        ]
    )
    random = np.random.RandomState(0)
    data = {name: random.rand(ROWS, WIDTH) for name in inputs}
    labels = {"class_label": random.randint(0, 3, ROWS), "size_label": random.rand(ROWS, 1)}

    def run(library):
        made = module(
            library,
            net,
            2,
            data=[(name, (ROWS, WIDTH)) for name in inputs],
            label=[(name, value.shape) for name, value in labels.items()],
            data_names=inputs,
            label_names=list(labels),
        )
        made.init_optimizer("device", "adam", {"learning_rate": 0.1})
        given = mx.io.DataBatch([mx.nd.array(x) for x in data.values()], [mx.nd.array(y) for y in labels.values()])
        train(made, [given] * 3)
        metric = mx.metric.CompositeEvalMetric(
            [
                mx.metric.Accuracy(output_names=["class_output"], label_names=["class_label"]),
                mx.metric.MSE(output_names=["size_output"], label_names=["size_label"]),
            ]
        )
        made.update_metric(metric, given.label)
        outputs = {f"output {i}": out.asnumpy() for i, out in enumerate(made.get_outputs())}
        return {**values(made), **outputs, "metric": np.array(metric.get()[1])}

    side_by_side(run)


# ---------------------------------------------------------------------- a matrix

NETS = {
    "dense": lambda layout: mx.sym.FullyConnected(LAYOUTS[layout][1], num_hidden=4, name="fc1"),
    "normalised": lambda layout: mx.sym.BatchNorm(LAYOUTS[layout][1], fix_gamma=False, momentum=0.7, name="norm"),
}


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    rows=st.integers(3, 11),
    workload=st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3),
    layout=st.sampled_from(["NT", "TN"]),
    net=st.sampled_from(sorted(NETS)),
    # mxnet's adagrad keeps its sums in float32 whatever the type of the weights, and fails then.
    optimizer=st.sampled_from([*itertools.product(["sgd", "adam"], ["float32", "float64"]), ("adagrad", "float32")]),
    kvstore=st.sampled_from(["local", "device"]),
    grad_req=st.sampled_from(["write", "add"]),
)
def test_rows_workloads_layouts_types_optimizers_and_kvstores(
    rows, workload, layout, net, optimizer, kvstore, grad_req
):
    """By mx.mod's rule for slices; what that rule cannot cut, it refuses."""
    shape, (optimizer, dtype) = (rows, WIDTH) if layout == "NT" else (WIDTH, rows), optimizer
    described = {
        "data": [mx.io.DataDesc("data", shape, dtype=dtype, layout=layout)],
        "label": [mx.io.DataDesc("softmax_label", (rows,), dtype=dtype, layout="N")],
    }

    # mx.mod cuts along other axes than the first only where the batch has the executor's type.
    some = [
        mx.io.DataBatch([given.data[0].astype(dtype)], [given.label[0].astype(dtype)], pad=0)
        for given in batches(3, rows, shape=shape)
    ]

    def run(library, **more):
        made = module(
            library,
            classified(NETS[net](layout)),
            len(workload),
            work_load_list=workload,
            bind={"grad_req": grad_req},
            **described,
            **more,
        )
        made.init_optimizer(kvstore, optimizer, {"learning_rate": 0.1, "wd": 0.01})
        return values(train(made, some))

    try:
        theirs = run(mx.mod)
    except ValueError as error:
        assert "slices" in str(error)
        with pytest.raises(bl.errors.SliceError):
            run(bl, split="mxnet")
        return
    assert_same(run(bl, split="mxnet"), theirs)


# ---------------------------------------------------------------------- gradients and states


@pytest.mark.parametrize("contexts", [1, 2])
def test_fixed_parameters_and_gradients_that_add_up(contexts):
    def run(library):
        made = module(library, mlp(), contexts, fixed_param_names=["fc1_weight"], bind={"grad_req": "add"})
        made.init_optimizer("local", "sgd", {"learning_rate": 0.1})
        for at, given in enumerate(batches(6)):
            made.forward_backward(given)
            if at % 2:
                made.update()
                for block in made._exec_group.grad_arrays:
                    for grad in block:
                        if grad is not None:
                            grad[:] = 0
        return values(made)

    start = values(module(mx.mod, mlp(), contexts))
    np.testing.assert_array_equal(side_by_side(run)["fc1_weight"], start["fc1_weight"])


@pytest.mark.parametrize("form", [dict, list])
def test_requests_for_each_argument(form):
    names, requests = mlp().list_arguments(), ["null", "write", "add", "null", "write", "null"]
    grad_req = dict(zip(names[1:-1], requests[1:-1])) if form is dict else requests

    def run(library):
        made = module(library, mlp(), 2, bind={"grad_req": grad_req})
        made.init_optimizer("local", "sgd", {"learning_rate": 0.1})
        return values(train(made, batches()))

    side_by_side(run)


@pytest.mark.parametrize("contexts", [1, 2])
def test_gradients_from_outside(contexts):
    """Of two outputs that are no losses, and those of the input."""
    data = mx.sym.Variable("data")
    net = mx.sym.Group([mx.sym.FullyConnected(data, num_hidden=2, name=name) for name in "xy"])
    heads = [[mx.nd.array(np.random.RandomState(i).rand(ROWS, 2)) for i in (at, at + 5)] for at in range(3)]

    def run(library):
        made = library.Module(net, label_names=None, context=[mx.cpu(i) for i in range(contexts)])
        made.bind([("data", (ROWS, WIDTH))], inputs_need_grad=True)
        seed()
        made.init_params(mx.init.Normal(0.5))
        made.init_optimizer(optimizer="adam")
        found = {}
        for at, (given, out_grads) in enumerate(zip(batches(3), heads)):
            made.forward(given, is_train=True)
            made.backward(out_grads)
            made.update()
            found[f"gradient {at}"] = made.get_input_grads()[0].asnumpy()
            parts = made.get_input_grads(merge_multi_context=False)[0]
            found[f"parts {at}"] = np.concatenate([part.asnumpy() for part in parts])
        return {**values(made), **found}

    side_by_side(run)


@pytest.mark.parametrize("contexts", [1, 2])
def test_states_that_go_from_batch_to_batch(contexts):
    data, state = mx.sym.Variable("data"), mx.sym.Variable("state", shape=(0, 4))
    hidden = mx.sym.tanh(mx.sym.FullyConnected(mx.sym.concat(data, state, dim=1), num_hidden=4, name="fc1"))
    loss = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=CLASSES, name="fc2"), name="softmax")
    net = mx.sym.Group([loss, mx.sym.BlockGrad(hidden, name="next")])

    def run(library):
        made = module(library, net, contexts, state_names=["state"])
        made.init_optimizer("local", "sgd", {"learning_rate": 0.1})
        made.set_states(value=0.5)
        found = {}
        for at, given in enumerate(batches()):
            train(made, [given])
            made.set_states(states=[made.get_outputs(merge_multi_context=False)[1]])
            found[f"state {at}"] = np.concatenate([s.asnumpy() for s in made.get_states(False)[0]])
        return {**values(made), **found}

    side_by_side(run)


@pytest.mark.parametrize("training", [True, False])
def test_batches_of_other_shapes(training):
    def run(library):
        made = module(library, mlp(), 2, bind={"for_training": training})
        if training:
            # Their gradients are divided by the rows of the first batch for ever, unless it is said by what.
            made.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9, "rescale_grad": 1 / ROWS})
        found = {}
        for at, rows in enumerate((ROWS, 4, 12, ROWS, 4)):
            [given] = batches(1, rows, seed=at)
            if training:
                train(made, [given])
            else:
                made.forward(given)
            found[f"{at}: {rows} rows"] = made.get_outputs()[0].asnumpy()
            found[f"{at}: shapes"] = np.array([desc.shape[0] for desc in made.data_shapes + made.label_shapes])
        return {**values(made), **found}

    side_by_side(run)


def test_modules_that_share_parameters_and_an_optimizer():
    def run(library):
        first = module(library, mlp(), 2)
        first.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        second = library.Module(mlp(), context=[mx.cpu(0), mx.cpu(1)])
        second.bind([("data", (ROWS, WIDTH))], [("softmax_label", (ROWS,))], shared_module=first)
        for at, given in enumerate(batches(5)):
            train((first, second)[at % 2], [given])
        first._params_dirty = True
        return values(first)

    side_by_side(run)


# ---------------------------------------------------------------------- parts of a graph


@pytest.mark.parametrize("form", ["one for all", "a list for each group", "a dict for each context"])
def test_parts_of_the_graph_on_other_contexts(form):
    groups = {
        "one for all": {"first": mx.cpu(4), "second": [mx.cpu(5)]},
        "a list for each group": {"first": [mx.cpu(4), mx.cpu(6)], "second": [mx.cpu(5), mx.cpu(7)]},
        "a dict for each context": [
            {"first": mx.cpu(4), "second": mx.cpu(5)},
            {"first": mx.cpu(6), "second": mx.cpu(7)},
        ],
    }[form]
    with mx.AttrScope(ctx_group="first"):
        hidden = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4, name="fc1")
    with mx.AttrScope(ctx_group="second"):
        net = classified(mx.sym.Activation(hidden, act_type="tanh"))

    def run(library):
        made = module(library, net, 2, group2ctxs=groups)
        homes = [[str(e.arg_dict[n].context) for e in made._exec_group.execs] for n in ("fc1_weight", "fc_weight")]
        made.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        return {**values(train(made, batches())), "homes": np.array(homes)}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        homes = side_by_side(run)["homes"]
    assert homes.tolist() == {
        "one for all": [["cpu(4)", "cpu(4)"], ["cpu(5)", "cpu(5)"]],
    }.get(form, [["cpu(4)", "cpu(6)"], ["cpu(5)", "cpu(7)"]])


@pytest.mark.parametrize("contexts", [1, 2])
def test_noise_is_the_same_from_the_same_seed(contexts):
    def run(library):
        dropped = mx.sym.Dropout(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=9, name="fc1"), p=0.5)
        made = module(library, classified(dropped), contexts)
        made.init_optimizer()
        seed(9)
        return values(train(made, batches()))

    side_by_side(run)
