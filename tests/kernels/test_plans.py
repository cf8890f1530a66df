"""What a launch is made of besides tensors is found once for all layers that are alike, and for no others."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from minikv.kernels.gpu.common import Device
from minikv.kernels.gpu.launches import attention_launches, plan_of
from tests.kernels.dense import make_case

H200 = Device(90, 132)


def launches_of(case, **options):
    return attention_launches(H200, case.query, case.kv, **{**case.options, **options})[0]


@pytest.fixture(autouse=True)
def none_known():
    plan_of.cache_clear()


def test_the_layers_of_a_step_have_one_plan_and_their_own_tensors():
    layers = [make_case([20, 700], seed=seed) for seed in range(3)]
    found = [launches_of(layer) for layer in layers]
    assert (plan_of.cache_info().misses, plan_of.cache_info().hits) == (1, 2)
    for layer, launches in zip(layers, found, strict=True):
        assert any(x is layer.k_cache for x in launches[0].arguments)
        assert [launch.grid for launch in launches] == [launch.grid for launch in found[0]]
    results = {id(x) for launches in found for x in launches[-1].arguments if isinstance(x, torch.Tensor)}
    assert len(results) == sum(isinstance(x, torch.Tensor) for x in found[0][-1].arguments) * 3


def test_a_layer_that_is_unlike_has_a_plan_of_its_own():
    """By strides, addresses, dtypes, and each option; the figures are those of a call without another before it."""
    first, wide = make_case([20, 700]), make_case([20, 700], wide=True)
    odd = make_case([20, 700])
    odd.k_cache = torch.empty(odd.k_cache.numel() + 1)[1:].view(odd.k_cache.shape)
    narrow = replace(first, k_cache=first.k_cache.half(), v_cache=first.v_cache.half())
    sinks = torch.zeros(8)
    calls = [
        *[(first, {}), (wide, {}), (odd, {}), (narrow, {}), (first, {"scale": 0.5}), (first, {"window": 30})],
        *[(first, {"softcap": 3.0}), (first, {"sinks": sinks}), (first, {"return_scores": True})],
        *[(first, {"splits": 2}), (first, {"query_starts": first.query_starts, "max_queries": 2})],
    ]

    def figures(case, options):
        return [
            (
                launch.grid,
                launch.constants,
                [x for x in launch.arguments if not isinstance(x, torch.Tensor)],
            )
            for launch in launches_of(case, **options)
        ]

    alone = []
    for case, options in calls:
        plan_of.cache_clear()
        alone.append(figures(case, options))
    plan_of.cache_clear()
    assert [figures(*call) for call in calls] == alone
    assert plan_of.cache_info().misses == len(calls)
    assert [figures(*call) for call in calls] == alone
    assert plan_of.cache_info().misses == len(calls)


def test_a_plan_keeps_no_tensor_alive():
    case = make_case([20, 700])
    launches = launches_of(case, sinks=torch.zeros(8), return_scores=True)
    tensors = [weakref.ref(x) for launch in launches for x in launch.arguments if isinstance(x, torch.Tensor)]
    del case, launches
    gc.collect()
    assert plan_of.cache_info().currsize == 1
    assert [tensor for tensor in tensors if tensor() is not None] == []
