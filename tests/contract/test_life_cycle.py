"""Any sequence of calls, right and wrong ones mixed: what is refused says why, and has never been asked.

Every call goes to a module. If it is taken, a twin takes it as well; if it is refused, the twin never hears of it. All
that a caller can read of the two is the same after every call: parameters, optimizer states, shapes, buckets, outputs
and gradients.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import bucketlab as bl
from bucketlab import mx
from bucketlab.errors import BucketlabError, NotReadyError, StaleError
from kinds import CLASSES, WIDTH, batch, shapes, start
from nets import CONTEXTS
from wrong import BAD_BATCHES, BAD_HEADS, BAD_OPTIMIZERS, BAD_PARAMS, BAD_SHAPES

OPTIMIZERS = {
    "sgd": {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01},
    "adam": {"learning_rate": 0.1},
    "adagrad": {"learning_rate": 0.1},
}
ROWS = st.sampled_from([1, 2, 4, 5])
KEYS = st.sampled_from([0, 1, 2])


def net(key: Any = 0) -> Any:
    scores = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=CLASSES, name="fc")
    if key == 2:
        own = mx.sym.Variable("scale_weight", shape=(1, CLASSES), init=mx.init.One())
        scores = mx.sym.broadcast_mul(scores, own)
    return mx.sym.SoftmaxOutput(scores, name="softmax")


def read(call: Any) -> Any:
    """What a call gives, as numpy arrays, or the kind of error."""
    try:
        found = call()
    except BucketlabError as error:
        return type(error).__name__
    return [None if array is None else array.asnumpy().tolist() for array in found]


def everything(module: Any) -> dict[str, Any]:
    """All that a caller can read of a module."""
    inner = getattr(module, "_curr_module", module) or module
    told: dict[str, Any] = {
        name: getattr(module, name)
        for name in ("binded", "params_initialized", "optimizer_initialized", "for_training", "inputs_need_grad")
    }
    if module.binded:
        told["shapes"] = module.data_shapes, module.label_shapes, module.output_shapes
        told["buckets"] = list(getattr(module, "_buckets", ())), getattr(module, "_curr_bucket_key", None)
    if module.params_initialized:
        told["params"] = [
            {name: value.asnumpy().tolist() for name, value in table.items()} for table in module.get_params()
        ]
        if module.binded:
            told["outputs"], told["gradients"] = read(module.get_outputs), read(module.get_input_grads)
            told["of parameters"] = [read(lambda block=block: block) for block in inner._exec_group.grad_arrays or ()]
            told["slices"] = str(module.slices())
    if module.optimizer_initialized:
        optimizer = inner._optimizer
        told["optimizer"] = type(optimizer), optimizer.num_update, optimizer.rescale_grad, optimizer.lr
        told["counts"] = {device: dict(counts) for device, counts in optimizer._all_index_update_counts.items()}
        told["states"] = {
            key: [part.asnumpy().tolist() for part in (state if isinstance(state, tuple) else (state,))]
            for key, state in inner._updater.states.items()
            if state is not None
        }
    return told


def memory(module: Any) -> Any:
    """Bytes by context and role of what outlives executors; those may be bound just to look at a batch."""
    lasting = ("parameter", "gradient", "auxiliary", "optimizer", "host", "kvstore")
    rows = module.memory().to_dict()["roles"] if module.binded else ()
    return {(row["context"], row["role"]): row["distinct"] for row in rows if row["role"] in lasting}


class Life(RuleBasedStateMachine):
    """One module and its twin."""

    bucketing = False

    @initialize(
        contexts=st.integers(1, 2),
        optimizer=st.sampled_from(sorted(OPTIMIZERS)),
        add=st.booleans(),
        done=st.integers(0, 3),
    )
    def begin(self, contexts: int, optimizer: str, add: bool, done: int) -> None:
        """``done``: how many of bind, init_params and init_optimizer were called already."""
        self.contexts, self.optimizer = CONTEXTS[:contexts], optimizer
        self.grad_req = "add" if add else "write"
        self.module, self.twin = self.make(), self.make()
        self.folder = tempfile.TemporaryDirectory()
        for call in (
            lambda m: m.bind(*shapes(), inputs_need_grad=True, grad_req=self.grad_req),
            lambda m: m.init_params(arg_params=start(), aux_params={}),
            lambda m: m.init_optimizer(optimizer=optimizer, optimizer_params=OPTIMIZERS[optimizer]),
        )[:done]:
            self.ask(call, taken=True)

    def make(self) -> Any:
        if self.bucketing:
            return bl.BucketingModule(lambda key: (net(key), ["data"], ["softmax_label"]), 0, context=self.contexts)
        return bl.Module(net(), context=self.contexts)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            assert memory(self.module) == memory(self.twin)
            self.folder.cleanup()

    # ------------------------------------------------------------------ how a call is made

    def ask(self, call: Any, taken: Any = None, words: Any = ()) -> bool:
        """Make a call. ``taken``: whether it has to be (None: that depends); ``words``: what a refusal has to name."""
        before = everything(self.module)
        try:
            found = call(self.module)
        except Exception as error:
            known = isinstance(error, BucketlabError) or type(error) in (ValueError, TypeError, RuntimeError)
            assert known, f"{type(error).__name__}: {error}"
            message = str(error)
            assert not taken, message
            # Whatever else is wrong, what has to be called first may be told first.
            if isinstance(error, (NotReadyError, StaleError)):
                assert "(" in message, message
            else:
                assert all(word in message for word in words), f"{words} are not all in {message!r}"
            assert "Stack trace" not in message and "Check failed" not in message
            assert everything(self.module) == before, message
            return False
        assert taken is not False, f"taken, with {words}"
        other = call(self.twin)
        assert str(found) == str(other)
        return True

    @invariant()
    def nothing_tells_the_two_apart(self) -> None:
        if hasattr(self, "module"):
            assert everything(self.module) == everything(self.twin)

    @property
    def bound(self) -> bool:
        return hasattr(self, "module") and self.module.binded

    @property
    def ready(self) -> bool:
        return self.bound and self.module.params_initialized

    # ------------------------------------------------------------------ binding

    @rule(rows=ROWS, need_grad=st.booleans())
    def bind(self, rows: int, need_grad: bool) -> None:
        self.ask(lambda m: m.bind(*shapes(rows), inputs_need_grad=need_grad, grad_req=self.grad_req), taken=True)

    @precondition(lambda self: self.bound)
    @rule(rows=ROWS, training=st.booleans())
    def bind_anew(self, rows: int, training: bool) -> None:
        self.ask(
            lambda m: m.bind(*shapes(rows), for_training=training, force_rebind=True, grad_req=self.grad_req),
            taken=True,
        )

    @rule(how=st.sampled_from(sorted(BAD_SHAPES)), anew=st.booleans())
    def bind_wrongly(self, how: str, anew: bool) -> None:
        wrong, words = BAD_SHAPES[how]
        if self.bound and not anew:
            self.ask(lambda m: m.bind(*wrong), taken=True)
        elif how != "width" or self.ready:
            # Before there are parameters any width is right.
            self.ask(lambda m: m.bind(*wrong, force_rebind=True), taken=False, words=words)

    @rule(how=st.sampled_from(["grad_req", "inputs", "shared"]))
    def bind_with_wrong_settings(self, how: str) -> None:
        wrong: Any = {
            "grad_req": {"grad_req": "sometimes"},
            "inputs": {"inputs_need_grad": True, "for_training": False},
            "shared": {"shared_module": bl.Module(net())},
        }[how]
        words = {"grad_req": ["grad_req"], "inputs": ["inputs_need_grad"], "shared": ["shared_module"]}[how]
        self.ask(lambda m: m.bind(*shapes(), force_rebind=True, **wrong), taken=False, words=words)

    # ------------------------------------------------------------------ parameters

    def values(self, seed: int) -> dict[str, Any]:
        found = start(seed)
        if self.bucketing and self.bound and 2 in self.module._buckets:
            found["scale_weight"] = mx.nd.ones((1, CLASSES)) * (1 + seed)
        return found

    @rule(seed=st.integers(0, 2), force=st.booleans())
    def init_params(self, seed: int, force: bool) -> None:
        given = self.values(seed)
        self.ask(lambda m: m.init_params(arg_params=given, aux_params={}, force_init=force), taken=self.bound or None)

    @precondition(lambda self: self.bound)
    @rule(how=st.sampled_from(sorted(BAD_PARAMS)), allow_missing=st.booleans(), by=st.sampled_from(["set", "init"]))
    def set_params_wrongly(self, how: str, allow_missing: bool, by: str) -> None:
        spoilt, words = BAD_PARAMS[how]
        given = {**self.values(3), **spoilt}
        if by == "set":
            self.ask(lambda m: m.set_params(given, {}, allow_missing=allow_missing), taken=False, words=words)
        else:
            self.ask(lambda m: m.init_params(mx.init.One(), given, {}, force_init=True), taken=False, words=words)

    @precondition(lambda self: self.bound)
    @rule(strict=st.booleans(), seed=st.integers(0, 2))
    def set_some_params(self, strict: bool, seed: int) -> None:
        some = {"fc_bias": start(seed)["fc_bias"]}
        self.ask(
            lambda m: m.set_params(some, {}, allow_missing=not strict),
            taken=not strict,
            words=["fc_weight", "allow_missing"],
        )

    # ------------------------------------------------------------------ optimizer

    @rule(force=st.booleans())
    def init_optimizer(self, force: bool) -> None:
        chosen = {"optimizer": self.optimizer, "optimizer_params": OPTIMIZERS[self.optimizer], "force_init": force}
        self.ask(lambda m: m.init_optimizer(**chosen), taken=self.ready or None)

    @rule(how=st.sampled_from(sorted(BAD_OPTIMIZERS)))
    def init_optimizer_wrongly(self, how: str) -> None:
        wrong, words = BAD_OPTIMIZERS[how]
        self.ask(lambda m: m.init_optimizer(**wrong, force_init=True), taken=False, words=words)

    # ------------------------------------------------------------------ running

    @rule(rows=ROWS, key=KEYS, train=st.sampled_from([True, False, None]), seed=st.integers(0, 3))
    def forward(self, rows: int, key: int, train: Any, seed: int) -> None:
        self.ask(lambda m: m.forward(batch(rows, seed, key), is_train=train), taken=self.ready or None)

    @rule(rows=ROWS, key=KEYS, seed=st.integers(0, 3))
    def one_step(self, rows: int, key: int, seed: int) -> None:
        def step(module: Any) -> None:
            module.forward(batch(rows, seed, key), is_train=True)
            module.backward()
            module.update()

        if self.ready and self.module.optimizer_initialized and self.module.for_training:
            self.ask(step, taken=True)

    @rule(how=st.sampled_from(sorted(BAD_BATCHES)), key=KEYS)
    def forward_wrongly(self, how: str, key: int) -> None:
        changed, words = BAD_BATCHES[how]
        bound = not self.bucketing or (self.bound and key in self.module._buckets and self.module._buckets[key].binded)
        if changed.get("provide_data", True) is None and not bound and how != "two arrays":
            words = ["bucket"]
        self.ask(lambda m: m.forward(batch(key=key, **changed), is_train=True), taken=False, words=words)

    @rule(wrong=st.sampled_from([None, 3, "batch", mx.nd.ones((4, WIDTH))]))
    def forward_what_is_no_batch(self, wrong: Any) -> None:
        self.ask(lambda m: m.forward(wrong), taken=False, words=["batch"])

    @rule()
    def backward(self) -> None:
        self.ask(lambda m: m.backward())

    @rule(how=st.sampled_from(sorted(BAD_HEADS)))
    def backward_wrongly(self, how: str) -> None:
        heads, words = BAD_HEADS[how]
        self.ask(lambda m: m.backward(heads), taken=False, words=words)

    @rule()
    def update(self) -> None:
        self.ask(lambda m: m.update())

    @rule(wrong=st.sampled_from([mx.nd.zeros((4,)), [mx.nd.zeros((9,))], 3]))
    def show_a_metric_wrongly(self, wrong: Any) -> None:
        self.ask(lambda m: m.update_metric(mx.metric.create("acc"), wrong), taken=False)

    @rule(value=st.sampled_from([1, "x", None]))
    def set_states(self, value: Any) -> None:
        """There are none."""
        self.ask(lambda m: m.set_states(value=value))

    # ------------------------------------------------------------------ files

    @precondition(lambda self: self.ready)
    @rule(with_states=st.booleans())
    def save_and_load(self, with_states: bool) -> None:
        with_states = with_states and self.module.optimizer_initialized
        rows, training = self.module.data_shapes[0].shape[0], self.module.for_training
        for name in ("module", "twin"):
            prefix = os.path.join(self.folder.name, name)
            saved = getattr(self, name)
            saved.save_checkpoint(prefix, 1, with_states)
            more: dict[str, Any] = {"load_optimizer_states": with_states, "context": self.contexts}
            if self.bucketing:
                more.update(sym_gen=saved._sym_gen, default_bucket_key=0)
            loaded = type(saved).load(prefix, 1, **more)
            loaded.bind(*shapes(rows), for_training=training, grad_req=self.grad_req)
            if with_states:
                loaded.init_optimizer(optimizer=self.optimizer, optimizer_params=OPTIMIZERS[self.optimizer])
            np.testing.assert_equal(
                {n: v.asnumpy() for n, v in loaded.get_params()[0].items()},
                {n: v.asnumpy() for n, v in saved.get_params()[0].items()},
            )
            setattr(self, name, loaded)

    @rule(what=st.sampled_from(["params", "optimizer", "folder"]))
    def use_a_wrong_file(self, what: str) -> None:
        path = os.path.join(self.folder.name, "wrong")
        with open(path, "wb") as file:
            file.write(b"something else")
        call: Any = {
            "params": lambda m: m.load_params(path),
            "optimizer": lambda m: m.load_optimizer_states(path),
            "folder": lambda m: m.save_checkpoint(os.path.join(path, "wrong", "m"), 1),
        }[what]
        self.ask(call, taken=False, words=["wrong"])


class ModuleLife(Life):
    """A Module."""

    @rule(rows=ROWS)
    def reshape(self, rows: int) -> None:
        self.ask(lambda m: m.reshape(*shapes(rows)), taken=self.bound or None)

    @precondition(lambda self: self.bound)
    @rule(how=st.sampled_from(sorted(BAD_SHAPES)))
    def reshape_wrongly(self, how: str) -> None:
        wrong, words = BAD_SHAPES[how]
        self.ask(lambda m: m.reshape(*wrong), taken=False, words=words)

    @rule(how=st.sampled_from(["no module", "no optimizer"]))
    def borrow_wrongly(self, how: str) -> None:
        other = 3 if how == "no module" else bl.Module(net())
        self.ask(lambda m: m.borrow_optimizer(other), taken=False, words=["module"])


class BucketingLife(Life):
    """A BucketingModule whose bucket 2 has a parameter of its own."""

    bucketing = True

    @precondition(lambda self: self.bound)
    @rule(key=KEYS, rows=ROWS)
    def switch(self, key: int, rows: int) -> None:
        self.ask(lambda m: m.switch_bucket(key, *shapes(rows)), taken=self.ready or None)

    @rule(key=st.sampled_from([None, [1], 7]))
    def switch_wrongly(self, key: Any) -> None:
        self.ask(lambda m: m.switch_bucket(key, None), taken=False, words=["bucket"])

    @rule(key=st.sampled_from([None, [1]]))
    def forward_without_a_key(self, key: Any) -> None:
        self.ask(lambda m: m.forward(batch(key=key)), taken=False, words=["bucket_key"])

    @precondition(lambda self: self.bound)
    @rule(key=st.sampled_from([0, 1, 2, 9]))
    def release(self, key: int) -> None:
        self.ask(lambda m: m.release(key), taken=key in self.module._buckets, words=["bucket 9"] if key == 9 else [])

    @precondition(lambda self: self.bound)
    @rule(key=KEYS)
    def forget(self, key: int) -> None:
        """Programs delete entries, which are bound again: the default and the current bucket's, too."""
        if key in self.module._buckets:
            self.ask(lambda m: m._buckets.__delitem__(key), taken=True)


few = settings(max_examples=int(os.environ.get("LIFE", 12)), stateful_step_count=25)
TestModule = ModuleLife.TestCase
TestModule.settings = few
TestBucketingModule = BucketingLife.TestCase
TestBucketingModule.settings = few
