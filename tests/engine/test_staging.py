"""Arrays arrive on a device as they were, at addresses that kernels like, and may be changed once they are sent."""

import numpy as np
import pytest
import torch

from minikv.engine.staging import ALIGN, send

CPU = torch.device("cpu")


@pytest.mark.parametrize("seed", range(20))
def test_what_arrives_is_what_was_sent(seed):
    random = np.random.default_rng(seed)
    arrays = []
    for _ in range(random.integers(1, 7)):
        shape = tuple(random.integers(0, 9, random.integers(1, 3)).tolist())
        dtype = random.choice([np.int32, np.int64])
        arrays.append(random.integers(-(2**31), 2**31 - 1, shape).astype(dtype))
    arrays = [array[:, ::2] if array.ndim == 2 else array[::-1] for array in arrays]
    kept = [array.copy() for array in arrays]
    sent = send(arrays, CPU)
    for array in arrays:
        array[...] = 7
    for tensor, array in zip(sent, kept, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert tensor.shape == array.shape
        assert tensor.is_contiguous()
        assert np.array_equal(tensor.numpy(), array)


def test_they_share_one_buffer_and_do_not_overlap():
    sent = send([np.arange(3, dtype=np.int32), np.arange(5), np.ones((2, 2), np.int32)], CPU)
    first = sent[0].data_ptr()
    assert first % ALIGN == 0
    assert [tensor.data_ptr() - first for tensor in sent] == [0, 16, 64]
    for tensor in sent:
        tensor.zero_()
    sent[1].fill_(-1)
    assert not sent[0].any()
    assert not sent[2].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_nobody_waits_and_no_copy_is_overwritten():
    device = torch.device("cuda")
    send([np.zeros(1000, np.int64)], device)  # pinned memory is taken
    busy, sent = torch.randn(4096, 4096, device=device), []
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(50):
            busy = busy @ busy  # so that the copies come late
            sent += send([np.full(1000, number)], device)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    for number, tensor in enumerate(sent):
        assert (tensor == number).all()
        assert tensor.data_ptr() % ALIGN == 0
