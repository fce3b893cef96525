"""What the GPU nodegroup gives its nodes: by it pods are kept off them, or sent to them."""

from __future__ import annotations

GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
"""Of the taint."""
GPU_NODES = {"nvidia.com/gpu.present": "true"}
"""The label."""
