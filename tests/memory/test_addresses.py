"""Reading addresses: what is read is true, and reading changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from bucketlab import mx
from bucketlab.memory import addresses
from bucketlab.memory.addresses import Layout
from bucketlab.memory.proof import layout
from bucketlab.memory.reading import Reader


def places(arrays, proved=None):
    return addresses.places(arrays, proved or layout())


def pool_places(executors, proved=None):
    return addresses.pool_places(executors, proved or layout())


def lazy(shape, context=None, dtype=np.float32):
    """An array that the engine has promised and not allocated."""
    return mx.nd.NDArray(mx.nd.ndarray._new_alloc_handle(shape, context or mx.cpu(), True, dtype))


def test_this_wheel_passes_the_self_check():
    assert layout() == Layout(dense=True, sparse=True, reason="")


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]
)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4, 5), (1, 2, 1, 2, 3), (0, 4)])
def test_shape_type_and_bytes_are_those_of_mxnet(shape, dtype):
    array = mx.nd.empty(shape, dtype=dtype, ctx=mx.cpu(1)) if 0 not in shape else None
    if array is None:
        # mxnet makes arrays of no elements under its numpy semantics only.
        with mx.util.np_shape(True):
            array = mx.nd.zeros(shape, dtype=dtype, ctx=mx.cpu(1))
    place = places([array])[0]
    assert (place.context, place.shape, place.dtype) == ("cpu(1)", shape, dtype)
    assert place.nbytes == int(np.prod(shape)) * np.dtype(dtype).itemsize
    assert place.storage == "default" and place.seen


def test_views_lie_at_their_offset_in_one_block():
    whole = mx.nd.zeros((10, 4))
    found = places([whole, whole[2:5], whole.reshape((4, 10)), whole[7], whole.copy()])
    assert found.offset.tolist() == [0, 32, 0, 112, 0]
    assert len(set(found.block[:4].tolist())) == 1
    assert found.block[4] != found.block[0]


def test_the_bytes_at_the_address_are_the_arrays():
    array = mx.nd.array([1.5, -2.0, 3.25])
    array.wait_to_read()
    held, read = Reader().gather(places([array]).block.astype(np.uint64), 12)
    assert read.tolist() == [True]
    assert held[0].view("<f4").tolist() == [1.5, -2.0, 3.25]


def test_an_address_that_is_not_mapped_is_reported():
    good = np.arange(4, dtype=np.uint64)
    addresses = np.array([8, good.ctypes.data, 1 << 63, good.ctypes.data + 8], np.uint64)
    for reader in (Reader(), _by_file()):
        held, read = reader.gather(addresses, 8)
        assert read.tolist() == [False, True, False, True]
        assert held.view("<u8").ravel().tolist() == [0, 0, 0, 1]


def _by_file():
    reader = Reader()
    reader._readv = None
    return reader


def test_many_addresses_are_read_in_several_calls():
    numbers = np.arange(3000, dtype=np.uint64)
    addresses = numbers.ctypes.data + 8 * numbers
    addresses[[0, 1023, 1024, 2999]] = 16
    held, read = Reader().gather(addresses, 8)
    assert np.flatnonzero(~read).tolist() == [0, 1023, 1024, 2999]
    assert (held.view("<u8").ravel()[read] == numbers[read]).all()


def test_looking_does_not_allocate():
    array = lazy((100, 100))
    for _ in range(2):
        span = places([array])[0].spans[0]
        assert (span.allocated, span.nbytes, span.block_bytes) == (False, 40_000, 40_000)
    array[:] = 1
    array.wait_to_read()
    assert places([array])[0].spans[0].allocated


def test_looking_does_not_wait():
    big = mx.nd.ones((1000, 1000))
    mx.nd.waitall()
    product = mx.nd.dot(mx.nd.dot(big, big), big)
    place = places([product])[0]
    # The product's memory comes with its computation: had the look waited, it would be there.
    assert place.seen and not place.spans[0].allocated
    mx.nd.waitall()
    assert places([product])[0].spans[0].allocated


def test_sparse_arrays_have_all_their_parts():
    rows = mx.nd.sparse.row_sparse_array((np.ones((3, 2), "float32"), [0, 2, 5]), shape=(8, 2))
    csr = mx.nd.sparse.csr_matrix((np.ones(3, "float32"), [0, 2, 1], [0, 2, 2, 3]), shape=(3, 4))
    empty = mx.nd.sparse.zeros("row_sparse", (8, 2))
    mx.nd.waitall()
    found = places([rows, csr, empty])
    assert [found[i].storage for i in range(3)] == ["row_sparse", "csr", "row_sparse"]
    assert [[span.nbytes for span in found[i].spans] for i in range(3)] == [[24, 24], [12, 32, 24], [0, 0]]
    assert found.nbytes.tolist() == [48, 68, 0]
    assert not found.allocated[found.of == 2].any()


def test_memory_of_numpy_is_lent():
    memory = np.ones((3, 3), "float32")
    span = places([mx.nd.from_numpy(memory, zero_copy=True)])[0].spans[0]
    assert (span.block, span.lent) == (memory.ctypes.data, True)
    assert not places([mx.nd.ones((3, 3))])[0].spans[0].lent


@pytest.mark.parametrize("proved", [Layout(False, False, "told so"), Layout(True, False, "told so")])
def test_without_proof_shape_and_type_remain(proved):
    dense = mx.nd.zeros((3, 4), ctx=mx.cpu(1))
    sparse = mx.nd.sparse.zeros("row_sparse", (8, 2))
    found = places([dense, sparse], proved)
    assert found.seen.tolist() == [proved.dense, False]
    assert found.shape == [(3, 4), (8, 2)]
    assert found.context == ["cpu(1)", "cpu(0)"]
    assert found.nbytes.tolist() == [48, 64]
    assert 1 not in found.of


def small_executor(**shapes):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=8, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.Activation(net, act_type="relu"), name="softmax").simple_bind(
        mx.cpu(1), data=(4, 6), **shapes
    )


def test_pool_blocks_get_their_memory_at_the_first_run():
    executor = small_executor()
    before, counts = pool_places([executor])
    assert counts == [len(before)] and len(before) > 0
    assert not before.allocated.any()
    executor.forward(is_train=True)
    executor.backward()
    mx.nd.waitall()
    after, _ = pool_places([executor])
    assert after.allocated.all()
    assert set(after.context) == {"cpu(1)"}
    output = places(executor.outputs)
    assert output.owner[0] in after.owner.tolist()


def test_executors_that_share_have_blocks_in_common():
    first = small_executor()
    net = first._symbol
    second = net.simple_bind(mx.cpu(1), data=(2, 6), shared_exec=first)
    apart = small_executor()
    found, (one, two, _) = pool_places([first, second, apart])
    owners = found.owner.tolist()
    assert set(owners[one : one + two]) <= set(owners[:one])
    assert not set(owners[one + two :]) & set(owners[: one + two])


def test_a_giver_does_not_claim_the_blocks_that_a_taker_added():
    first = small_executor()
    before, _ = pool_places([first])
    second = first._symbol.simple_bind(mx.cpu(1), data=(64, 6), shared_exec=first)
    found, (one, _) = pool_places([first, second])
    assert one == len(before)
    added = set(found.owner.tolist()) - set(before.owner.tolist())
    assert added and not added & set(found.owner[:one].tolist())
    # With the taker gone the giver still keeps the memory alive.
    del second
    alone, _ = pool_places([first])
    assert set(alone.owner.tolist()) == set(found.owner.tolist())


def test_what_is_no_executor_has_no_pool():
    class Pretender:
        handle = None

    class Wrong:
        """Looks like an executor and has the arrays of another."""

        def __init__(self, executor, other):
            self.handle, self.outputs, self.arg_arrays = executor.handle, other.outputs, other.arg_arrays

    first, second = small_executor(), small_executor()
    found, counts = pool_places([Pretender(), Wrong(first, second), second])
    assert counts[:2] == [None, None] and counts[2] == len(found)
    assert pool_places([first], Layout(False, False))[1] == [None]
