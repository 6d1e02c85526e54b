"""Side by side with mx.mod: whole programs, and what they say while they run."""

from __future__ import annotations

import logging
import re

import numpy as np
import pytest

from beside import CLASSES, LIBRARIES, ROWS, WIDTH, assert_same, batches, mlp, module, seed, side_by_side, train, values
from bucketlab import mx
from nets import CONTEXTS, Batches


@pytest.mark.parametrize("monitor_all", [False, True])
@pytest.mark.parametrize("contexts", [1, 2])
def test_a_monitor_prints_the_same_numbers(contexts, monitor_all):
    def run(library):
        # A gradient that nobody asks for has a name too, but no numbers: the engine shows whatever is in memory.
        made = module(library, mlp(), contexts, bind={"inputs_need_grad": True})
        made.init_optimizer()
        monitor = mx.mon.Monitor(2, lambda x: x.abs().sum(), "fc.*", sort=True, monitor_all=monitor_all)
        made.install_monitor(monitor)
        found = {}
        for at, given in enumerate(batches()):
            monitor.tic()
            train(made, [given])
            for number, (step, name, told) in enumerate(monitor.toc()):
                found[f"{at} {number} {step} {name}"] = np.array([float(part) for part in told.split()])
        return found

    assert len(side_by_side(run)) > 10


