"""Compiles single configurations of a search, with weights such as training leaves them."""

import dataclasses
import pathlib
import tempfile

import keras
import numpy as np

from udc_tf.cost.flash import FlashCost, SizeModel
from udc_tf.cost.targets import Flash
from udc_tf.export import size_truth, vela
from udc_tf.export.device_fit import step_cycles
from udc_tf.export.int8 import Int8Model, to_int8
from udc_tf.export.size_coefficients import Measurement, features_of
from udc_tf.layers.inventory import activation_quantizers
from udc_tf.search.extract import architecture_of
from udc_tf.search.model import SearchModel

_LARGEST = 4.0  # value of a tensor


def measure_one(
    search: SearchModel,
    chosen: np.ndarray,
    system: vela.System,
    rng: np.random.Generator,
    allow_cpu: bool = False,
    any_ranges: bool = False,
) -> Measurement:
    """Compiles one configuration, with weights such as training leaves them.

    Args:
        any_ranges: of activations, too: the most that commands and tables may come to.
    """
    exact = trial_network(search, chosen, rng, any_ranges)
    return compiled_measurement(search, chosen, exact, system, allow_cpu)


def trial_network(
    search: SearchModel, chosen: np.ndarray, rng: np.random.Generator, any_ranges: bool = False
) -> Int8Model:
    """The int8 network of a configuration, with weights such as training leaves them."""
    compact = architecture_of(search, chosen).build()
    make_bell_shaped(compact, rng)
    if any_ranges:
        make_ranges_differ(compact, rng)
    inputs = keras.tree.flatten(compact.input)
    # Ranges hardly matter to the size: a sample of noise gives some.
    noise = [rng.normal(size=(1, *x.shape[1:])).astype(np.float32) for x in inputs]
    return to_int8(compact, noise)


def compiled_measurement(
    search: SearchModel,
    chosen: np.ndarray,
    exact: Int8Model,
    system: vela.System,
    allow_cpu: bool = False,
) -> Measurement:
    """What Vela makes of a configuration's network."""
    flash = next((t for t in search.problem.targets if isinstance(t, Flash)), None)
    model = flash.size_model if flash else SizeModel()
    bound = FlashCost(system.accelerator, model).bind(search.problem.plan)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "model.tflite")
        path.write_bytes(exact.content)
        settings = dataclasses.asdict(system)
        compiled = vela.compile_with_vela(path, folder, **settings, allow_cpu_operators=allow_cpu)
    streams = size_truth.layer_sizes(exact.network, compiled)
    features, constant = features_of(bound, chosen)
    return Measurement(
        options=tuple(map(int, chosen)),
        features=features,
        constant=constant,
        weight_bytes=sum(s.vela_bytes or 0 for s in streams),
        flash_bytes=compiled.flash_bytes,
        sram_bytes=compiled.sram_bytes,
        cycles=compiled.cycles,
        step_cycles=step_cycles(exact.network, compiled),
        encoded_bytes=compiled.encoded_weight_bytes,
    )


def make_bell_shaped(compact: keras.Model, rng: np.random.Generator) -> None:
    """Gives layers weights as training leaves them: kernels a bell, pruned, with fitted ranges.

    An initializer's uniform weights would not do: at 8 bits they take a tenth more.
    """
    for layer in compact.layers:
        if hasattr(layer, "integer_kernel"):
            layer.theta.assign(rng.normal(scale=0.05, size=layer.theta.shape))
            layer.initialize_range()
            layer.refresh_mask(shifted=layer.nonzeros < 1)
            layer.fit_range()
        elif isinstance(layer, keras.layers.PReLU):  # slopes that are all alike would take nothing
            layer.alpha.assign(rng.uniform(0.0, 0.5, size=layer.alpha.shape))


def make_ranges_differ(compact: keras.Model, rng: np.random.Generator) -> None:
    """Gives activations ranges that are all different, as training may leave them.

    Vela stores but once what is alike, and does not repeat what a command finds as it was.
    """
    for quantizer in activation_quantizers(compact):
        if quantizer.fixed_range is None:
            low, high = rng.uniform(_LARGEST / 2, _LARGEST, 2)
            quantizer.set_range(-low, high)
