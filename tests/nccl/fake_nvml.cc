// The few functions of NVML that NCCL cannot do without, over the same devices
// as fake_cuda.cc. It becomes libnvidia-ml.so.1 beside libnccl.so.2. No NVLink.

#include <cstring>

#include "fake_devices.h"
#include "nvmlwrap.h"  // NCCL's own copy of NVML's types

#define API extern "C" __attribute__((visibility("default")))

// A handle is the number of the device plus one.
static nvmlDevice_t handleOf(int device) { return reinterpret_cast<nvmlDevice_t>(long(device) + 1); }
static int deviceOf(nvmlDevice_t handle) { return int(reinterpret_cast<long>(handle)) - 1; }

API nvmlReturn_t nvmlInit_v2() { return NVML_SUCCESS; }
API nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }
API const char* nvmlErrorString(nvmlReturn_t error) { return error == NVML_SUCCESS ? "success" : "error (fake NVML)"; }
API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  *count = fakeDeviceCount();
  return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t* handle) {
  if (int(index) >= fakeDeviceCount()) return NVML_ERROR_INVALID_ARGUMENT;
  *handle = handleOf(index);
  return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* text, nvmlDevice_t* handle) {
  int device = fakeDeviceOfPciBusId(text);
  if (device < 0) return NVML_ERROR_NOT_FOUND;
  *handle = handleOf(device);
  return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned* index) {
  *index = deviceOf(handle);
  return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t, int* major, int* minor) {
  *major = kFakeMajor;
  *minor = kFakeMinor;
  return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t, nvmlDevice_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t* status) {
  *status = NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}
// Asked for since 2.30, which reads the PCI link here rather than in /sys.
API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t* info) {
  memset(info, 0, sizeof *info);
  fakePciBusId(deviceOf(handle), info->busId, sizeof info->busId);
  info->bus = fakePciBus(deviceOf(handle));
  info->pciDeviceId = 0x233010de;  // an H100
  info->pciSubSystemId = 0x16c110de;
  return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t, unsigned* generation) {
  *generation = 5;
  return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t, unsigned* width) {
  *width = 16;
  return NVML_SUCCESS;
}