def logged(run):
    """What a program says while it trains, but for times and speeds, and what it gives."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(re.sub(r"(Speed: |cost=|Time cost=)[\d.]+", r"\1", record.getMessage()))

    root, keep = logging.getLogger(), Keep()
    level = root.level
    root.addHandler(keep)
    root.setLevel(logging.INFO)
    try:
        found = run()
    finally:
        root.removeHandler(keep)
        root.setLevel(level)
    return lines, found


@pytest.mark.parametrize("contexts", [1, 2])
def test_fit_says_and_does_the_same_with_every_callback(contexts, tmp_path):
    folder = tmp_path / "files"

    def run(library):
        folder.mkdir()
        prefix, told = str(folder / "m"), []
        made = library.Module(mlp(), context=CONTEXTS[:contexts])
        seed()
        made.fit(
            Batches(batches(5)),
            eval_data=Batches(batches(2, seed=7)),
            eval_metric=["acc", "ce"],
            validation_metric=mx.metric.np(lambda label, scores: float((scores.argmax(1) - label).sum()), "apart"),
            num_epoch=3,
            begin_epoch=1,
            kvstore="device",
            optimizer="nag",
            optimizer_params=(("learning_rate", 0.1), ("momentum", 0.9)),
            initializer=mx.init.Uniform(0.5),
            monitor=mx.mon.Monitor(3, pattern="fc2_weight", sort=True),
            batch_end_callback=[
                mx.callback.Speedometer(ROWS, 2),
                mx.callback.ProgressBar(5, 10),
                mx.callback.log_train_metric(2),
                lambda p: told.append((p.epoch, p.nbatch, p.eval_metric.get(), sorted(p.locals["data_batch"].data))),
            ],
            epoch_end_callback=[
                mx.callback.do_checkpoint(prefix),
                mx.callback.module_checkpoint(made, prefix + "-own", save_optimizer_states=True),
                lambda epoch, net, args, aux: told.append((epoch, net.list_outputs(), sorted(args), sorted(aux))),
            ],
            eval_end_callback=mx.callback.LogValidationMetricsCallback(),
            eval_batch_end_callback=lambda p: told.append((p.nbatch, p.eval_metric.get())),
        )
        told = [[str(part) for part in entry[:3]] for entry in told]
        saved = {file.name: mx.nd.load(str(file)) for file in sorted(folder.glob("*.params"))}
        files = sorted(file.name for file in folder.iterdir())
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        arrays = {f"{file} {name}": value.asnumpy() for file, table in saved.items() for name, value in table.items()}
        return files, told, arrays

    (their_lines, theirs), (our_lines, ours) = (logged(lambda lib=library: run(lib)) for library in LIBRARIES)
    assert ours[:2] == theirs[:2]
    assert_same(ours[2], theirs[2])
    assert our_lines == their_lines
    assert any(line.startswith("Saved optimizer state to") for line in our_lines)


@pytest.mark.filterwarnings("ignore:Parameters already initialized")
def test_fit_goes_on_from_parameters_that_are_given():
    """On one context: with a kvstore mx.mod goes on from what that holds, whatever is set anew."""

    def run(library):
        made = library.Module(mlp())
        given = {"fc1_weight": mx.nd.ones((4, WIDTH)) / 3}
        seed()
        common = {"optimizer_params": {"learning_rate": 0.3}, "initializer": mx.init.Normal(0.2)}
        made.fit(Batches(batches()), num_epoch=1, arg_params=given, allow_missing=True, **common)
        found = {f"first {name}": value for name, value in values(made).items()}
        made.fit(Batches(batches(2)), num_epoch=2, begin_epoch=1, **common)
        found.update({f"then {name}": value for name, value in values(made).items()})
        made.fit(Batches(batches()), num_epoch=1, force_rebind=True, force_init=True, **common)
        return {**found, **values(made)}

    side_by_side(run)


@pytest.mark.parametrize("contexts", [1, 2])
def test_iterators_of_mxnet(contexts):
    """Prefetched, resized, with an incomplete last batch of every kind."""
    random = np.random.RandomState(0)
    data, label = random.rand(22, WIDTH).astype("f"), random.randint(0, CLASSES, 22).astype("f")
    kinds = {
        "plain": lambda: mx.io.NDArrayIter(data, label, ROWS),
        "prefetched": lambda: mx.io.PrefetchingIter(mx.io.NDArrayIter(data, label, ROWS)),
        "resized": lambda: mx.io.ResizeIter(mx.io.NDArrayIter(data, label, ROWS), 2),
        "discarding": lambda: mx.io.NDArrayIter(data, label, ROWS, last_batch_handle="discard"),
        "rolling": lambda: mx.io.NDArrayIter(data, label, ROWS, last_batch_handle="roll_over"),
        "named": lambda: mx.io.NDArrayIter({"data": data}, {"softmax_label": label}, ROWS, shuffle=True),
    }

    def run(library):
        found = {}
        for name, make in kinds.items():
            made = library.Module(mlp(), context=CONTEXTS[:contexts])
            seed()
            made.fit(make(), num_epoch=2, initializer=mx.init.Uniform(0.5), optimizer_params={"learning_rate": 0.3})
            found.update({f"{name} {key}": value for key, value in values(made).items()})
            found[f"{name} predictions"] = made.predict(make()).asnumpy()
        return found

    side_by_side(run)


def test_scores_and_predictions():
    some = Batches(batches(5))

    def run(library):
        made = module(library, mlp(), 2)
        ended = []
        pairs = made.score(some, ["acc", "ce"], num_batch=3, score_end_callback=lambda p: ended.append(p.nbatch))
        apart = made.predict(some, num_batch=2, merge_batches=False)
        one_by_one = [outputs[0].asnumpy() for outputs, _, _ in made.iter_predict(some, num_batch=4)]
        return {
            "score": np.array([value for _, value in pairs] + ended),
            "merged": made.predict(some).asnumpy(),
            "in a list": made.predict(some, always_output_list=True)[0].asnumpy(),
            "apart": np.array([outputs[0].asnumpy() for outputs in apart]),
            "one by one": np.array(one_by_one),
        }

    side_by_side(run)


INITIALIZERS = {
    "normal": lambda: mx.init.Normal(0.5),
    "orthogonal": lambda: mx.init.Orthogonal(),
    "msra": lambda: mx.init.MSRAPrelu(),
    "mixed": lambda: mx.init.Mixed(["fc1.*", ".*"], [mx.init.One(), mx.init.Uniform(0.1)]),
    "load": lambda: mx.init.Load({"fc1_weight": mx.nd.ones((4, WIDTH))}, mx.init.Uniform(0.2)),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers_draw_in_the_same_order(name):
    net = mlp(init=mx.init.Normal(2))
    side_by_side(lambda library: values(module(library, net, 2, initializer=INITIALIZERS[name]())))


@pytest.mark.parametrize("writer", LIBRARIES)
def test_checkpoints_are_read_by_either(writer, tmp_path):
    prefix = str(tmp_path / "m")
    made = module(writer, mlp(), 2)
    made.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    train(made, batches()).save_checkpoint(prefix, 3, save_optimizer_states=True)

    def run(library):
        read = library.Module.load(prefix, 3, load_optimizer_states=True, context=CONTEXTS[:2])
        read.bind([("data", (ROWS, WIDTH))], [("softmax_label", (ROWS,))])
        read.init_optimizer("local", "sgd", {"learning_rate": 0.1, "momentum": 0.9})
        return values(train(read, batches(3, seed=5)))

    assert_same(values(train(made, batches(3, seed=5))), side_by_side(run))
