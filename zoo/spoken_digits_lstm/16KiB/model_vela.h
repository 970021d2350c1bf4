/* Written by udc-tf; do not edit. */
#ifndef MODEL_VELA_H_
#define MODEL_VELA_H_

#include <stdint.h>

/* Bytes of the model, which stays in flash. */
#define MODEL_VELA_LENGTH 16336u
/* Bytes for the tensor arena: the NPU's working memory and TFLM's bookkeeping. */
#define MODEL_VELA_ARENA_BYTES 7632u

#define MODEL_VELA_INPUTS 1
#define MODEL_VELA_INPUT_0_RANK 3
#define MODEL_VELA_INPUT_0_SHAPE {1, 49, 40}
#define MODEL_VELA_INPUT_0_BYTES 1960u
/* real = SCALE * (int8 - ZERO_POINT) */
#define MODEL_VELA_INPUT_0_SCALE 0.0078125f
#define MODEL_VELA_INPUT_0_ZERO_POINT (0)

#define MODEL_VELA_OUTPUTS 1
#define MODEL_VELA_OUTPUT_0_RANK 2
#define MODEL_VELA_OUTPUT_0_SHAPE {1, 10}
#define MODEL_VELA_OUTPUT_0_BYTES 10u
/* real = SCALE * (int8 - ZERO_POINT) */
#define MODEL_VELA_OUTPUT_0_SCALE 0.0467821695f
#define MODEL_VELA_OUTPUT_0_ZERO_POINT (-4)

#ifdef __cplusplus
extern "C" {
#endif

extern const uint8_t model_vela[MODEL_VELA_LENGTH];
extern const uint32_t model_vela_length;

#ifdef __cplusplus
}
#endif

#endif /* MODEL_VELA_H_ */
