/* The compiled network and its golden data, as the build puts them beside this firmware. */

#ifndef UDC_NETWORK_H
#define UDC_NETWORK_H

#include <stdint.h>

#include "ethosu.h"

/* A tensor the outside sees: where it lives while the network runs, and its golden values, one
 * after the other for all cases. */
struct network_tensor {
    uint8_t *place;
    uint32_t bytes;
    const uint8_t *golden;
};

extern const uint32_t network_cases;
extern const uint32_t network_arena_bytes;
extern const uint32_t network_job_count;
extern const struct ethosu_job network_jobs[];
extern const uint32_t network_input_count;
extern const struct network_tensor network_inputs[];
extern const uint32_t network_output_count;
extern const struct network_tensor network_outputs[];

#endif
