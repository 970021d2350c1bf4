"""The maths of weights in few bits: quantizers, masks, the number format, rounding."""
