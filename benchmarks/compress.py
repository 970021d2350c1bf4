"""Accuracy against compiled flash without training: `udc_tf.compress` and its parts.

For each network, uniform networks of 6 to 2 bits, weights at the nearest level, give the budgets:
the sizes of their files. At each, `compress` with 512 unlabelled training examples, and the same
after three epochs of finetuning. `--parts` leaves out one part at a time, at the budget of 3 bits.
Test examples are for this table only.
"""

import tempfile
from collections.abc import Iterator

import keras
import numpy as np
from absl import flags

import udc_tf
from benchmarks import harness
from benchmarks.compress_networks import CASES, Case
from benchmarks.harness import Row, Rows, Stopwatch
from udc_tf.compress.compress_settings import CompressSettings
from udc_tf.compress.sensitivity import Sensitivities
from udc_tf.compress.storage_options import Option
from udc_tf.compress.weight_fitting import fit_weights
from udc_tf.export.trial_compile import compiled_sizes
from udc_tf.layers.inventory import kernel_layers

_BITS = (6, 5, 4, 3, 2)
_EXAMPLES = 512
_DEVICE = "ethos-u55-128"
_PLAIN = CompressSettings(
    measured=False, reconstruct=False, follow=False, corrections=False, fitted_ranges=False
)
_PARTS = {
    "measured": {"measured": False},
    "reconstruct": {"reconstruct": False},
    "sweeps": {"sweeps": 0},
    "follow": {"follow": False},
    "corrections": {"corrections": False},
    "fitted_ranges": {"fitted_ranges": False},
}


def accuracy(model: keras.Model, part: tuple[np.ndarray, np.ndarray]) -> float:
    outputs = model.predict(part[0], batch_size=128, verbose=0)
    return round(100 * float((outputs.argmax(-1) == part[1]).mean()), 2)


def uniform(case: Case, bits: int) -> keras.Model:
    """All layers alike, each weight at its nearest level, activations by their extremes."""
    model, x = case.trained(), case.data()[0][0][:_EXAMPLES]
    tiny, original = udc_tf.compact(model, bits=bits), udc_tf.compact(model, bits=32)
    layers = kernel_layers(tiny)
    ones = {k.name: np.ones(k.output_channels((None, k.theta.shape[-2]))) for k in layers}
    ranges = dict.fromkeys((q.name for q in tiny.layers if hasattr(q, "hold_peaks")), (-4.0, 4.0))
    options = {k.name: Option(bits, 1.0) for k in layers}
    fit_weights(tiny, original, options, [x], Sensitivities({}, ones, ranges), _PLAIN)
    return tiny


def _scores(tiny: keras.Model, data) -> Row:
    return {"validation": accuracy(tiny, data[1]), "test": accuracy(tiny, data[2])}


def _file(tiny: keras.Model, x: np.ndarray) -> int:
    return compiled_sizes(tiny, [x[:8]], _DEVICE)[0]


def measure_uniform(case: Case, bits: int) -> Row:
    tiny, data = uniform(case, bits), case.data()
    return {"flash": _file(tiny, data[0][0]), **_scores(tiny, data)}


def measure_float(case: Case) -> Row:
    model, data = case.trained(), case.data()
    int8 = _file(uniform(case, 8), data[0][0])
    return {"flash": int8, **_scores(model, data)}


def measure_front(case: Case, budgets: dict[int, int]) -> Iterator[tuple[int, Row, keras.Model]]:
    """All budgets from one measurement, which the first of them pays for."""
    data = case.data()
    with tempfile.TemporaryDirectory() as folder:
        for bits, budget in budgets.items():
            watch = Stopwatch()
            tiny = udc_tf.compress(
                case.trained(), udc_tf.Flash(budget), data[0][0][:_EXAMPLES], workdir=folder
            )
            taken = watch.read()
            found = tiny.compression
            yield (
                bits,
                {
                    "budget": budget,
                    "flash": found.flash_bytes,
                    **_scores(tiny, data),
                    "rounds": found.rounds,
                    "cpu_seconds": taken.cpu,
                },
                tiny,
            )


