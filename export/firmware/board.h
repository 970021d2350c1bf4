/* The board around the NPU: a serial port to talk, and a way to end the simulation. */

#ifndef UDC_BOARD_H
#define UDC_BOARD_H

#include <stdint.h>

enum exit_code {
    EXIT_PASS = 0,
    EXIT_FAIL = 1,
    EXIT_NPU_ERROR = 2,
    EXIT_NO_NPU = 3,
    EXIT_WRONG_NPU = 4,
    EXIT_FAULT = 5,
};

void uart_init(void);
void uart_text(const char *text);
void uart_decimal(int64_t value);
void uart_hex(uint32_t value, int digits);

/* Ends the run: tells a simulator to stop, then waits for ever. */
__attribute__((noreturn)) void finish(int code);

#endif
