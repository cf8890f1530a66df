"""The operations of ``minikv.kernels.reference`` by name, run as Triton kernels."""

from typing import Any

from torch import Tensor

from minikv.kernels import sdpa_prefill
from minikv.kernels.attention import Attention
from minikv.kernels.gpu.common import device_of
from minikv.kernels.gpu.launches import attention_launches
from minikv.kernels.gpu.moving import copy_launches, gather_launch, move_launches
from minikv.kernels.gpu.storage import store_launch
from minikv.kernels.gpu.sums import sums_launch
from minikv.kernels.paged_kv import PagedKV


def store_kv(
    key: Tensor,
    value: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """See ``minikv.kernels.store_kv``."""
    store_launch(key, value, k_cache, v_cache, slots, k_scale, v_scale).run()


def gather(cache: Tensor, table: Tensor, length: int, start: int = 0) -> Tensor:
    """See ``minikv.kernels.gather``."""
    launch, out = gather_launch(cache, table, length, start)
    launch.run()
    return out


def copy_blocks(cache: Tensor, src: Tensor, dst: Tensor, block_dim: int = 0) -> None:
    """See ``minikv.kernels.copy_blocks``."""
    for launch in copy_launches(cache, src, dst, block_dim):
        launch.run()


def move_slots(cache: Tensor, src: Tensor, dst: Tensor) -> None:
    """See ``minikv.kernels.move_slots``."""
    for launch in move_launches(cache, src, dst):
        launch.run()


def paged_decode(query: Tensor, kv: PagedKV, **options: Any) -> Attention:
    """See ``minikv.kernels.paged_decode``."""
    return _run(query, kv, **options)


def paged_prefill(
    query: Tensor,
    kv: PagedKV,
    query_starts: Tensor,
    *,
    max_queries: int,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    **options: Any,
) -> Attention:
    """See ``minikv.kernels.paged_prefill``."""
    limits: dict[str, Any] = {"max_queries": max_queries, "softcap": softcap, "sinks": sinks}
    limits["return_lse"] = return_lse
    if sdpa_prefill.suits(device_of(query.device).capability, query, kv, **limits):
        return Attention(sdpa_prefill.sdpa_prefill(query, kv, query_starts, **options), None, None)
    return _run(query, kv, query_starts=query_starts, **limits, **options)


def latent_decode(q_latent: Tensor, q_rope: Tensor, kv: PagedKV, **options: Any) -> Attention:
    """See ``minikv.kernels.latent_decode``."""
    return _run(q_latent, kv, q_rope=q_rope, **options)


def latent_prefill(
    q_latent: Tensor, q_rope: Tensor, kv: PagedKV, query_starts: Tensor, **options: Any
) -> Attention:
    """See ``minikv.kernels.latent_prefill``."""
    return _run(q_latent, kv, q_rope=q_rope, query_starts=query_starts, **options)


def paged_column_sums(
    query: Tensor, kv: PagedKV, query_starts: Tensor, lse: Tensor, **options: Any
) -> Tensor:
    """See ``minikv.kernels.paged_column_sums``."""
    launch, sums = sums_launch(device_of(query.device), query, kv, query_starts, lse, **options)
    launch.run()
    return sums


def latent_column_sums(
    q_latent: Tensor, q_rope: Tensor, kv: PagedKV, query_starts: Tensor, lse: Tensor, **options: Any
) -> Tensor:
    """See ``minikv.kernels.latent_column_sums``."""
    return paged_column_sums(q_latent, kv, query_starts, lse, q_rope=q_rope, **options)


def _run(query: Tensor, kv: PagedKV, *, return_lse: bool = False, **options: Any) -> Attention:
    launches, result = attention_launches(device_of(query.device), query, kv, **options)
    for launch in launches:
        launch.run()
    return result if return_lse else result._replace(lse=None)
