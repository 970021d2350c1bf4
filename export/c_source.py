"""The compiled network as C: an aligned array, and what firmware needs to know about it."""

import re
from collections.abc import Sequence

import numpy as np

from udc_tf.export.integer_network import Quantization

_PER_LINE = 12


def identifier(name: str) -> str:
    """`name` as a C identifier.

    >>> identifier("my-model 2")
    'my_model_2'
    """
    cleaned = re.sub(r"\W", "_", name, flags=re.ASCII)
    return cleaned if cleaned and not cleaned[0].isdigit() else f"_{cleaned}"


def header(
    name: str,
    length: int,
    arena_bytes: int,
    inputs: Sequence[tuple[tuple[int, ...], Quantization]],
    outputs: Sequence[tuple[tuple[int, ...], Quantization]],
) -> str:
    """The .h: length, arena, shapes and scales as macros, the array as a declaration."""
    symbol, macro = identifier(name), identifier(name).upper()
    lines = [
        "/* Written by udc-tf; do not edit. */",
        f"#ifndef {macro}_H_",
        f"#define {macro}_H_",
        "",
        "#include <stdint.h>",
        "",
        "/* Bytes of the model, which stays in flash. */",
        f"#define {macro}_LENGTH {length}u",
        "/* Bytes for the tensor arena: the NPU's working memory and TFLM's bookkeeping. */",
        f"#define {macro}_ARENA_BYTES {arena_bytes}u",
    ]
    for kind, tensors in (("INPUT", inputs), ("OUTPUT", outputs)):
        lines += ["", f"#define {macro}_{kind}S {len(tensors)}"]
        for number, (shape, quantization) in enumerate(tensors):
            prefix = f"{macro}_{kind}_{number}"
            lines += [
                f"#define {prefix}_RANK {len(shape)}",
                f"#define {prefix}_SHAPE {{{', '.join(map(str, shape))}}}",
                f"#define {prefix}_BYTES {int(np.prod(shape))}u",
                "/* real = SCALE * (int8 - ZERO_POINT) */",
                f"#define {prefix}_SCALE {float(quantization.scale):.9g}f"
                if _has_point(quantization)
                else f"#define {prefix}_SCALE {float(quantization.scale):.9g}.0f",
                f"#define {prefix}_ZERO_POINT ({quantization.zero_point})",
            ]
    lines += [
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"extern const uint8_t {symbol}[{macro}_LENGTH];",
        f"extern const uint32_t {symbol}_length;",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        f"#endif /* {macro}_H_ */",
        "",
    ]
    return "\n".join(lines)


def _has_point(quantization: Quantization) -> bool:
    """Whether C reads the scale as a floating constant once an f is put behind it."""
    return any(c in f"{float(quantization.scale):.9g}" for c in ".e")


def source(name: str, content: bytes) -> str:
    """The .c: the bytes, aligned to 16 as the NPU and TFLM want them."""
    symbol, macro = identifier(name), identifier(name).upper()
    # One join over a precomputed table: megabytes of weights take a moment, not minutes.
    texts = [f"0x{n:02x}" for n in range(256)]
    rows = [
        "    " + ", ".join([texts[b] for b in content[i : i + _PER_LINE]])
        for i in range(0, len(content), _PER_LINE)
    ]
    return "\n".join(
        [
            "/* Written by udc-tf; do not edit. */",
            f'#include "{name}.h"',
            "",
            "#if defined(__GNUC__) || defined(__clang__)",
            "__attribute__((aligned(16)))",
            "#elif defined(__cplusplus)",
            "alignas(16)",
            "#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L",
            "_Alignas(16)",
            "#endif",
            f"const uint8_t {symbol}[{macro}_LENGTH] = {{",
            ",\n".join(rows),
            "};",
            f"const uint32_t {symbol}_length = {macro}_LENGTH;",
            "",
        ]
    )