def measure_finetuned(case: Case, tiny: keras.Model, budget: int) -> Row:
    train, _, _ = data = case.data()
    udc_tf.finetune(tiny, train, stages=udc_tf.Stages.gentle(3), verbose=0)
    return {"budget": budget, "flash": _file(tiny, train[0]), **_scores(tiny, data)}


def measure_part(case: Case, part: str, budget: int) -> Row:
    data = case.data()
    settings = CompressSettings(**_PARTS.get(part, {}))
    tiny = udc_tf.compress(
        case.trained(), udc_tf.Flash(budget), data[0][0][:_EXAMPLES], settings=settings
    )
    return {"budget": budget, "flash": tiny.compression.flash_bytes, **_scores(tiny, data)}


def run(rows: Rows) -> str:
    for name in flags.FLAGS.networks.split(","):
        case = CASES[name]
        if rows.once(f"{name}/float", lambda case=case: measure_float(case)) is None:
            continue
        budgets = {}
        for bits in map(int, flags.FLAGS.bits.split(",")):
            row = rows.once(
                f"{name}/uniform/{bits}", lambda case=case, bits=bits: measure_uniform(case, bits)
            )
            if row is not None:
                budgets[bits] = row["flash"]
        last = "finetuned" if flags.FLAGS.finetune else "compress"
        wanted = {b: n for b, n in budgets.items() if f"{name}/{last}/{b}" not in rows.read()}
        for bits, row, tiny in () if flags.FLAGS.only_report else measure_front(case, wanted):
            rows.add(f"{name}/compress/{bits}", row)
            print(f"{name}/compress/{bits}: {row}", flush=True)
            if flags.FLAGS.finetune:
                rows.once(
                    f"{name}/finetuned/{bits}",
                    lambda case=case, tiny=tiny, row=row: measure_finetuned(
                        case, tiny, row["budget"]
                    ),
                )
        for part in _PARTS if flags.FLAGS.parts and 3 in budgets else ():
            rows.once(
                f"{name}/without {part}",
                lambda case=case, part=part, budget=budgets[3]: measure_part(case, part, budget),
            )
    return report(rows.read())


def report(rows: dict[str, Row]) -> str:
    """One line per network and budget; then what each part is worth."""
    lines, parts = [], []
    for name in CASES:
        whole = rows.get(f"{name}/float")
        if whole is None:
            continue
        for bits in _BITS:
            found = [
                rows.get(f"{name}/{how}/{bits}") for how in ("uniform", "compress", "finetuned")
            ]
            if found[0] is None:
                continue
            scores = ["" if row is None else row["test"] for row in found]
            share = f"{found[0]['flash'] / whole['flash']:.0%}"
            spent = "" if found[1] is None else found[1]["cpu_seconds"]
            lines.append((name, share, found[0]["flash"], whole["test"], *scores, spent))
        for part in _PARTS:
            row = rows.get(f"{name}/without {part}")
            full = rows.get(f"{name}/compress/3")
            if row is not None and full is not None:
                parts.append((name, part, full["test"], row["test"]))
    head = ("network", "of int8", "bytes", "float", "uniform", "compress", "finetuned", "cpu s")
    text = harness.table(head, lines)
    if parts:
        text += "\n" + harness.table(("network", "part", "with", "without"), parts)
    return text


def main() -> None:
    flags.DEFINE_string("networks", ",".join(CASES), "Which, with commas.")
    flags.DEFINE_string("bits", ",".join(map(str, _BITS)), "Whose files are the budgets.")
    flags.DEFINE_bool("finetune", True, "Whether three epochs follow.")
    flags.DEFINE_bool("parts", False, "Also leaves out one part at a time.")
    harness.main(run, "compress")


if __name__ == "__main__":
    main()
