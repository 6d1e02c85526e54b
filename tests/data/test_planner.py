"""The planner against brute force: no other bounds and batch sizes compute less, within the budget given."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketlab import mx
from bucketlab.data import BucketIter, Budget, corpus, plan_buckets
from bucketlab.data.lengths import count, row_cost
from bucketlab.data.optimum import Layers, best_bounds
from bucketlab.errors import BudgetError, DataError, SliceError
from bucketlab.slicing import divisor

lengths_lists = st.lists(st.integers(1, 14), min_size=1, max_size=40)
COSTS = {
    "linear": lambda n: n,
    "quadratic": lambda n: n * n,
    "attention": lambda n: 30 * n + n * n,
    "steps": lambda n: -(-n // 4) * 4.0,
}


def subsets(values, k):
    """Every choice of at most ``k`` bounds that holds all values."""
    for chosen in range(min(k, len(values))):
        for low in itertools.combinations(values[:-1], chosen):
            yield [*low, values[-1]]


def taken(lengths, bounds):
    """Sequences of each bound."""
    at = np.searchsorted(bounds, lengths)
    return np.bincount(at, minlength=len(bounds)).tolist()


def rows_needed(n, most, step, even):
    """Batches and rows of a bucket by the definition: the fewest steps, and then the fewest rows."""
    steps = math.ceil(n / most)
    if not even:
        return steps, most
    return steps, next(rows for rows in range(step, most + 1, step) if math.ceil(n / rows) == steps)


@given(lengths=lengths_lists, k=st.integers(1, 5), name=st.sampled_from(sorted(COSTS)))
def test_bounds_are_the_best_there_are(lengths, k, name):
    cost = COSTS[name]
    best = min(
        sum(n * cost(b) for n, b in zip(taken(lengths, bounds), bounds))
        for bounds in subsets(sorted(set(lengths)), k)
    )
    plan = plan_buckets(lengths, k, cost=name if name in ("linear", "quadratic") else cost, joint=False)
    assert len(plan) <= k
    assert sum(b.sequences * cost(b.key) for b in plan.buckets) == best


@given(
    lengths=lengths_lists, k=st.integers(1, 4), budget=st.integers(30, 120), even=st.booleans(),
    workloads=st.sampled_from([[1], [1, 1], [1, 2]]), step_cost=st.sampled_from([0, 7]),
)  # fmt: skip
@settings(deadline=None)
def test_bounds_and_batches_together_are_the_best_there_are(lengths, k, budget, even, workloads, step_cost):
    step = divisor(workloads)
    if max(lengths) * step > budget:
        budget = max(lengths) * step

    def cost(bounds):
        total = 0
        for n, bound in zip(taken(lengths, bounds), bounds):
            most = budget // bound // step * step
            steps, rows = rows_needed(n, most, step, even)
            total += steps * (rows * bound + step_cost)
        return total

    best = min(cost(bounds) for bounds in subsets(sorted(set(lengths)), k))
    plan = plan_buckets(lengths, k, budget, workloads=workloads, step_cost=step_cost, even=even)
    assert plan.method == "joint optimum of bounds and batches"
    assert plan.computed + step_cost * plan.steps == best
    assert plan.tokens == sum(lengths)
    assert plan.sequences == len(lengths)
    assert plan.computed == plan.tokens + plan.padding + plan.filler
    for bucket in plan.buckets:
        assert bucket.rows * bucket.size <= budget
        assert bucket.rows % step == 0
        assert sum(bucket.rows_per_context) == bucket.rows
        shares = [rows / share for rows, share in zip(bucket.rows_per_context, workloads)]
        assert len(set(shares)) == 1


pairs_lists = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=25)


def chains(pairs, k):
    """Every chain of at most ``k`` pairs of bounds that ends with the longest of both."""
    source, target = sorted({s for s, _ in pairs}), sorted({t for _, t in pairs})
    end = (source[-1], target[-1])
    cells = [c for c in itertools.product(source, target) if c != end]
    for chosen in range(k):
        for low in itertools.combinations(cells, chosen):
            if all(a[0] <= b[0] and a[1] <= b[1] for a, b in zip(low, low[1:])):
                yield [*low, end]


def first_fit(pairs, bounds):
    counts = [0] * len(bounds)
    for s, t in pairs:
        counts[next(i for i, (a, b) in enumerate(bounds) if s <= a and t <= b)] += 1
    return counts


@given(pairs=pairs_lists, k=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_a_chain_is_the_best_there_is(pairs, k):
    best = min(
        sum(n * sum(bound) for n, bound in zip(first_fit(pairs, bounds), bounds))
        for bounds in chains(pairs, k)
    )
    plan = plan_buckets(pairs, k)
    assert plan.tokens + plan.padding == best
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in zip(plan.keys, plan.keys[1:]))


@given(pairs=pairs_lists, k=st.integers(1, 3), budget=st.integers(10, 60))
@settings(deadline=None, max_examples=40)
def test_a_chain_with_its_batches_is_the_best_there_is(pairs, k, budget):
    def cost(bounds):
        total = 0
        for n, bound in zip(first_fit(pairs, bounds), bounds):
            if n:
                steps, rows = rows_needed(n, budget // sum(bound), 1, True)
                total += steps * rows * sum(bound)
        return total

    plan = plan_buckets(pairs, k, budget, joint=True)
    assert plan.computed == min(cost(bounds) for bounds in chains(pairs, k))


@given(pairs=pairs_lists, k=st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_a_chain_takes_any_cost_of_both_lengths(pairs, k):
    def cost(s, t):
        return s * t + s

    best = min(
        sum(n * cost(*bound) for n, bound in zip(first_fit(pairs, bounds), bounds))
        for bounds in chains(pairs, k)
    )
    plan = plan_buckets(pairs, k, cost=cost)
    assert sum(b.sequences * cost(*b.key) for b in plan.buckets) == best
    assert plan.cost == "cost"


@given(lengths=lengths_lists, waste=st.sampled_from([0, 0.05, 0.1, 0.3, 0.6]))
def test_no_fewer_buckets_keep_the_waste_limit(lengths, waste):
    plan = plan_buckets(lengths, waste=waste, joint=False)
    assert plan.padding_share <= waste + 1e-9
    if len(plan) > 1:
        assert plan_buckets(lengths, len(plan) - 1, joint=False).padding_share > waste
    joint = plan_buckets(lengths, waste=waste)
    assert joint.padding_share <= waste + 1e-9
    assert len(joint) <= len(plan)


@given(pairs=pairs_lists, waste=st.sampled_from([0, 0.1, 0.3]))
@settings(deadline=None, max_examples=30)
def test_no_shorter_chain_keeps_the_waste_limit(pairs, waste):
    try:
        plan = plan_buckets(pairs, waste=waste)
    except BudgetError as error:
        # A chain cannot always reach it: (1, 2) and (2, 1) have no bucket each in any chain.
        assert "allow more" in str(error)
        whole = plan_buckets(pairs, 12)
        assert whole.padding_share > waste
        return
    assert plan.padding_share <= waste + 1e-9
    if len(plan) > 1:
        assert plan_buckets(pairs, len(plan) - 1).padding_share > waste


@given(
    costs=st.lists(st.integers(1, 1000), min_size=1, max_size=60), data=st.data(), k=st.integers(1, 9),
)  # fmt: skip
@settings(deadline=None)
def test_halving_agrees_with_trying_every_start(costs, data, k):
    costs = np.sort(np.array(costs, dtype=np.int64))
    counts = data.draw(st.lists(st.integers(1, 50), min_size=len(costs), max_size=len(costs)))
    totals = np.concatenate([[0], np.cumsum(counts)])
    best = [0] + [int(c * t) for c, t in zip(costs, totals[1:])]
    layers = Layers(costs, totals)
    for _ in range(k - 1):
        best = [0] + [
            min(best[i] + int(costs[j - 1] * (totals[j] - totals[i])) for i in range(j))
            for j in range(1, len(best))
        ]
        layers.add()
    assert layers.best.tolist() == best
    ends = layers.ends()
    starts = [0, *ends[:-1]]
    assert sum(int(costs[e - 1] * (totals[e] - totals[s])) for s, e in zip(starts, ends)) == best[-1]


def test_many_lengths():
    rng = np.random.default_rng(0)
    many = rng.choice(10**5, 20_000, replace=False) + 1
    plan = plan_buckets(many, 12, budget=10**6)
    assert (len(plan), plan.method) == (12, "exact bounds, batches evened")
    # Lengths evenly spread waste 1 in k + 1.
    assert abs(plan.padding_share - 1 / 13) < 0.002
    repeated = plan_buckets(rng.integers(1, 401, 1_000_000), 16, budget=8192, contexts=2)
    assert repeated.sequences == 1_000_000
    assert abs(repeated.padding_share - 1 / 17) < 0.003
    floats = best_bounds(np.sort(many).astype(float) ** 1.5, np.arange(20_001), 4)
    assert len(floats) == 4


def test_known_waste_on_the_corpus():
    lengths = corpus().lengths
    shares = [round(100 * plan_buckets(lengths, k, joint=False).padding_share, 1) for k in (4, 8, 16, 32)]
    assert shares == [43.6, 21.0, 7.1, 1.3]
    joint = plan_buckets(lengths, 8, 2048, contexts=2)
    assert (round(100 * joint.waste, 1), joint.steps) == (21.4, 17)
    pairs = plan_buckets(corpus(parallel=True).lengths, 4)
    assert (pairs.keys, pairs.method) == (
        ((5, 7), (14, 16), (36, 41), (123, 127)),
        "best chain, batches evened",
    )


def test_the_pairs_of_long_sides_are_planned_on_candidates():
    rng = np.random.default_rng(1)
    pairs = rng.integers(1, 500, (300, 2))
    plan = plan_buckets(pairs, 2)
    assert plan.method == "best chain of 96 x 96 candidates, batches evened"
    assert plan.keys[-1] == tuple(pairs.max(axis=0))
    assert plan.sequences == 300


def test_nothing_asked_keeps_padding_to_a_tenth():
    plan = plan_buckets(corpus())
    assert plan.padding_share <= 0.1
    assert plan_buckets(corpus(), len(plan) - 1, joint=False).padding_share > 0.1
    assert (str(plan.budget), max(plan.batch_sizes)) == ("32 rows", 32)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.integers(4000, 9000), st.integers(1, 3))
def test_a_budget_of_bytes_takes_as_many_rows_as_fit(lengths, amount, contexts):
    def bytes_of(key, rows):
        return 40 * key + rows * key * 7 + 3

    budget = Budget.bytes(amount, bytes_of)
    plan = plan_buckets(lengths, 3, budget, contexts, even=False)
    for bucket in plan.buckets:
        assert (
            bucket.bytes
            == bytes_of(bucket.key, bucket.rows)
            <= amount
            < bytes_of(bucket.key, bucket.rows + contexts)
        )
        assert bucket.rows % contexts == 0


def test_evened_batches_need_no_more_steps_and_fewer_rows():
    plan = plan_buckets([5] * 33, 1, Budget.rows(32))
    assert (plan.batch_sizes, plan.steps, plan.filler) == ((17,), 2, 5)
    plain = plan_buckets([5] * 33, 1, Budget.rows(32), even=False)
    assert (plain.batch_sizes, plain.steps, plain.filler) == ((32,), 2, 31 * 5)
    three = plan_buckets([5] * 33, 1, Budget.rows(32), workloads=[1, 2, 3])
    assert (three.batch_sizes, three.buckets[0].rows_per_context) == ((18,), (3, 6, 9))


def test_the_default_and_the_order_to_bind():
    plan = plan_buckets([1] * 64 + [5] * 10 + [9] * 20 + [20] * 3, 4)
    assert (plan.keys, plan.batch_sizes) == ((1, 5, 9, 20), (32, 10, 20, 3))
    assert plan.default_bucket_key == 20
    assert plan.bind_order == (20, 1, 9, 5)
    heavy = plan_buckets(
        [1] * 64 + [9] * 20, 2, Budget.bytes(10**4, lambda key, rows: rows * 100 + key), even=False
    )
    assert [b.bytes for b in heavy.buckets] == [9901, 9909]
    assert heavy.default_bucket_key == 9
    assert plan_buckets([3, 3, 9], 3, Budget.bytes(900, lambda k, r: 100 * r)).bind_order == (3, 9)


def check_feeds(sequences, plan, **options):
    it = BucketIter(sequences, plan, **options)
    assert it.bucket_keys == plan.keys
    assert tuple(it.batch_sizes.values()) == plan.batch_sizes
    assert it.default_bucket_key == plan.default_bucket_key
    assert list(it.shapes()) == list(plan.bind_order)
    assert it.workloads == plan.workloads
    assert (len(it), it.dropped) == (plan.steps, 0)
    counts = {key: [0, 0, 0] for key in plan.keys}
    for batch in it:
        bucket = plan[batch.bucket_key]
        assert batch.rows_per_context == bucket.rows_per_context
        now = counts[batch.bucket_key]
        now[0] += batch.valid_rows
        now[1] += batch.valid_tokens
        now[2] += batch.pad * bucket.size
    assert {b.key: [b.sequences, b.tokens, b.filler] for b in plan.buckets} == counts


def test_a_plan_feeds_an_iterator_with_what_it_promised():
    text = corpus()
    check_feeds(text, plan_buckets(text.lengths, 8, contexts=2))
    check_feeds(text, plan_buckets(text, 6, 2048, workloads=[1, 2, 3]), layout="TN")
    pairs = corpus(parallel=True)
    check_feeds(pairs, plan_buckets(pairs, 5, 4096, contexts=2))
    with pytest.raises(
        DataError, match=r"the plan has batch sizes; leave batch_size and tokens out, or give plan\.keys"
    ):
        BucketIter(text, plan_buckets(text, 3), 32)
    with pytest.raises(DataError, match=r"bounds\[0\] is \(5, 7\)"):
        BucketIter(text, plan_buckets(pairs, 4))


@given(lengths_lists, st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_the_bounds_of_a_plan_given_back_make_the_same_plan(lengths, k, contexts, even):
    plan = plan_buckets(lengths, k, contexts=contexts, even=even)
    same = plan_buckets(lengths, bounds=plan.keys, contexts=contexts, even=even)
    assert same.buckets == plan.buckets and same.bind_order == plan.bind_order
    assert same.method == "bounds as given" + (", batches evened" if even else "")


def test_the_usual_buckets_can_be_looked_at_as_a_plan():
    text = corpus()
    usual = plan_buckets(text, bounds=range(10, 131, 10), budget=Budget.rows(32), even=False, contexts=2)
    # No sentence has 111 to 120 words: a bucket that nothing goes to is none.
    assert usual.keys == (10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 130)
    assert set(usual.batch_sizes) == {32} and usual.sequences == len(text)
    assert usual.padding == sum(-(-n // 10) * 10 for n in text.lengths.tolist()) - len(text.flat)
    check_feeds(text, usual)
    pairs = plan_buckets([(2, 3), (5, 5), (1, 9)], bounds=[(2, 3), (5, 9)])
    assert [b.sequences for b in pairs] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (([],), {}, DataError, "lengths is empty"),
        (([3, 0],), {}, DataError, r"lengths\[1\] is 0; every length must be at least 1"),
        (([(3, 4), (2, 0)],), {}, DataError, r"lengths\[1\] is \[2, 0\]"),
        (([1.5],), {}, DataError, "lengths are float64; give whole numbers"),
        (([[1, 2, 3]],), {}, DataError, r"shape \(1, 3\); give \(n,\) lengths or \(n, 2\) pairs"),
        (([3], 0), {}, DataError, "k is 0"),
        (([3],), {"waste": 1.0}, DataError, r"waste is 1\.0; give a share"),
        (([1, 2, 3, 9], 2), {"waste": 0.01}, BudgetError, r"waste is 0\.01, but 2 bucket\(s\) pad 0\.16"),
        (([3], 1, 0), {}, DataError, "budget is 0 tokens"),
        (
            ([398], 1, 2048),
            {"workloads": [1, 2, 3]},
            BudgetError,
            r"bucket 398: .*6 x 398 = 2,388 tokens; .*2,048",
        ),
        (
            ([9], 1, Budget.rows(4)),
            {"workloads": [1, 2, 3]},
            BudgetError,
            "batches of 6 rows at least; the budget is 4",
        ),
        (
            ([9], 1, Budget.bytes(50, lambda k, r: 100 * r)),
            {},
            BudgetError,
            "bucket 9: .* 100 B; the budget is 50 B",
        ),
        (([9], 1, Budget.bytes(50, lambda k, r: 10)), {}, DataError, "does not grow with rows"),
        (([9], 1, Budget("bytes", 50)), {}, DataError, "needs bytes_of"),
        (
            ([3, 9],),
            {"cost": "cubic"},
            DataError,
            "cost is 'cubic'; give 'linear', 'quadratic' or a function",
        ),
        (([3, 9],), {"cost": lambda n: -n}, DataError, "falls as bounds grow"),
        (([3, 9],), {"cost": lambda n: n - 3}, DataError, "costs are positive finite numbers"),
        (
            ([3, 9],),
            {"cost": lambda n: 1},
            DataError,
            r"cost gives int64 of shape \(\) for bounds of shape \(2,\)",
        ),
        (([3],), {"contexts": 2, "workloads": [1]}, SliceError, r"1 entries for 2 context\(s\)"),
        (([3],), {"contexts": 0}, DataError, "contexts is 0"),
        (([3],), {"contexts": []}, DataError, r"contexts is \[\]; give at least one"),
        (([3],), {"workloads": []}, DataError, r"workloads is \[\]; give at least one"),
        (([3],), {"step_cost": -1}, DataError, "step_cost is -1"),
        (([3], 2), {"bounds": [3], "waste": 0.1}, DataError, "which leaves k and waste nothing to choose"),
        (([3, 4, 9, 7],), {"bounds": [3, 6]}, DataError, "up to 6, which leaves out 2 of 4 sequences, the longest 9"),
        (([(3, 4), (5, 1)],), {"bounds": [(3, 4)]}, DataError, "up to 3x4, which leaves out 1 of 2 .* the longest 5x1"),
        (([3],), {"bounds": [4, 2]}, DataError, r"bounds are \[4, 2\]; they must rise"),
    ],
)
def test_bad_arguments_are_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        plan_buckets(*arguments, **options)


def test_contexts_are_a_number_one_or_a_list():
    for contexts, names in (
        (2, ("context 0", "context 1")),
        (np.int64(1), ("context 0",)),
        ([mx.cpu(0), mx.cpu(1)], ("cpu(0)", "cpu(1)")),
        (mx.cpu(3), ("cpu(3)",)),
        ("cpu(0)", ("cpu(0)",)),
    ):
        plan = plan_buckets([3, 4], contexts=contexts)
        assert plan.contexts == names
        assert (
            len(plan.workloads) == len(BucketIter([[1]], [1], 8, contexts=contexts).workloads) == len(names)
        )


def test_counting_is_the_same_either_way():
    dense, sparse = count([7, 3, 7, 7]), count([7, 3, 7, 10**7])
    assert (dense.values.tolist(), dense.counts.tolist(), dense.tokens) == ([3, 7], [1, 3], 24)
    assert (sparse.values.tolist(), sparse.counts.tolist()) == ([3, 7, 10**7], [1, 2, 1])
    assert row_cost("quadratic", np.array([1, 2]), np.array([1, 3])).tolist() == [4, 25]
