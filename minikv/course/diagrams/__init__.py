"""Diagrams of the lessons: SVG drawn from the values of package calls, so that other settings draw another picture."""

from minikv.course.diagrams.addresses import Heap, addresses
from minikv.course.diagrams.arena_loans import arena_loans
from minikv.course.diagrams.attention_heads import attention_heads
from minikv.course.diagrams.attention_sums import attention_sums
from minikv.course.diagrams.block_moments import Moment, block_moments, moment
from minikv.course.diagrams.decode_grid import decode_grid
from minikv.course.diagrams.drafts import drafts
from minikv.course.diagrams.engine_parts import engine_parts
from minikv.course.diagrams.fleet_requests import fleet_requests
from minikv.course.diagrams.forward_calls import forward_calls
from minikv.course.diagrams.growing import Growth, growing
from minikv.course.diagrams.head_blocks import head_blocks
from minikv.course.diagrams.head_ranks import head_ranks
from minikv.course.diagrams.held_by import held_by
from minikv.course.diagrams.kept_tokens import kept_tokens
from minikv.course.diagrams.kv_layouts import kv_layouts
from minikv.course.diagrams.launch_times import launch_times
from minikv.course.diagrams.layer_kinds import layer_kinds
from minikv.course.diagrams.memory_ledger import memory_ledger
from minikv.course.diagrams.memory_pyramid import Tier, memory_pyramid
from minikv.course.diagrams.mla_flow import mla_flow
from minikv.course.diagrams.number_lines import number_lines
from minikv.course.diagrams.online_softmax import SoftmaxStep, online_softmax
from minikv.course.diagrams.packed_step import packed_step
from minikv.course.diagrams.places import places
from minikv.course.diagrams.plan_room import plan_room
from minikv.course.diagrams.preemptions import preemptions
from minikv.course.diagrams.prefix_tree import prefix_tree
from minikv.course.diagrams.rank_caches import rank_caches
from minikv.course.diagrams.row_bytes import row_bytes
from minikv.course.diagrams.scale_shapes import scale_shapes
from minikv.course.diagrams.seats import seats
from minikv.course.diagrams.segment_moments import segment_moments
from minikv.course.diagrams.segments import segments
from minikv.course.diagrams.slots import slots
from minikv.course.diagrams.start_moments import start_moments
from minikv.course.diagrams.step_rows import step_rows, watch_rows
from minikv.course.diagrams.step_times import step_times
from minikv.course.diagrams.step_tokens import step_tokens
from minikv.course.diagrams.storage_views import storage_views
from minikv.course.diagrams.swap_path import swap_path
from minikv.course.diagrams.token_boxes import token_boxes
from minikv.course.diagrams.turned_parts import turned_parts
from minikv.course.diagrams.warp_sectors import warp_sectors

__all__ = [
    "Growth",
    "Heap",
    "Moment",
    "SoftmaxStep",
    "Tier",
    "addresses",
    "arena_loans",
    "attention_heads",
    "attention_sums",
    "block_moments",
    "decode_grid",
    "drafts",
    "engine_parts",
    "fleet_requests",
    "forward_calls",
    "growing",
    "head_blocks",
    "head_ranks",
    "held_by",
    "kept_tokens",
    "kv_layouts",
    "launch_times",
    "layer_kinds",
    "memory_ledger",
    "memory_pyramid",
    "mla_flow",
    "moment",
    "number_lines",
    "online_softmax",
    "packed_step",
    "places",
    "plan_room",
    "preemptions",
    "prefix_tree",
    "rank_caches",
    "row_bytes",
    "scale_shapes",
    "seats",
    "segment_moments",
    "segments",
    "slots",
    "start_moments",
    "step_rows",
    "step_times",
    "step_tokens",
    "storage_views",
    "swap_path",
    "token_boxes",
    "turned_parts",
    "warp_sectors",
    "watch_rows",
]
