/* Runs every golden case on the NPU, prints the outputs, and says PASS or FAIL. */

#include "board.h"
#include "ethosu.h"
#include "network.h"

static void copy(uint8_t *to, const uint8_t *from, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        to[i] = from[i];
    }
}

static void say_number(const char *text, int64_t value)
{
    uart_text(text);
    uart_decimal(value);
}

static void say_hex(const char *text, uint32_t value)
{
    uart_text(text);
    uart_hex(value, 8);
}

static int npu_failed(enum ethosu_result result, const struct ethosu_job *job,
                      const struct ethosu_report *report)
{
    switch (result) {
    case ETHOSU_OK:
        return EXIT_PASS;
    case ETHOSU_ABSENT:
        uart_text("NO NPU: its ID register reads 0\n");
        return EXIT_NO_NPU;
    case ETHOSU_WRONG_CONFIG:
        say_number("WRONG NPU: the network is compiled for MACs per cycle: ",
                   1u << (job->config & 15));
        say_number(", this NPU has ", 1u << (report->config & 15));
        say_hex("; configuration 0x", job->config);
        say_hex(", here 0x", report->config);
        say_hex("; architecture 0x", job->architecture);
        say_hex(", here 0x", report->id);
        uart_text("\n");
        return EXIT_WRONG_NPU;
    case ETHOSU_MISALIGNED:
        uart_text("NPU ERROR: commands and regions have to begin on 16 bytes\n");
        break;
    case ETHOSU_NO_RESET:
        uart_text("NPU ERROR: it does not come out of reset in secure state\n");
        break;
    case ETHOSU_FAULT:
        say_hex("NPU ERROR: status 0x", report->status);
        uart_text("\n");
        break;
    case ETHOSU_TIMEOUT:
        uart_text("NPU ERROR: the command stream does not end\n");
        break;
    }
    return EXIT_NPU_ERROR;
}

static void print_output(uint32_t number, uint32_t index, const struct network_tensor *output)
{
    say_number("CASE ", number);
    say_number(" OUTPUT ", index);
    uart_text(" ");
    for (uint32_t i = 0; i < output->bytes; i++) {
        uart_hex(output->place[i], 2);
    }
    uart_text("\n");
}

/* Prints where `output` first differs from its golden values; 1 if it does. */
static int differs(uint32_t number, uint32_t index, const struct network_tensor *output)
{
    const uint8_t *golden = output->golden + number * output->bytes;
    for (uint32_t i = 0; i < output->bytes; i++) {
        if (output->place[i] != golden[i]) {
            say_number("CASE ", number);
            say_number(" MISMATCH output ", index);
            say_number(" byte ", i);
            say_number(" expected ", (int8_t)golden[i]);
            say_number(" received ", (int8_t)output->place[i]);
            uart_text("\n");
            return 1;
        }
    }
    return 0;
}

static int run_case(uint32_t number)
{
    struct ethosu_report report;
    uint64_t cycles = 0;
    for (uint32_t i = 0; i < network_input_count; i++) {
        const struct network_tensor *input = &network_inputs[i];
        copy(input->place, input->golden + number * input->bytes, input->bytes);
    }
    for (uint32_t i = 0; i < network_job_count; i++) {
        const struct ethosu_job *job = &network_jobs[i];
        int code = npu_failed(ethosu_run(job, &report), job, &report);
        if (code != EXIT_PASS) {
            return code;
        }
        cycles += report.cycles;
    }
    say_number("CASE ", number);
    say_number(" CYCLES ", (int64_t)cycles);
    uart_text("\n");
    int failed = 0;
    for (uint32_t i = 0; i < network_output_count; i++) {
        print_output(number, i, &network_outputs[i]);
        failed |= differs(number, i, &network_outputs[i]);
    }
    return failed ? EXIT_FAIL : EXIT_PASS;
}

int main(void)
{
    uart_init();
    say_number("udc-tf firmware: cases ", network_cases);
    say_number(", arena bytes ", network_arena_bytes);
    uart_text("\n");
    int result = EXIT_PASS;
    for (uint32_t i = 0; i < network_cases; i++) {
        int code = run_case(i);
        if (code > EXIT_FAIL) {
            return code;
        }
        result |= code;
    }
    uart_text(result == EXIT_PASS ? "PASS\n" : "FAIL\n");
    return result;
}
