"""What llama.cpp caches in each layer of a GGUF model: its architectures, and the LayerSpecs of their keys.

The rules are those of llama.cpp at b11434, checked there line by line: head counts and lengths of
``llama_model_base::load_hparams``, windows and recurrent layers of each ``src/models/*.cpp``, which layers get which
cache of ``llama_model::create_memory``, state sizes of ``llama_hparams::n_embd_r`` and ``n_embd_s``. An architecture
that is absent here is refused by name. ``tests/plan/gguf`` compares with the bytes that a built llama.cpp allocates.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from minikv.errors import ConfigError
from minikv.plan.gguf.ggml_types import GGMLType
from minikv.plan.gguf.keys import Keys
from minikv.plan.spec.layers import LayerSpec

FLOAT32 = 4  # bytes; llama.cpp keeps recurrent states in it whatever the cache types are


@dataclass(frozen=True)
class Windows:
    """The layers that attend within a window of ``tokens``, and how they do ("sliding" or "chunked")."""

    tokens: int
    layers: list[bool]
    kind: str = "sliding"


Size = tuple[int, int]  # block_count, and those of its layers that are not for multi-token prediction
FindWindows = Callable[[Keys, Size], Windows | None]


@dataclass(frozen=True)
class Recurrent:
    """Which layers are recurrent, and the elements of the state of each; ``beside``: each has attention, too."""

    layers: Callable[[Keys, Size, list[int]], list[bool]]
    state: Callable[[Keys, int], int]
    kind: str = "linear"
    beside: bool = False


@dataclass(frozen=True)
class Architecture:
    """The cache of one architecture.

    ``windows`` finds its layers with a window. ``latent``: with MLA's keys one row a token is cached, and no V;
    ``indexed``: an indexer's key, too. ``shared`` counts the last layers, which read an earlier one's K and V.
    ``idle``: a layer with a feed-forward part has nothing else (Nemotron-H). ``flash``: llama.cpp can run it with
    flash attention, without which V is not quantized.
    """

    windows: FindWindows | None = None
    recurrent: Recurrent | None = None
    latent: bool = False
    indexed: bool = False
    shared: Callable[[Keys, int], int] | None = None
    idle: bool = False
    flash: bool = True


def _sliding(
    every: int, *, first_full: bool = False, default: int | None = None, optional: bool = False
) -> FindWindows:
    """Layers that slide, but for every ``every``-th; ``load_swa_pattern`` lets the file state other ones.

    ``optional``: without a window (or with one of 0) no layer slides. ``default`` is the window where none is stated.
    """

    def find(keys: Keys, size: Size) -> Windows | None:
        key = "attention.sliding_window"
        if optional and not keys.count(key, 0, least=0):
            return None
        return Windows(keys.count(key, default), _pattern(keys, size, every, first_full))

    return find


def _pattern(keys: Keys, size: Size, every: int, first_full: bool = False) -> list[bool]:
    blocks, trunk = size
    key = "attention.sliding_window_pattern"
    stated = keys.flags(key, blocks)
    if stated is not None:
        return stated
    every = keys.count(key, every, least=0)
    full = 0 if first_full else every - 1
    return [i < trunk and (not every or i % every != full) for i in range(blocks)]


def _listed(keys: Keys, size: Size) -> Windows:
    """The file lists the layers that slide, and has to."""
    layers = keys.flags("attention.sliding_window_pattern", size[0])
    if layers is None:
        raise keys.refuse("attention.sliding_window_pattern")
    return Windows(keys.count("attention.sliding_window"), layers)


def _all_slide(keys: Keys, size: Size) -> Windows | None:
    """Every layer with attention slides, if the file states a window (LFM2)."""
    tokens = keys.count("attention.sliding_window", 0, least=0)
    return Windows(tokens, [True] * size[0]) if tokens else None


def _exaone4(keys: Keys, size: Size) -> Windows | None:
    return _sliding(4, default=4096)(keys, size) if size[1] == 64 else None


def _llama4(keys: Keys, size: Size) -> Windows | None:
    """Chunks of 8,192 whatever the file says, unless it says 0."""
    if keys.has("attention.sliding_window") and not keys.count("attention.sliding_window", least=0):
        return None
    return Windows(8192, _pattern(keys, size, 4), "chunked")


def _smallthinker(keys: Keys, size: Size) -> Windows | None:
    found = _sliding(4, first_full=True, optional=True)(keys, size)
    return found and replace(found, tokens=4096)


def _without_kv_heads(keys: Keys, size: Size, kv_heads: list[int]) -> list[bool]:
    return [i < size[1] and not heads for i, heads in enumerate(kv_heads)]


def _between_full(keys: Keys, size: Size, kv_heads: list[int]) -> list[bool]:
    blocks, trunk = size
    stated = keys.flags("attention.recurrent_layers", blocks)
    if stated is not None:
        return stated
    every = keys.count("full_attention_interval", 4)
    return [i < trunk and (i + 1) % every != 0 for i in range(blocks)]


def _every(keys: Keys, size: Size, kv_heads: list[int]) -> list[bool]:
    return [i < size[1] for i in range(size[0])]


def _ssm(keys: Keys, heads: int) -> int:
    """Mamba and DeltaNet: the tail of a convolution, and a state for each inner channel."""
    kernel, inner = keys.count("ssm.conv_kernel", least=0), keys.count("ssm.inner_size", least=0)
    state, groups = keys.count("ssm.state_size", least=0), keys.count("ssm.group_count", 0, least=0)
    return max(0, kernel - 1) * (inner + 2 * groups * state) + state * inner


def _conv(keys: Keys, heads: int) -> int:
    return keys.count("embedding_length") * (keys.count("shortconv.l_cache") - 1)


def _kda(keys: Keys, heads: int) -> int:
    dim, kernel = keys.count("kda.head_dim"), keys.count("ssm.conv_kernel", least=0)
    return heads * (3 * (kernel - 1 if kernel else 3) * dim + dim * dim)


def _wkv(keys: Keys, heads: int) -> int:
    """RWKV: the last inputs of both mixings, and a matrix a head."""
    embedding = keys.count("embedding_length")
    return embedding * (keys.count("token_shift_count", 2, least=0) + keys.count("wkv.head_size"))


def _gemma3n_shared(keys: Keys, blocks: int) -> int:
    return max(0, blocks - 20)  # the first 20 layers store


def _gemma4_shared(keys: Keys, blocks: int) -> int:
    return keys.count("attention.shared_kv_layers", 0, least=0)


_PLAIN = """apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chatglm codeshell cogvlm command-r dbrx
    deci deepseek dots1 ernie4_5 ernie4_5-moe exaone falcon gemma glm4 glm4moe gpt2 gptneox granite granitemoe
    grovemoe hunyuan-dense hunyuan-moe internlm2 jais jais2 llama maincoder minicpm minicpm3 minimax-m2 mistral3 mpt
    nemotron olmo olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plm qwen qwen2 qwen2moe qwen2vl
    qwen3 qwen3moe qwen3vl qwen3vlmoe refact seed_oss smollm3 stablelm starcoder starcoder2 xverse""".split()

_HYBRID = Architecture(recurrent=Recurrent(_without_kv_heads, _ssm))
_GATED_DELTA = Architecture(recurrent=Recurrent(_between_full, _ssm))
_MAMBA = Architecture(recurrent=Recurrent(_every, _ssm))
_NEMOTRON_H = Architecture(recurrent=Recurrent(_without_kv_heads, _ssm), idle=True)
_RWKV = Architecture(recurrent=Recurrent(_every, _wkv))
_CONV = Recurrent(_without_kv_heads, _conv, "conv")

ARCHITECTURES: dict[str, Architecture] = {
    **{name: Architecture() for name in _PLAIN},
    "afmoe": Architecture(_sliding(4, optional=True)),
    "cohere2": Architecture(_sliding(4)),
    "exaone-moe": Architecture(_sliding(4)),
    "exaone4": Architecture(_exaone4),
    "gemma2": Architecture(_sliding(2, default=4096)),
    "gemma3": Architecture(_sliding(6, optional=True)),
    "gemma3n": Architecture(_sliding(5), shared=_gemma3n_shared),
    "gemma4": Architecture(_listed, shared=_gemma4_shared),
    "grok": Architecture(flash=False),
    "gpt-oss": Architecture(_sliding(2)),
    "granite_swa": Architecture(_listed),
    "laguna": Architecture(_sliding(4, first_full=True, optional=True)),
    "llama4": Architecture(_llama4),
    "mellum": Architecture(_sliding(4, optional=True)),
    "mimo2": Architecture(_listed),
    "olmo2": Architecture(_sliding(4, optional=True)),
    "plamo3": Architecture(_sliding(8, optional=True)),
    "smallthinker": Architecture(_smallthinker),
    "step35": Architecture(_listed),
    "deepseek2": Architecture(latent=True),
    "mistral4": Architecture(latent=True),
    "deepseek32": Architecture(latent=True, indexed=True),
    "glm-dsa": Architecture(latent=True, indexed=True),
    "mamba": _MAMBA,
    "mamba2": _MAMBA,
    "rwkv6": _RWKV,
    "rwkv6qwen2": _RWKV,
    "rwkv7": _RWKV,
    "arwkv7": _RWKV,
    "falcon-h1": Architecture(recurrent=Recurrent(_every, _ssm, "hybrid", beside=True)),
    "granitehybrid": _HYBRID,
    "jamba": _HYBRID,
    "plamo2": _HYBRID,
    "kimi-linear": Architecture(recurrent=Recurrent(_without_kv_heads, _kda), latent=True),
    "lfm2": Architecture(_all_slide, recurrent=_CONV),
    "lfm2moe": Architecture(recurrent=_CONV),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "qwen3next": _GATED_DELTA,
    "qwen35": _GATED_DELTA,
    "qwen35moe": _GATED_DELTA,
}


def read_layers(keys: Keys, k_type: GGMLType, v_type: GGMLType) -> list[LayerSpec]:
    """The LayerSpec of every layer that llama.cpp runs, in order; those for multi-token prediction are left out.

    Raises ``ConfigError`` for an architecture that is not listed, for keys that contradict each other, and for cache
    types that llama.cpp refuses for this model.
    """
    architecture = ARCHITECTURES.get(keys.architecture)
    if architecture is None:
        raise ConfigError(
            "gguf_architecture", name=keys.name, architecture=keys.architecture, known=len(ARCHITECTURES)
        )
    return _Layers(keys, architecture, k_type, v_type).build()


class _Layers:
    def __init__(self, keys: Keys, architecture: Architecture, k_type: GGMLType, v_type: GGMLType):
        self._keys, self._architecture = keys, architecture
        self._k_type, self._v_type = k_type, v_type
        blocks = keys.count("block_count")
        predicting = keys.count("nextn_predict_layers", 0, least=0)
        if predicting >= blocks:
            raise keys.refuse("nextn_predict_layers")
        self._size = (blocks, blocks - predicting)
        self._heads = keys.per_layer("attention.head_count", blocks, [0] * blocks)
        self._kv_heads = keys.per_layer("attention.head_count_kv", blocks, self._heads)
        self._windows = architecture.windows(keys, self._size) if architecture.windows else None
        self._latent = architecture.latent and self._has_latent()
        if v_type.block_elements > 1 and not architecture.flash:
            values = {"architecture": keys.architecture, "kind": v_type.name}
            raise ConfigError("gguf_flash", name=keys.name, **values)

    def build(self) -> list[LayerSpec]:
        blocks, trunk = self._size
        shared = self._architecture.shared(self._keys, blocks) if self._architecture.shared else 0
        storing = blocks - shared
        if shared and storing < 2:
            raise self._keys.refuse("attention.shared_kv_layers")
        find = self._architecture.recurrent
        recurrent = find.layers(self._keys, self._size, self._kv_heads) if find else [False] * blocks
        recurrent = [each and not self._is_idle(i) for i, each in enumerate(recurrent)]
        state = find.state(self._keys, self._heads[0]) * FLOAT32 if find and any(recurrent) else 0
        layers = []
        for i in range(trunk):
            if i >= storing:
                # llama.cpp takes the last storing layer, or the one before it where this one slides.
                source = storing - (2 if self._slides(i) else 1)
                if self._slides(source) != self._slides(i):
                    raise self._keys.refuse("attention.sliding_window_pattern")
                layers.append(LayerSpec("shared", reads_layer=source))
            elif find is None or not recurrent[i]:
                layers.append(self._attention(i))
            elif find.beside:
                layers.append(replace(self._attention(i), kind=find.kind, state_bytes=state))
            else:
                layers.append(LayerSpec(find.kind, state_bytes=state))
        return layers

    def _is_idle(self, index: int) -> bool:
        if not self._architecture.idle:
            return False
        return self._keys.per_layer("feed_forward_length", self._size[0], [0] * self._size[0])[index] > 0

    def _slides(self, index: int) -> bool:
        return self._windows is not None and self._windows.layers[index]

    def _has_latent(self) -> bool:
        """Old files of the same models lack both keys, and llama.cpp then caches K and V of every head."""
        given = [self._keys.has(f"attention.{each}_length_mla") for each in ("key", "value")]
        if given[0] != given[1]:
            raise self._keys.refuse("attention.key_length_mla")
        return given[0]

    def _attention(self, index: int) -> LayerSpec:
        heads = self._kv_heads[index]
        if not heads or self._is_idle(index):
            return LayerSpec("none")
        if not self._heads[0]:  # llama.cpp derives every layer's lengths from the first one's heads
            raise self._keys.refuse("attention.head_count")
        k_dim, v_dim = self._lengths(index)
        if self._latent:
            return self._latent_layer(index, heads, k_dim, v_dim)
        kind, window = "full", None
        if self._windows is not None and self._slides(index):
            kind, window = self._windows.kind, self._windows.tokens
        return self._stored(LayerSpec(kind, heads, k_dim, v_dim, window=window))

    def _lengths(self, index: int) -> tuple[int, int]:
        """The elements of K and of V a head: stated, for sliding layers apart, or embedding_length / heads."""
        if self._keys.has("attention.key_length") and self._keys.has("attention.value_length"):
            default = 0
        else:
            default = self._keys.count("embedding_length") // max(1, self._heads[0])
        lengths = []
        for each in ("key", "value"):
            length = self._keys.count(f"attention.{each}_length", default)
            if self._slides(index) and self._keys.has(f"attention.{each}_length_swa"):
                length = self._keys.count(f"attention.{each}_length_swa")
            lengths.append(length)
        return lengths[0], lengths[1]

    def _latent_layer(self, index: int, heads: int, k_dim: int, v_dim: int) -> LayerSpec:
        """MLA: one row a token in K's type; ``value_length`` only says which part of it is read as V."""
        if self._k_type != self._v_type:
            values = {"name": self._keys.name, "k": self._k_type.name, "v": self._v_type.name}
            raise ConfigError("gguf_latent_types", **values)
        rank = self._keys.count("attention.kv_lora_rank")
        if rank > k_dim:
            raise self._keys.refuse("attention.kv_lora_rank")
        for dim in (k_dim, v_dim):
            self._check_blocks(self._k_type, dim)
        layer = self._stored(LayerSpec("latent", heads, rank, k_dim - rank))
        if not self._architecture.indexed:
            return layer
        top_k = self._keys.count("attention.indexer.top_k")
        if not self._runs_indexer(index):
            return replace(layer, top_k=top_k)
        dim = self._keys.count("attention.indexer.key_length")
        self._check_blocks(self._k_type, dim)
        return replace(layer, top_k=top_k, index_bytes=self._k_type.row_bytes(dim))

    def _runs_indexer(self, index: int) -> bool:
        """GLM-5.2 lets layers reuse what an earlier indexer chose; the file has to say which."""
        trunk = self._size[1]
        if self._keys.architecture != "glm-dsa":
            return True
        stated = self._keys.flags("attention.indexer.types", trunk)
        if stated is None and self._keys.count("context_length") >= 2**20:
            raise self._keys.refuse("attention.indexer.types")
        return stated is None or stated[index]

    def _stored(self, layer: LayerSpec) -> LayerSpec:
        """``layer`` with its bytes: ``itemsize`` where every element has it, else the rows of K and of V."""
        if layer.kind != "latent":
            self._check_blocks(self._k_type, layer.k_dim)
            self._check_blocks(self._v_type, layer.v_dim)
        if self._k_type == self._v_type and self._k_type.block_elements == 1:
            return replace(layer, itemsize=self._k_type.block_bytes)
        if layer.kind == "latent":
            packed = self._k_type.row_bytes(layer.kv_heads * (layer.k_dim + layer.v_dim))
        else:
            packed = self._k_type.row_bytes(layer.kv_heads * layer.k_dim)
            packed += self._v_type.row_bytes(layer.kv_heads * layer.v_dim)
        return replace(layer, itemsize=0, packed_bytes=packed)

    def _check_blocks(self, kind: GGMLType, dim: int) -> None:
        if not kind.divides(dim):
            values = {"kind": kind.name, "block": kind.block_elements, "dim": dim, "name": self._keys.name}
            raise ConfigError("gguf_cache_block", **values)
