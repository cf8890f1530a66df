"""The memory of other processes on a GPU, by NVML, the driver's own library. NVML may be absent or have no figure."""

import os
from typing import Any

import torch


def other_processes(index: int) -> tuple[int | None, str | None]:
    """(bytes that processes other than this one hold on CUDA device ``index``, None), or (None, why not).

    Unknown where NVML is absent or fails, where it gives no figure for a process (Windows' WDDM), and where it does
    not list this process: a container then hides process ids, and this process could be counted as another.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            # CUDA_VISIBLE_DEVICES renumbers torch's devices and not NVML's: only the UUID means the same in both.
            uuid = torch.cuda.get_device_properties(index).uuid
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
            listed = [
                *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
                *pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
            ]
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # an ImportError, an OSError, or one of NVML's own many
        return None, f"{type(error).__name__}: {error}".partition("\n")[0]
    return _others({process.pid: process.usedGpuMemory for process in listed})


def _others(used: dict[int, Any]) -> tuple[int | None, str | None]:
    """The sum over other processes. One that computes and draws is in both of NVML's lists; ``used`` has it once."""
    mine = os.getpid()
    if mine not in used:
        return None, f"pid {mine} is not listed"
    others = [held for pid, held in used.items() if pid != mine]
    if any(held is None for held in others):
        return None, "usedGpuMemory is not available"
    return sum(others), None
