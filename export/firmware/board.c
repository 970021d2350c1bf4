/* UART0 of Corstone-300 (a CMSDK UART), and the end of a simulation. */

#include "board.h"

#define UART0 0x59303000u /* secure alias */

#define UART_DATA (*(volatile uint32_t *)(UART0 + 0x00))
#define UART_STATE (*(volatile uint32_t *)(UART0 + 0x04))
#define UART_CTRL (*(volatile uint32_t *)(UART0 + 0x08))
#define UART_BAUDDIV (*(volatile uint32_t *)(UART0 + 0x10))

#define STATE_TX_FULL 1u
#define CTRL_TX_ENABLE 1u
#define SMALLEST_BAUDDIV 16u /* a simulator need not wait for a wire */

#define END_OF_TRANSMISSION 4

void uart_init(void)
{
    UART_BAUDDIV = SMALLEST_BAUDDIV;
    UART_CTRL = CTRL_TX_ENABLE;
}

static void uart_byte(char byte)
{
    while (UART_STATE & STATE_TX_FULL) {
    }
    UART_DATA = (uint8_t)byte;
}

void uart_text(const char *text)
{
    while (*text) {
        uart_byte(*text++);
    }
}

void uart_hex(uint32_t value, int digits)
{
    while (digits--) {
        uart_byte("0123456789abcdef"[value >> (4 * digits) & 15]);
    }
}

void uart_decimal(int64_t value)
{
    /* Subtracts powers of ten: a 64-bit division would need a run-time library. */
    uint64_t rest = (uint64_t)value;
    if (value < 0) {
        uart_byte('-');
        rest = -rest;
    }
    uint64_t powers[20];
    powers[0] = 1;
    int top = 0;
    while (top < 18 && powers[top] * 10 <= rest) {
        powers[top + 1] = powers[top] * 10;
        top++;
    }
    for (; top >= 0; top--) {
        char digit = '0';
        while (rest >= powers[top]) {
            rest -= powers[top];
            digit++;
        }
        uart_byte(digit);
    }
}

/* A debugger stops here and finds the code in the first argument. */
__attribute__((noinline, noreturn)) void simulation_ended(int code)
{
    for (;;) {
        __asm volatile("wfi" : : "r"(code));
    }
}

void finish(int code)
{
    uart_text("EXIT ");
    uart_decimal(code);
    uart_text("\n");
    /* The Corstone-300 models stop at either of these, if told to (shutdown_on_eot, shutdown_tag). */
    uart_byte(END_OF_TRANSMISSION);
    uart_text("EXITTHESIM\n");
    simulation_ended(code);
}
