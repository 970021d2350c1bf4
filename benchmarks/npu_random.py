"""The executor against TFLM on random small networks: convolutions with strides, dilations and
paddings, depthwise, pooling, addition, multiplication, concatenation, dense, mean, softmax, more.

    python -m benchmarks.npu_random --networks=1000
    python -m benchmarks.npu_random --networks=300 --every_operator

The second also draws ELU, ABS, HARD_SWISH, PRELU, RSQRT, matrix products, transpositions, extrema
over an axis, means and maxima of channels, slices, grouped convolutions, squares and bilinear
resizing, and sequences besides images; and, a tenth as many, networks with recurrent layers as
`export` writes them.

Accelerator, memory mode and strategy go round with the seed. A network that differs is listed with
the trace's verdict, and compiled again without cascading: Vela 5.2.0 lets a convolution overwrite
rows of an in-place subtraction in the rolling buffer of a cascade, before they are read. A stream
that no NPU could execute is refused: for 32 and 64 MACs, whose SHRAM has 16 KiB, Vela 5.2.0 puts
the look-up table of what follows a transposition behind its end. What
else differs among networks of every operator are joinings of Vela 5.2.0: of a slice with the
transposed convolution that reads it, and of REDUCE_MIN and REDUCE_MAX with a slice or a
transposition beside them. Export writes neither.
"""

import pathlib
import tempfile
from collections.abc import Callable, Mapping

from absl import flags

from benchmarks import harness
from benchmarks.harness import Row, Rows, table
from tests.support import npu_networks as nets
from tests.support.time_networks import random_over_time
from udc_tf.export.npu import NpuError, NpuNetwork
from udc_tf.export.npu.tensor_trace import trace
from udc_tf.export.runners.tflm import TflmRunner

INPUTS = 3


def outcome(model: bytes, seed: int) -> str:
    """What is different; nothing if all is equal."""
    try:
        network = _compiled(model, seed)
    except NpuError as error:
        return f"Refused: {error}"
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


def measure(networks: int, draw: Callable[[int], bytes]) -> Row:
    found = {seed: outcome(draw(seed), seed) for seed in range(networks)}
    different = {seed: verdict for seed, verdict in found.items() if verdict}
    return {"networks": networks, "equal": networks - len(different), "different": different}


def report(rows: Mapping[str, Row]) -> str:
    return table(("seeds", "equal"), [(seeds, row["equal"]) for seeds, row in rows.items()])


def run(rows: Rows) -> str:
    count, every = flags.FLAGS.networks, flags.FLAGS.every_operator
    name = f"0 to {count - 1}{', every operator' if every else ''}"
    rows.once(name, lambda: measure(count, lambda seed: nets.random_network(seed, every)))
    if every and (fewer := count // 10):
        rows.once(f"0 to {fewer - 1}, over time", lambda: measure(fewer, random_over_time))
    return report(rows.read())


if __name__ == "__main__":
    flags.DEFINE_integer("networks", 1000, "How many.", lower_bound=1)
    flags.DEFINE_bool("every_operator", False, "Draw the newer operators and sequences, too.")
    harness.main(run, "npu_random")
