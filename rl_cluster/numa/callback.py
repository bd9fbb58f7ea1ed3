"""Binding as a callable for frameworks that make their own actors: small, picklable, finds its own GPU."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from rl_cluster.numa.bind import bind_process
from rl_cluster.numa.report import BindingReport
from rl_cluster.schema import NumaSpec


@frozen
class Binding:
    """Called inside a Ray actor it binds that process near the GPU that Ray assigned, and returns the record.

    Call it first in ``__init__``: memory that is allocated before, and threads that exist before, keep their policy.
    """

    spec: NumaSpec
    cpu_worker_index: int | None = None  # index of the worker on its machine, for cpu_workers="spread"

    def __call__(self, gpu_ids: Sequence[str | int] | None = None) -> BindingReport:
        """Bind this process.

        Args:
            gpu_ids: The GPUs of this process; default: what Ray assigned to the actor (never CUDA_VISIBLE_DEVICES).

        Returns:
            What the kernel holds; in a Ray task ``skipped: ray-task``, for its process runs other tasks later.

        Raises:
            BindingError: ``spec.strict`` is set and the binding is not verified.
        """
        import ray

        if not self.spec.enabled:
            return bind_process(self.spec)
        context = ray.get_runtime_context() if ray.is_initialized() else None
        if context is not None and context.get_task_id() is not None and context.get_actor_id() is None:
            import logging

            logging.getLogger(__name__).warning("not bound: a Ray task's process runs other tasks later. Fix: call it in an actor")
            return BindingReport(cpu_status="skipped: ray-task", mem_status="skipped: ray-task")
        if gpu_ids is None:
            gpu_ids = ray.get_gpu_ids() if context is not None else ()
        report = bind_process(self.spec, gpu_ids=tuple(gpu_ids), cpu_worker_index=self.cpu_worker_index)
        if self.spec.strict:
            from rl_cluster.numa.bind import raise_if_not_bound

            raise_if_not_bound(report, rank=None, node=str(context.get_node_id()) if context is not None else "this node")
        return report
