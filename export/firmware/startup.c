/* Reset: copy initialised variables, clear the others, run main. */

#include <stdint.h>

#include "board.h"

extern uint32_t data_load[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];

int main(void);

__attribute__((noreturn)) void reset_handler(void)
{
    const uint32_t *from = data_load;
    for (uint32_t *to = data_start; to < data_end; to++) {
        *to = *from++;
    }
    for (uint32_t *to = bss_start; to < bss_end; to++) {
        *to = 0;
    }
    finish(main());
}

/* Any exception is a fault here: no interrupt is enabled, completion is polled. */
__attribute__((noreturn)) static void fault_handler(void)
{
    uart_text("FAULT: the core took an exception\n");
    finish(EXIT_FAULT);
}

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top,     reset_handler, fault_handler, fault_handler, fault_handler, fault_handler,
    fault_handler, fault_handler, fault_handler, fault_handler, fault_handler, fault_handler,
    fault_handler, fault_handler, fault_handler, fault_handler,
};
