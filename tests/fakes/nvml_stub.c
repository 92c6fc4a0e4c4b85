/* A libnvidia-ml.so.1 of the tests: answers what STUB_* variables say, through the real pynvml.
 *
 * STUB_GPUS: how many GPUs (default 1). STUB_INIT: code nvmlInit answers with. STUB_FAIL: "CALL=CODE,CALL=CODE". STUB_HANG: the
 * call that never returns. Codes are NVML's nvmlReturn_t: 3 not supported, 12 library not found, 15 GPU is lost, 999 unknown.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;

static int code(const char *call) {
    const char *hang = getenv("STUB_HANG"), *fail = getenv("STUB_FAIL");
    if (hang && strcmp(hang, call) == 0) for (;;) pause();
    if (fail) {
        char list[512], *save = NULL;
        snprintf(list, sizeof list, "%s", fail);
        for (char *one = strtok_r(list, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
            char *equals = strchr(one, '=');
            if (equals && strlen(call) == (size_t)(equals - one) && strncmp(one, call, equals - one) == 0) return atoi(equals + 1);
        }
    }
    return 0;
}

static int number(const char *name, int otherwise) { const char *value = getenv(name); return value ? atoi(value) : otherwise; }

int nvmlInit_v2(void) { int wrong = code("init"); return wrong ? wrong : number("STUB_INIT", 0); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int wrong) { (void)wrong; return "stub error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "570.133.20"); return code("driver"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return code("cuda"); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("STUB_GPUS", 1); return code("count"); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    *handle = (void *)(size_t)(index + 1);
    return index == 1 ? code("second") : code("handle");
}
static size_t at(void *handle) { return (size_t)handle - 1; }
int nvmlDeviceGetName(void *handle, char *text, unsigned size) { (void)handle; snprintf(text, size, "NVIDIA H200"); return code("name"); }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) { snprintf(text, size, "GPU-stub-%zu", at(handle)); return code("uuid"); }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { (void)handle; *major = 9; *minor = 0; return code("capability"); }
int nvmlDeviceGetUtilizationRates(void *handle, utilization *rates) { rates->gpu = 63 + at(handle); rates->memory = 20; return code("utilization"); }
int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *memory) {
    (void)handle; memory->total = 150754820096ULL; memory->used = 2000000000ULL; memory->free = 148754820096ULL; return code("memory");
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *memory) {
    (void)handle; memory->total = 150754820096ULL; memory->reserved = 600000000ULL; memory->used = 1400000000ULL;
    memory->free = 148754820096ULL; return code("memory_v2");
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) { (void)handle; *milliwatts = 412500; return code("power"); }
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) { (void)handle; (void)sensor; *celsius = 54; return code("temperature"); }
