/* Ethos-U55 driver.
 *
 * Register offsets and bits are those of the NPU's programmer's model, as in npu/device.py; what is
 * refused is what Arm's own driver refuses. The order matters: reset into
 * secure and privileged state (the arena is secure memory), set queue and regions, clear and start
 * the cycle counter, run, poll, acknowledge. The data cache is off, so nothing has to be flushed.
 */

#include "ethosu.h"

#define NPU_BASE 0x58102000u /* secure alias on Corstone-300 */

#define REG_ID 0x000
#define REG_STATUS 0x004
#define REG_CMD 0x008
#define REG_RESET 0x00c
#define REG_QBASE 0x010 /* 64 bits */
#define REG_QCONFIG 0x01c
#define REG_QSIZE 0x020
#define REG_PROT 0x024
#define REG_CONFIG 0x028
#define REG_REGIONCFG 0x03c
#define REG_AXI_LIMIT0 0x040 /* four of them */
#define REG_BASEP 0x080      /* 64 bits per region */
#define REG_PMCR 0x180
#define REG_PMCNTENSET 0x184
#define REG_PMCCNTR_LO 0x1a0
#define REG_PMCCNTR_HI 0x1a4
#define REG_PMCCNTR_CFG 0x1a8

#define STATUS_RUNNING (1u << 0)
#define STATUS_IRQ (1u << 1)
#define STATUS_RESETTING (1u << 3)
#define STATUS_END (1u << 5)
#define STATUS_FAULTS ((1u << 2) | (1u << 4) | (1u << 7) | (1u << 8)) /* bus, parse, decoder, ECC */

#define CMD_RUN (1u << 0)
#define CMD_CLEAR_IRQ (1u << 1)

#define PRIVILEGED_SECURE 1u /* of RESET and PROT: privilege in bit 0, non-secure in bit 1 */

/* What has to be as the network was compiled for; the rest of CONFIG may differ. */
#define CONFIG_MACS 0xfu /* log2 of the MACs per cycle */
#define CONFIG_STREAM_VERSION (0xfu << 4)
#define CONFIG_CUSTOM_DMA (1u << 27) /* may be there without being asked for */
#define CONFIG_PRODUCT (0xfu << 28)
#define CONFIG_SAME (CONFIG_MACS | CONFIG_STREAM_VERSION | CONFIG_PRODUCT)

#define ID_MAJOR(id) ((id) >> 28)
#define ID_MINOR(id) ((id) >> 20 & 0xffu)

#define ALIGNMENT 16u

#define PMCR_ENABLE (1u << 0)
#define PMCR_RESET_CYCLES (1u << 2)
#define PMCNTEN_CYCLES (1u << 31)

/* Commands and region 0 (flash) go through the read-only port AXI1, the arena through AXI0. */
#define PORT_ARENA 0u
#define PORT_FLASH 2u
/* Up to 32 reads and 16 writes under way, bursts of 64 bytes, normal uncached memory. */
#define AXI_LIMIT ((2u << 4) | (31u << 16) | (15u << 24))

/* A network runs milliseconds. The bound only turns a hang into a message. */
#define POLLS 2000000000u

/* A debugger may point this at registers in memory, and stand in for the NPU. */
volatile uintptr_t ethosu_base = NPU_BASE;

static uint32_t get(uint32_t reg)
{
    return *(volatile uint32_t *)(ethosu_base + reg);
}

static void set(uint32_t reg, uint32_t value)
{
    *(volatile uint32_t *)(ethosu_base + reg) = value;
}

static void set_address(uint32_t reg, const void *address)
{
    set(reg, (uint32_t)(uintptr_t)address);
    set(reg + 4, 0);
}

static int reset(void)
{
    set(REG_RESET, PRIVILEGED_SECURE);
    for (uint32_t i = 0; i < POLLS && (get(REG_STATUS) & STATUS_RESETTING); i++) {
    }
    return !(get(REG_STATUS) & STATUS_RESETTING) && get(REG_PROT) == PRIVILEGED_SECURE;
}

static int suits(const struct ethosu_job *job, const struct ethosu_report *npu)
{
    return (npu->config & CONFIG_SAME) == (job->config & CONFIG_SAME) &&
           !(job->config & ~npu->config & CONFIG_CUSTOM_DMA) &&
           ID_MAJOR(npu->id) == ID_MAJOR(job->architecture) &&
           ID_MINOR(npu->id) >= ID_MINOR(job->architecture);
}

static int aligned(const struct ethosu_job *job)
{
    uintptr_t all = (uintptr_t)job->commands;
    for (uint32_t i = 0; i < ETHOSU_REGIONS; i++) {
        all |= (uintptr_t)job->regions[i];
    }
    return !(all & (ALIGNMENT - 1));
}

static void configure(const struct ethosu_job *job)
{
    set_address(REG_QBASE, job->commands);
    set(REG_QSIZE, job->command_bytes);
    set(REG_QCONFIG, PORT_FLASH);
    set(REG_REGIONCFG, PORT_FLASH); /* region 0; the others stay on PORT_ARENA, which is zero */
    for (uint32_t i = 0; i < 4; i++) {
        set(REG_AXI_LIMIT0 + 4 * i, AXI_LIMIT);
    }
    for (uint32_t i = 0; i < ETHOSU_REGIONS; i++) {
        set_address(REG_BASEP + 8 * i, job->regions[i]);
    }
    set(REG_PMCR, PMCR_ENABLE | PMCR_RESET_CYCLES);
    set(REG_PMCCNTR_CFG, 0); /* counts from now on, whatever happens */
    set(REG_PMCNTENSET, PMCNTEN_CYCLES);
}

enum ethosu_result ethosu_run(const struct ethosu_job *job, struct ethosu_report *report)
{
    report->id = get(REG_ID);
    report->config = get(REG_CONFIG);
    report->status = 0;
    report->cycles = 0;
    if (report->id == 0) {
        return ETHOSU_ABSENT;
    }
    if (!suits(job, report)) {
        return ETHOSU_WRONG_CONFIG;
    }
    if (!aligned(job)) {
        return ETHOSU_MISALIGNED;
    }
    if (!reset()) {
        return ETHOSU_NO_RESET;
    }
    configure(job);
    set(REG_CMD, CMD_RUN);

    uint32_t status = 0;
    for (uint32_t i = 0; i < POLLS && !(status & (STATUS_IRQ | STATUS_FAULTS)); i++) {
        status = get(REG_STATUS);
    }
    uint32_t low = get(REG_PMCCNTR_LO);
    report->cycles = (uint64_t)get(REG_PMCCNTR_HI) << 32 | low;
    report->status = status;
    set(REG_CMD, CMD_CLEAR_IRQ);
    if (status & STATUS_FAULTS) {
        return ETHOSU_FAULT;
    }
    if (!(status & STATUS_IRQ)) {
        return ETHOSU_TIMEOUT;
    }
    return status & STATUS_END ? ETHOSU_OK : ETHOSU_FAULT;
}
