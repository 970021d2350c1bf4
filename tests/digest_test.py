"""Integer weights that a fixed seed leads to stay what they are, whatever is moved in the house.

The digests in `digests.json` are made by `python -m tests.digest_test`. Networks that are not
trained have one digest everywhere. Floating-point sums of a training depend on the processor's
vector units, so a trained network has one per processor; on another processor it says so and skips.
"""

import hashlib
import json
import os
import pathlib
import platform

import keras
import numpy as np
import pytest
import tensorflow as tf

import udc_tf
from tests.support import networks
from udc_tf.export.int8 import to_int8

STORED = pathlib.Path(__file__).with_name("digests.json")
NETWORKS = {
    "resnet": (networks.resnet, 9000),
    "separable": (networks.separable, 25000),
    "u_net": (networks.u_net, 12000),
    "autoencoder": (networks.autoencoder, 5000),
}


def inputs_of(model: keras.Model, examples: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    return rng.normal(size=(examples, *model.input_shape[1:])).astype("float32")


def with_known_weights(model: keras.Model) -> keras.Model:
    rng = np.random.default_rng(0)
    for variable in model.weights:
        values = rng.normal(size=variable.shape) * 0.2
        positive = "variance" in variable.name or "gamma" in variable.name
        variable.assign(np.abs(values) + 0.5 if positive else values)
    return model


def searched(model: keras.Model, budget: int) -> udc_tf.SearchModel:
    settings = udc_tf.SearchSettings(seed=3, warmup=0.25)
    return udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash(budget), settings)


def digest_of(network: keras.Model, samples: np.ndarray) -> str:
    """Of all integer kernels of the exported network, in the order of its operators."""
    content = hashlib.sha256()
    for step in to_int8(network, [samples]).network.kernels:
        codes = np.ascontiguousarray(step.kernel.codes, np.int8)
        content.update(f"{step.name} {codes.shape}".encode())
        content.update(codes.tobytes())
    return content.hexdigest()


def untrained_digest(name: str) -> str:
    keras.utils.clear_session()  # names of layers are counted, and go into the digest
    build, budget = NETWORKS[name]
    model = with_known_weights(build())
    samples = inputs_of(model, 16)
    tiny = searched(model, budget).architecture(samples).build()
    return digest_of(tiny, samples)


def trained_digest() -> str:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    model = with_known_weights(networks.small_cnn(classes=3))
    x = inputs_of(model, 96)
    y = (np.abs(x.mean(axis=(1, 2, 3))) * 60).astype(int) % 3
    search = searched(model, 2900)
    search.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    search.fit(x, y, batch_size=32, epochs=4, verbose=0)
    tiny = search.architecture().build()
    udc_tf.finetune(tiny, (x, y), stages=udc_tf.Stages(epochs=4), batch_size=32, verbose=0)
    return digest_of(tiny, x[:16])


def processor() -> str:
    """What decides how floats are summed: TensorFlow's version, threads and the vector units."""
    flags = ""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith("flags"))
    except (OSError, StopIteration):
        pass
    units = sorted(f for f in flags.split() if f.startswith(("avx", "amx", "fma")))
    threads = os.environ.get("TF_NUM_INTRAOP_THREADS", "any")
    return " ".join([f"tf {tf.__version__}", f"threads {threads}", platform.machine(), *units])


@pytest.mark.parametrize("name", NETWORKS)
def test_untrained_networks_have_the_stored_integers(name):
    assert untrained_digest(name) == json.loads(STORED.read_text())["untrained"][name]


def test_a_trained_network_has_the_stored_integers():
    stored = json.loads(STORED.read_text())["trained"]
    if processor() not in stored:
        pytest.skip(f"no digest was stored on a processor like this one: {processor()}")
    assert trained_digest() == stored[processor()]


if __name__ == "__main__":
    found = json.loads(STORED.read_text()) if STORED.exists() else {"trained": {}}
    found["untrained"] = {name: untrained_digest(name) for name in NETWORKS}
    found["trained"][processor()] = trained_digest()
    STORED.write_text(json.dumps(found, indent=1) + "\n")
