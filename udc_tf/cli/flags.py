"""The flags of all commands."""

import dataclasses

from absl import flags

from udc_tf.cli.options import Options
from udc_tf.cost.boards import BOARDS
from udc_tf.models.data import ABOUT
from udc_tf.models.recipes import RECIPES
from udc_tf.training.workers import STRATEGIES

_STRING, _INTEGER, _FLOAT = flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_float
_BOOL = flags.DEFINE_bool

# Name, kind, help. Defaults are the recipe's.
_OPTIONS = (
    ("recipe", _STRING, "Preset of network, data, budget and training; others override it."),
    ("model", _STRING, "Your own network: module:function, or a .keras file."),
    ("task", _STRING, "classification, reconstruction or super_resolution."),
    ("data", _STRING, "A data set's name, an .npz, a .csv, or a folder with one folder per class."),
    ("data_dir", _STRING, "Where the files of a named data set are."),
    ("image_size", _STRING, "Size of the images of a folder, such as 96 or 96x128."),
    ("channels", _INTEGER, "Channels of the images of a folder, 1 or 3."),
    ("clip_seconds", _FLOAT, "Length of the recordings (.wav) of a folder; 1 by default."),
    ("window", _INTEGER, "Steps of the windows that tables (.csv) are cut into; 128 by default."),
    ("sequences", _BOOL, "For --model: x of the .npz is [n, steps, channels], not gray images."),
    ("examples", _INTEGER, "At most so many examples of each part, for trials."),
    ("flash", _STRING, "Budget for the compiled file, such as 24KiB; or several: 16KiB,24KiB."),
    ("macs", _FLOAT, "Budget of multiply-accumulates for one input."),
    ("sram", _STRING, "Budget for working memory, such as 64KiB."),
    ("cycles", _FLOAT, "Budget of NPU cycles for one input, as Vela estimates them."),
    ("latency", _STRING, "The same as a time, such as 5ms, at the NPU's clock."),
    ("clock", _STRING, "Of the NPU, such as 400MHz. Default: the board's, if it is known."),
    ("board", _STRING, "A device: its NPU, memories and budgets; other flags say otherwise."),
    ("accelerator", _STRING, "Vela's name of the NPU. Default: ethos-u55-128."),
    ("system_config", _STRING, "Vela's; default: as Vela has it for the NPU's family."),
    ("memory_mode", _STRING, "Vela's: Sram_Only, Shared_Sram or Dedicated_Sram."),
    ("vela_config", _STRING, "A vela.ini of your own, in which the two above are."),
    ("allow_cpu", _BOOL, "Leave operators that the NPU does not run to the CPU. Default: refuse."),
    ("widths", _STRING, "Options: fractions of the channels, such as 0.25,0.5,1, or none."),
    ("bits", _STRING, "Options: bits of the weights, such as 2,4,8, or none."),
    ("sparsities", _STRING, "Options: fractions of non-zero weights, such as 0.1,0.5,1, or none."),
    ("kernels", _STRING, "Options: kernel sizes, such as 1,3,5, or none."),
    ("search_epochs", _INTEGER, "Epochs of warm-up and search together."),
    ("warmup", _FLOAT, "Share of them for the warm-up. Default: 0.2; several budgets: 2/3."),
    ("samples", _INTEGER, "Monte-Carlo samples per step of the search."),
    ("samples_per_pass", _INTEGER, "How many of them at a time: fewer need less memory."),
    ("certainty", _FLOAT, "Of the search's first guess; 0: none, uniform as in the paper."),
    ("size_compiles", _INTEGER, "Networks compiled to fit the size model. Default: 8; 0: none."),
    ("batch_size", _INTEGER, "Of search and finetuning."),
    ("search_batch_size", _INTEGER, "Of the search, if it is another."),
    ("optimizer", _STRING, "Of the weights: sgd, with momentum 0.9, or adam."),
    ("learning_rate", _FLOAT, "First rate of the weights in the search; it falls to a thousandth."),
    ("decision_learning_rate", _FLOAT, "Of the decisions; by default from the run's length."),
    ("augmentation", _STRING, "Of the training images: such as flip,crop=4,cutout=18, or none."),
    ("finetune_epochs", _STRING, "Epochs of finetuning: 20, or 6,10,4 for the three stages."),
    ("teacher", _STRING, "A .keras model to distil from while finetuning, or none."),
    ("teacher_epochs", _INTEGER, "Of udc-teacher. Default: as many as the search has."),
    ("runners", _STRING, "Where to verify: tflite,tflm,npu,qemu,fvp or none. Default: tflm,npu."),
    ("verify_examples", _INTEGER, "Test examples for that. Default: 64."),
    ("seed", _INTEGER, "Of splits, order, sampling and initial weights. Default: 0."),
)


# What `udc-check` may be told of the data instead of the data themselves.
_OF_CHECK = (
    ("input_shape", _STRING, "Shape of one input, such as 32,32,3, if there are no --data."),
    ("classes", _INTEGER, "How many classes the network is built for, if there are no --data."),
)


def make_flags(command: str = "udc") -> flags.FlagValues:
    """All flags of a command, in an object of its own: a process can run several commands."""
    values = flags.FlagValues()
    for name, define, text in _OF_CHECK if command == "udc-check" else ():
        define(name, None, text, flag_values=values)
    for name, define, text in _OPTIONS:
        define(name, None, text, flag_values=values)
    flags.DEFINE_string("workdir", None, "Where everything is kept.", flag_values=values)
    devices = "Where to train: auto, mirrored (all GPUs), multi_worker (TF_CONFIG) or tpu."
    flags.DEFINE_enum("strategy", "auto", STRATEGIES, devices, flag_values=values)
    plan = "Print space, sizes, layers left out, memory and time; do nothing."
    flags.DEFINE_bool("dry_run", False, plan, flag_values=values)
    flags.DEFINE_bool("traceback", False, "Show where an error came from.", flag_values=values)
    flags.DEFINE_bool("help", False, "Show this.", short_name="h", flag_values=values)
    flags.DEFINE_bool("version", False, "Show the version.", flag_values=values)
    flags.DEFINE_bool("helpfull", False, "Show all flags, as absl does.", flag_values=values)
    return values


def options_of(values: flags.FlagValues) -> Options:
    return Options(**{f.name: values[f.name].value for f in dataclasses.fields(Options)})


def help_text(values: flags.FlagValues) -> str:
    """The flags as a table, and the names that three of them take."""
    lines = ["Flags:"]
    own = [o[0] for o in _OF_CHECK if o[0] in values]
    for name in [*own, *(o[0] for o in _OPTIONS), "workdir", "strategy", "dry_run", "traceback"]:
        lines.append(f"  --{name:<16} {values[name].help}")
    lines.append(f"  --{'flagfile':<16} Read more flags from a file, one per line.")
    for name in ("version", "helpfull"):
        lines.append(f"  --{name:<16} {values[name].help}")
    lines += ["", "Recipes:", *(f"  {r.name:<26} {r.about}" for r in RECIPES.values())]
    boards = (f"  {b.name:<26} {b.accelerator}; {b.source}" for b in BOARDS.values())
    lines += ["", "Boards:", *boards]
    lines += ["", "Data sets, beside an .npz or a folder of your own:"]
    return "\n".join(lines + [f"  {name:<26} {about}" for name, about in ABOUT.items()])
