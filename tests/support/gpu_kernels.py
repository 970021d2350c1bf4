"""Which operations of a graph no GPU can run, asked of TensorFlow's registry: it needs no GPU."""

import functools
from collections.abc import Iterator

from tensorflow.core.framework import kernel_def_pb2, node_def_pb2
from tensorflow.python.framework import kernels

# Of these the runtime takes care itself, wherever they are.
_PART_OF_A_GRAPH = {"_Arg", "_Retval", "NoOp", "Placeholder"}


def without_gpu_kernel(concrete) -> set[str]:
    """Names of the operations, those of nested functions included."""
    return {
        node.op
        for node in nodes_of(concrete)
        if node.op not in _PART_OF_A_GRAPH and not _runs_on_a_gpu(node)
    }


def nodes_of(concrete) -> Iterator[node_def_pb2.NodeDef]:
    graph = concrete.graph.as_graph_def()
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _runs_on_a_gpu(node: node_def_pb2.NodeDef) -> bool:
    return any(_matches(kernel, node) for kernel in _gpu_kernels(node.op))


@functools.cache
def _gpu_kernels(op: str) -> list[kernel_def_pb2.KernelDef]:
    registered = kernels.get_registered_kernels_for_op(op).kernel
    return [k for k in registered if k.device_type in ("GPU", "DEFAULT")]


def _matches(kernel: kernel_def_pb2.KernelDef, node: node_def_pb2.NodeDef) -> bool:
    return all(
        node.attr[c.name].type in c.allowed_values.list.type
        for c in kernel.constraint
        if c.name in node.attr
    )
