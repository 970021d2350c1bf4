"""The trace: what each operation does, and the first that leaves the reference."""

import numpy as np
import pytest

from tests.support import npu_networks as nets
from udc_tf.export.npu import NpuNetwork, convolution
from udc_tf.export.npu.tensor_trace import ReferenceTensor, trace
from udc_tf.export.runners.tflm import TflmRunner


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A chain of four operators: network, input, reference tensors, expected outputs."""
    build = nets.NetworkBuilder(np.random.default_rng(7))
    x = build.conv(build.input(8, 8, 3), 16)
    x = build.depthwise(x)
    x = build.conv(x, 12, kernel=(1, 1))
    model = build.finish(build.pool(x, average=False))
    path = tmp_path_factory.mktemp("trace") / "net.tflite"
    path.write_bytes(model)
    network = NpuNetwork(nets.compile_in_process(model))
    inputs = nets.random_inputs(network, 1)
    tflm = TflmRunner()
    tflm.load(path)
    return network, inputs, tflm.tensors(inputs), tflm.run(inputs).outputs


class TestTrace:
    def test_recognises_every_operator(self, case):
        result = trace(*case)
        assert result.equal and result.first_divergence() is None
        matched = {step.match for step in result.steps if step.match is not None}
        assert matched == {0, 1, 2, 3}
        text = "\n".join(result.lines())
        assert "CONV             8x8x3 int8 -> 8x8x16 int8" in text
        assert "= operator 1 DEPTHWISE_CONV_2D" in text
        assert text.endswith("The outputs equal the reference's.")

    def test_counts_bytes(self, case):
        result = trace(case[0], case[1])
        assert result.equal is None
        convolutions = [s for s in result.steps if getattr(s.operation, "kind", "") == "CONV"]
        assert convolutions[0].bytes_written == 8 * 8 * 16
        assert convolutions[0].bytes_read > 8 * 8 * 3

    def test_names_the_first_operation_that_diverges(self, case, monkeypatch):
        network, inputs, reference, expected = case
        wrong = next(o for o in network.operations if getattr(o, "kind", "") == "DEPTHWISE")
        run = convolution.execute

        def broken(operation, decoded, stores):
            if operation is wrong:
                decoded = convolution.dataclasses.replace(decoded, bias=decoded.bias + 3000)
            run(operation, decoded, stores)

        monkeypatch.setattr(convolution, "execute", broken)
        result = trace(network, inputs, reference, expected)
        assert not result.equal
        assert result.first_divergence().operation is wrong
        assert "OP_DEPTHWISE" in result.verdict()
        assert "last recognised tensor is operator 0 CONV_2D" in result.verdict()
        assert "next is operator 1 DEPTHWISE_CONV_2D" in result.verdict()

    def test_without_a_recognisable_tensor(self, case):
        network, inputs, _, expected = case
        strange = [ReferenceTensor("operator 0 STRANGE", np.zeros((1, 2), np.int8))]
        result = trace(network, inputs, strange, [expected[0] + 1])
        assert "nothing before it was recognised" in result.verdict()
