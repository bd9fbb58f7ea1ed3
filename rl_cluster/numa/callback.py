"""Binding as a callable for frameworks that make their own actors: small, picklable, finds its own GPU."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from rl_cluster.numa.bind import bind_process, raise_if_not_bound
from rl_cluster.numa.report import BindingReport
from rl_cluster.schema import NumaSpec


@frozen
class Binding:
    """Called inside a Ray actor it binds that process near the GPU that Ray assigned, and returns the record.

    Call it first in ``__init__``: memory that is allocated before, and threads that exist before, keep their policy. It may be
    called outside Ray too; then it needs the GPUs.
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
            BindingError: ``spec.strict`` is set and the binding is not verified. (Who judges the record himself, evolves it to False.)
        """
        import ray

        node = "this process"
        if ray.is_initialized():
            context = ray.get_runtime_context()
            node = f"node {context.get_node_id()}"
            if gpu_ids is None:
                gpu_ids = ray.get_gpu_ids()
            # a driver has neither id, an actor has both
            if context.get_task_id() is not None and context.get_actor_id() is None:
                import logging

                logging.getLogger(__name__).warning("not bound: a Ray task's process runs other tasks later. Fix: call it in an actor")
                report = BindingReport(cpu_status="skipped: ray-task", mem_status="skipped: ray-task")
                return self._judge(report, node)
        return self._judge(bind_process(self.spec, gpu_ids=tuple(gpu_ids or ()), cpu_worker_index=self.cpu_worker_index), node)

    def _judge(self, report: BindingReport, node: str) -> BindingReport:
        if self.spec.strict:
            raise_if_not_bound(report, rank=None, node=node)
        return report
