/* A small driver for one Ethos-U55: start a command stream, wait for its end, count its cycles. */

#ifndef UDC_ETHOSU_H
#define UDC_ETHOSU_H

#include <stdint.h>

#define ETHOSU_REGIONS 8

enum ethosu_result {
    ETHOSU_OK = 0,
    ETHOSU_ABSENT,       /* the ID register reads zero */
    ETHOSU_WRONG_CONFIG, /* another NPU than the network was compiled for */
    ETHOSU_MISALIGNED,   /* commands or a region do not begin on 16 bytes */
    ETHOSU_NO_RESET,     /* the reset does not end, or the NPU stays non-secure */
    ETHOSU_FAULT,        /* bus error, parse error or the like: see the status */
    ETHOSU_TIMEOUT,
};

struct ethosu_job {
    const void *commands;
    uint32_t command_bytes;
    uint32_t config;       /* CONFIG and ID of the NPU it was compiled for */
    uint32_t architecture;
    const void *regions[ETHOSU_REGIONS]; /* base addresses; unused ones are null */
};

struct ethosu_report {
    uint32_t id;
    uint32_t config;
    uint32_t status;
    uint64_t cycles; /* 0 if the NPU has no cycle counter */
};

enum ethosu_result ethosu_run(const struct ethosu_job *job, struct ethosu_report *report);

#endif
