"""The executor against TFLM on random small networks: convolutions with strides, dilations and
paddings, depthwise, pooling, addition, multiplication, concatenation, dense, mean, softmax, more.

    python -m benchmarks.npu_random --networks=1000

Accelerator, memory mode and strategy go round with the seed. A network that differs is listed with
the trace's verdict, and compiled again without cascading: Vela 5.2.0 lets a convolution overwrite
rows of an in-place subtraction in the rolling buffer of a cascade, before they are read.
"""

import pathlib
import tempfile
from collections.abc import Mapping

from absl import flags

from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from tests.support import npu_networks as nets
from udc_tf.export.npu import NpuNetwork
from udc_tf.export.npu.tensor_trace import trace
from udc_tf.export.runners.tflm import TflmRunner

INPUTS = 3


def outcome(seed: int) -> str:
    """What is different; nothing if all is equal."""
    model = nets.random_network(seed)
    network = _compiled(model, seed)
    inputs = nets.random_inputs(network, INPUTS, seed)
    golden = nets.run_tflm(model, inputs)
    if _equal(network.run(inputs), golden):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "net.tflite")
        path.write_bytes(model)
        tflm = TflmRunner()
        tflm.load(path)
        first = [array[:1] for array in inputs]
        found = trace(network, first, tflm.tensors(first), tflm.run(first).outputs).verdict()
    plain = _compiled(model, seed, ("--disable-cascading",))
    same = "equal" if _equal(plain.run(inputs), golden) else "different too"
    return f"{found} Compiled with --disable-cascading: {same}."


def _compiled(model: bytes, seed: int, extra: tuple[str, ...] = ()) -> NpuNetwork:
    return NpuNetwork(
        nets.compile_in_process(
            model,
            nets.ACCELERATORS[seed % 4],
            list(nets.MEMORY)[seed // 4 % 2],
            ("Performance", "Size")[seed // 8 % 2],
            extra,
        )
    )


def _equal(outputs, golden) -> bool:
    return all((o == g.reshape(o.shape)).all() for o, g in zip(outputs, golden, strict=True))


def measure(networks: int) -> Row:
    found = {seed: outcome(seed) for seed in range(networks)}
    different = {seed: verdict for seed, verdict in found.items() if verdict}
    return {"networks": networks, "equal": networks - len(different), "different": different}


def report(rows: Mapping[str, Row]) -> str:
    return table(("seeds", "equal"), [(seeds, row["equal"]) for seeds, row in rows.items()])


def run(rows: Rows) -> str:
    count = flags.FLAGS.networks
    rows.once(f"0 to {count - 1}", lambda: measure(count))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_integer("networks", 1000, "How many.", lower_bound=1)
    harness.main(run, "npu_random")
