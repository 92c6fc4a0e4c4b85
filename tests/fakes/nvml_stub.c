/* A libnvidia-ml.so.1 of the tests: answers what a scenario says, through the real pynvml.
 *
 * A scenario is lines NAME=VALUE in the file named by STUB_FILE, read anew at every call, so that it can change under a
 * running process; variables STUB_NAME of the environment count where the file has no such line.
 *
 * GPUS: how many GPUs (1). FAIL: "CALL=CODE,CALL@GPU=CODE,*@GPU=CODE": what a call answers, on every
 * GPU or on one, or what all calls do on one. HANG: the call that
 * never returns. UNKNOWN_AFTER: calls after so many answer 999. UNIFIED: memory answers success with 0, or with this many
 * bytes. SM: "9.0". NAME. MIG: "GPU:INSTANCES". THROTTLE: bits of reasons. Codes are NVML's nvmlReturn_t: 3 not supported,
 * 4 no permission, 6 not found, 9 driver not loaded, 12 library not found, 13 function not found, 15 GPU is lost, 18 versions
 * of library and driver differ, 999 unknown. Calls are counted in the file named by COUNT.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct {
    unsigned field, scope;
    long long at, latency;
    int type, wrong;
    union { double d; unsigned u; unsigned long long ull; } value;
} field_value;

static unsigned long long calls;

static const char *setting(const char *name) {
    static char found[1024];
    char line[1024], variable[64];
    const char *path = getenv("STUB_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    size_t length = strlen(name);
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, length) == 0 && line[length] == '=') {
            line[strcspn(line, "\n")] = 0;
            snprintf(found, sizeof found, "%s", line + length + 1);
            fclose(file);
            return found;
        }
    }
    if (file) fclose(file);
    snprintf(variable, sizeof variable, "STUB_%s", name);
    return getenv(variable);
}

static int number(const char *name, int otherwise) {
    const char *value = setting(name);
    return value && *value ? atoi(value) : otherwise;
}

/* What a call on a GPU (-1: on none) answers. */
static int code(const char *call, int gpu) {
    const char *count = setting("COUNT"), *hang, *fail;
    char one_gpu[64], all_of_it[64];
    calls++;
    if (count) {
        FILE *file = fopen(count, "a");
        if (file) { fprintf(file, "%s\n", call); fclose(file); }
    }
    hang = setting("HANG");
    if (hang && strcmp(hang, call) == 0) for (;;) pause();
    if (number("UNKNOWN_AFTER", 0) && calls > (unsigned long long)number("UNKNOWN_AFTER", 0)) return 999;
    snprintf(one_gpu, sizeof one_gpu, "%s@%d", call, gpu);
    snprintf(all_of_it, sizeof all_of_it, "*@%d", gpu);
    fail = setting("FAIL");
    if (fail) {
        char list[1024], *save = NULL;
        snprintf(list, sizeof list, "%s", fail);
        for (char *one = strtok_r(list, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
            char *equals = strchr(one, '=');
            if (!equals) continue;
            *equals = 0;
            if (!strcmp(one, call) || !strcmp(one, one_gpu) || !strcmp(one, all_of_it)) return atoi(equals + 1);
        }
    }
    return 0;
}

/* Handles: a GPU is its index + 1, instance N of it that plus 1000 * (N + 1). */
static int at(void *handle) { return (int)((size_t)handle % 1000) - 1; }
static int instance(void *handle) { return (int)((size_t)handle / 1000) - 1; }
static int instances(int gpu) {
    const char *mig = setting("MIG");
    int which = -1, many = 0;
    if (mig && sscanf(mig, "%d:%d", &which, &many) == 2 && which == gpu) return many;
    return 0;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return code("init", -1); }
int nvmlInit_v2(void) { return code("init", -1); }
int nvmlShutdown(void) { return code("shutdown", -1); }
const char *nvmlErrorString(int wrong) { (void)wrong; return "stub error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.133.20"); return code("driver", -1); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return code("cuda", -1); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("GPUS", 1); return code("count", -1); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(size_t)(index + 1);
    return code("handle", index);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    int gpu = -1, part = -1, wrong;
    if (sscanf(uuid, "MIG-stub-%d-%d", &gpu, &part) == 2) {
        if (part >= instances(gpu)) return 6;
        *handle = (void *)(size_t)(1000 * (part + 1) + gpu + 1);
        return code("mig_handle", gpu);
    }
    if (sscanf(uuid, "GPU-stub-%d", &gpu) != 1) return 6;
    *handle = (void *)(size_t)(gpu + 1);
    wrong = code("by_uuid", gpu);
    return wrong ? wrong : gpu < number("GPUS", 1) ? 0 : 6;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    const char *name = setting("NAME");
    char copy[128];
    snprintf(copy, sizeof copy, "%s", name ? name : "NVIDIA H200");
    if (instance(handle) >= 0) snprintf(text, size, "%s MIG 1g.18gb", copy); else snprintf(text, size, "%s", copy);
    return code("name", at(handle));
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    if (instance(handle) >= 0) snprintf(text, size, "MIG-stub-%d-%d", at(handle), instance(handle));
    else snprintf(text, size, "GPU-stub-%d", at(handle));
    return code("uuid", at(handle));
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    const char *sm = setting("SM");
    *major = 9; *minor = 0;
    if (sm) sscanf(sm, "%d.%d", major, minor);
    return code("capability", at(handle));
}
int nvmlDeviceGetUtilizationRates(void *handle, utilization *rates) {
    rates->gpu = 63 + at(handle); rates->memory = 20;
    return instance(handle) >= 0 ? 3 : code("utilization", at(handle));
}
static unsigned long long size_of(void *handle) {
    const char *unified = setting("UNIFIED");
    if (unified) return strtoull(unified, NULL, 10);
    return instance(handle) >= 0 ? 18ULL << 30 : 150754820096ULL;
}
int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
    memory->total = size_of(handle); memory->used = 2000000000ULL; memory->free = 148754820096ULL;
    return code("memory", at(handle));
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    memory->total = size_of(handle); memory->reserved = 600000000ULL; memory->used = 1400000000ULL;
    memory->free = 148754820096ULL;
    return code("memory_v2", at(handle));
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { *milliwatts = 412500; return code("power", at(handle)); }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) {
    *milliwatts = 700000; return code("power_limit", at(handle));
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    *millijoules = 5000500ULL; return code("energy", at(handle));
}
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
    (void)sensor; *celsius = 54; return code("temperature", at(handle));
}
int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1980 : 3201; return code(kind == 1 ? "clock_sm" : "clock_memory", at(handle));
}
int nvmlDeviceGetMaxClockInfo(void *handle, int kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1980 : 3201; return code("clock_max", at(handle));
}
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) {
    *reasons = number("THROTTLE", 0x1); return code("reasons", at(handle));
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    *reasons = number("THROTTLE", 0x1); return code("old_reasons", at(handle));
}
int nvmlDeviceGetTotalEccErrors(void *handle, int error, int counter, unsigned long long *count) {
    *count = 10 * error + counter; return code("ecc", at(handle));
}
int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = 1; *uncorrected = 2; *pending = 1; *failed = 0; return code("remapped", at(handle));
}
int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *value) { *value = 5; return code("pcie_generation", at(handle)); }
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *value) { *value = 16; return code("pcie_width", at(handle)); }
int nvmlDeviceGetPcieReplayCounter(void *handle, unsigned *value) { *value = 3; return code("pcie_replays", at(handle)); }
int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    *active = link != 3; return code("nvlink_state", at(handle));
}
int nvmlDeviceGetFieldValues(void *handle, int count, field_value *values) {
    int wrong = code("fields", at(handle));
    for (int i = 0; i < count; i++) {
        char call[32];
        snprintf(call, sizeof call, "field_%u", values[i].field);
        values[i].wrong = code(call, at(handle));
        values[i].type = 3;
        switch (values[i].field) {
        case 82: values[i].type = 1; values[i].value.u = 61; break;
        case 91: values[i].type = 1; values[i].value.u = 18; break;
        case 138: case 139: values[i].value.ull = values[i].scope == 0xFFFFFFFFu ? values[i].field : 0; break;
        default: values[i].value.ull = values[i].field;
        }
    }
    return wrong;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    *current = *pending = instances(at(handle)) > 0; return code("mig_mode", at(handle));
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **found) {
    *found = (void *)(size_t)(1000 * (index + 1) + at(handle) + 1);
    return (int)index < instances(at(handle)) ? code("mig_by_index", at(handle)) : 6;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **found) {
    *found = (void *)(size_t)(at(handle) + 1); return code("mig_parent", at(handle));
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *infos) {
    (void)infos; *count = 0; return code("processes", at(handle));
}
