"""bind as a function: what it binds, from which classes, and where host parameters come to be."""

from __future__ import annotations

import numpy as np
import pytest

import bucketlab as bl
from bucketlab import mx
from nets import CONTEXTS, batch, classifier, values_for

DATA, LABEL = [("data", (4, 4))], [("softmax_label", (4,))]


def test_a_class_may_have_it_as_its_method_with_a_group_class_of_its_own():
    class Group(bl.DataParallelExecutorGroup):
        pass

    class Mine(bl.Module):
        executor_group_class = Group
        bind = bl.bind

    made = Mine(classifier(), context=CONTEXTS[:2])
    made.bind(DATA, LABEL)
    assert made.binded and type(made._exec_group) is Group
    made.init_params(arg_params=values_for(classifier(), data=(4, 4)), aux_params={})
    made.forward(batch(4), is_train=False)
    assert made.get_outputs()[0].shape == (4, 3)


def test_it_binds_a_module_whose_own_bind_does_something_else():
    class Refuses(bl.Module):
        def bind(self, *args, **kwargs):
            raise AssertionError("not this one")

    giver = bl.Module(classifier(), context=CONTEXTS[:2])
    bl.bind(giver, DATA, LABEL, True, False, False, None, "add")
    giver.init_params()
    made = Refuses(classifier(), context=CONTEXTS[:2])
    bl.bind(made, data_shapes=DATA, label_shapes=LABEL, for_training=False, shared_module=giver)
    assert giver._exec_group.grad_req["fc1_weight"] == "add" and not made.for_training
    assert made._arg_params is giver._arg_params
    assert bl.same_memory(
        made._exec_group.execs[1].arg_dict["fc1_weight"], giver._exec_group.execs[1].arg_dict["fc1_weight"]
    )


@pytest.mark.parametrize("kind", [bl.Module, bl.BucketingModule, bl.MutableModule])
@pytest.mark.parametrize("host", ["cpu", "context"])
def test_host_parameters_are_made_on_the_cpu_or_on_their_own_context(kind, host):
    contexts = CONTEXTS[1:3]
    symbol = classifier(batch_norm=True)
    if kind is bl.BucketingModule:
        made = kind(lambda key: (symbol, ["data"], ["softmax_label"]), default_bucket_key=4, context=contexts)
    else:
        made = kind(symbol, ["data"], ["softmax_label"], context=contexts)
    bl.bind(made, DATA, LABEL, host=host)
    inner = made if kind is bl.Module else made._curr_module
    expected = mx.cpu(1) if host == "context" else mx.cpu()
    hosts = {**inner._arg_params, **inner._aux_params}
    assert {str(array.context) for array in hosts.values()} == {str(expected)}
    assert set(hosts) == {
        "fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var",
    }  # fmt: skip
    made.init_params(mx.init.One())
    made.init_optimizer(optimizer_params={"learning_rate": 0.5})
    one = batch(4)
    one.bucket_key, one.provide_data, one.provide_label = 4, DATA, LABEL
    made.forward_backward(one)
    made.update()
    now = made.get_params()[0]["fc2_weight"]
    assert now.context == expected and not np.array_equal(now.asnumpy(), np.ones((3, 5)))
    np.testing.assert_array_equal(now.asnumpy(), inner._exec_group.execs[1].arg_dict["fc2_weight"].asnumpy())


def test_host_copies_keep_type_and_storage():
    weight = mx.sym.Variable("embed_weight", stype="row_sparse")
    data = mx.sym.Variable("data", dtype="float16")
    embedded = mx.sym.Embedding(data, weight=weight, input_dim=9, output_dim=2, name="embed", sparse_grad=True)
    made = bl.Module(embedded, label_names=None, context=CONTEXTS[2])
    bl.bind(made, [("data", (4, 4))], host="context")
    assert made._arg_params["embed_weight"].stype == "row_sparse"
    assert made._arg_params["embed_weight"].context == mx.cpu(2)


def test_what_it_does_not_bind_is_named():
    with pytest.raises(TypeError, match="module is a Symbol; bind\\(\\) takes a bucketlab Module, BucketingModule or"):
        bl.bind(classifier(), DATA, LABEL)
    with pytest.raises(TypeError, match="module is a Module; bind"):
        bl.bind(mx.mod.Module(classifier()), DATA, LABEL)
    made = bl.Module(classifier())
    with pytest.raises(ValueError, match="host is 'gpu'; choose one of \\('cpu', 'context'\\)"):
        bl.bind(made, DATA, LABEL, host="gpu")
    assert not made.binded
