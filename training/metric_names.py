"""The metrics that a run publishes while it trains: their names, as dashboards and alarms know them.

Plain Python: the infrastructure, which has no torch, reads it too.
"""

from __future__ import annotations

GAUGES = {
    "eagleray_step": "Optimizer steps done",
    "eagleray_loss": "Training loss of the last step",
    "eagleray_gradient_norm": "Gradient norm of the last step, before clipping",
    "eagleray_tokens_per_second": "Tokens a second in the last step, of all ranks together",
    "eagleray_mfu_ratio": "Model FLOP/s of the last step, as a share of what the GPUs can do",
    "eagleray_step_seconds": "Seconds of the last step",
    "eagleray_data_wait_seconds": "Seconds that rank 0 waited for the tokens of the last step",
    "eagleray_gpu_memory_bytes": "Memory that tensors had on the GPU of rank 0, highest so far",
    "eagleray_skipped_steps": "Steps skipped since this start, because loss or gradient was not finite",
    "eagleray_restarts": "Times that the workers of this run were started again",
    "eagleray_step_age_seconds": "Seconds since the last step, or since this start for the first",
    "eagleray_checkpoint_seconds": "Seconds that the last checkpoint took until it was complete",
    "eagleray_checkpoint_age_seconds": "Seconds since the last checkpoint of this start was complete",
    "eagleray_transport_efa": "1 where EFA is proven to carry the bytes between nodes, 0 where it is not",
}
"""Help by name; base units, as Prometheus wants them. All are gauges: Ray goes on telling a counter when its
process is gone, and a gauge goes with it. Ages rather than times, since CloudWatch's alarms know no clock."""


def exposed(name: str) -> str:
    """The name on Ray's metrics port: Ray puts its own before it."""
    assert name in GAUGES, name
    return f"ray_{name}"
