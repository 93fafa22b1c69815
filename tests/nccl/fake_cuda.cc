// A CUDA without a GPU, just large enough for the host code of NCCL.
//
// It shows FAKE_CUDA_DEVICES devices (8 unless set), or those of them that
// CUDA_VISIBLE_DEVICES names. Device memory is memory of
// the process, streams and events are always complete, and a launched kernel
// does nothing: an operation counts as launched and never moves a byte.
// Devices cannot reach each other, so NCCL takes the SHM or the NET/Socket
// transport. What is not supported says so on stderr and returns an error.
//
// The functions of the driver are handed out by name, as NCCL asks for them.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "fake_devices.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kVersion = CUDA_VERSION;
constexpr size_t kDeviceMemory = size_t(80) << 30;
constexpr int kSharedMemory = 232448;
constexpr int kMultiprocessors = 132;

thread_local int currentDevice = 0;

// What this process has allocated: address to size and device (-1 is the host).
struct Allocation {
  size_t size;
  int device;
};
std::mutex allocationsLock;
std::map<char*, Allocation> allocations;

cudaError_t allocate(void** out, size_t size, int device) {
  *out = nullptr;
  if (size == 0) return cudaSuccess;
  // Pages come zeroed and cost nothing until they are touched.
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::lock_guard<std::mutex> locked(allocationsLock);
  allocations[static_cast<char*>(memory)] = {size, device};
  *out = memory;
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  std::lock_guard<std::mutex> locked(allocationsLock);
  auto found = allocations.find(static_cast<char*>(memory));
  if (found == allocations.end()) return cudaErrorInvalidValue;
  munmap(memory, found->second.size);
  allocations.erase(found);
  return cudaSuccess;
}

// The allocation that an address lies in; false if it is not ours.
bool findAllocation(const void* address, char** base, Allocation* allocation) {
  char* wanted = static_cast<char*>(const_cast<void*>(address));
  std::lock_guard<std::mutex> locked(allocationsLock);
  auto after = allocations.upper_bound(wanted);
  if (after == allocations.begin()) return false;
  --after;
  if (wanted >= after->first + after->second.size) return false;
  *base = after->first;
  *allocation = after->second;
  return true;
}

// Streams, events and pools need only an address of their own.
template <typename Handle>
cudaError_t makeHandle(Handle* handle) {
  *handle = reinterpret_cast<Handle>(malloc(1));
  return cudaSuccess;
}
template <typename Handle>
cudaError_t dropHandle(Handle handle) {
  free(reinterpret_cast<void*>(handle));
  return cudaSuccess;
}

int attribute(int number) {
  switch (number) {
    case cudaDevAttrComputeCapabilityMajor: return kFakeMajor;
    case cudaDevAttrComputeCapabilityMinor: return kFakeMinor;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return kSharedMemory;
    case cudaDevAttrMultiProcessorCount: return kMultiprocessors;
    case cudaDevAttrWarpSize: return 32;
    // All else (virtual memory management, multicast, DMA-BUF, GPUDirect RDMA)
    // is a feature that a fake device does not have.
    default: return 0;
  }
}

int deviceCount() {
  int numbers[kFakeMaxDevices];
  return fakeVisibleDevices(numbers);
}
bool knownDevice(int device) { return device >= 0 && device < deviceCount(); }

// The number that NVML has for a device of ours.
int realNumber(int device) {
  int numbers[kFakeMaxDevices];
  return device < fakeVisibleDevices(numbers) ? numbers[device] : -1;
}

int refuse(const char* name) {
  fprintf(stderr, "fake CUDA: %s is not supported\n", name);
  return cudaErrorNotSupported;
}

}  // namespace

// Functions that NCCL links to and that no scenario needs. Named by their symbol
// alone, so that their many parameters need not be repeated.
#define REFUSE(name)                                                            \
  API int refused_##name() __asm__(#name);                                      \
  int refused_##name() { return refuse(#name); }

REFUSE(cudaGraphAddDependencies)
REFUSE(cudaGraphAddDependencies_v2)
REFUSE(cudaGraphAddEventRecordNode)
REFUSE(cudaGraphAddEventWaitNode)
REFUSE(cudaGraphAddHostNode)
REFUSE(cudaGraphAddKernelNode)
REFUSE(cudaGraphRetainUserObject)
REFUSE(cudaUserObjectCreate)
REFUSE(cudaStreamUpdateCaptureDependencies)
REFUSE(cudaStreamUpdateCaptureDependencies_v2)
REFUSE(cudaIpcGetMemHandle)
REFUSE(cudaIpcOpenMemHandle)
REFUSE(cudaIpcCloseMemHandle)
REFUSE(cudaDeviceEnablePeerAccess)
REFUSE(cudaMemcpyBatchAsync)
REFUSE(cudaArrayGetInfo)

// ---------------------------------------------------------------- versions, errors

API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int* version) {
  *version = kVersion;
  return cudaSuccess;
}
API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument (fake CUDA)";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected (fake CUDA)";
    case cudaErrorInvalidDevice: return "invalid device ordinal (fake CUDA)";
    case cudaErrorMemoryAllocation: return "out of memory (fake CUDA)";
    case cudaErrorNotSupported: return "operation not supported (fake CUDA)";
    default: return "unknown error (fake CUDA)";
  }
}
API cudaError_t cudaGetLastError() { return cudaSuccess; }

// ---------------------------------------------------------------- devices

API cudaError_t cudaGetDeviceCount(int* count) {
  *count = deviceCount();
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}
API cudaError_t cudaGetDevice(int* device) {
  *device = currentDevice;
  return cudaSuccess;
}
API cudaError_t cudaSetDevice(int device) {
  if (!knownDevice(device)) return cudaErrorInvalidDevice;
  currentDevice = device;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!knownDevice(device)) return cudaErrorInvalidDevice;
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "Fake GPU without silicon");
  properties->major = kFakeMajor;
  properties->minor = kFakeMinor;
  properties->totalGlobalMem = kDeviceMemory;
  properties->sharedMemPerBlockOptin = kSharedMemory;
  properties->multiProcessorCount = kMultiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->unifiedAddressing = 1;
  properties->canMapHostMemory = 1;
  properties->pciBusID = fakePciBus(realNumber(device));
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr number, int device) {
  if (!knownDevice(device)) return cudaErrorInvalidDevice;
  *value = attribute(number);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!knownDevice(device)) return cudaErrorInvalidDevice;
  fakePciBusId(realNumber(device), text, length);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  int wanted = fakeDeviceOfPciBusId(text);
  for (*device = deviceCount() - 1; *device >= 0; --*device)
    if (realNumber(*device) == wanted) return cudaSuccess;
  return cudaErrorInvalidDevice;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}
API cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }
API cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

// ---------------------------------------------------------------- memory

API cudaError_t cudaMalloc(void** out, size_t size) { return allocate(out, size, currentDevice); }
API cudaError_t cudaFree(void* memory) { return release(memory); }
API cudaError_t cudaHostAlloc(void** out, size_t size, unsigned) { return allocate(out, size, -1); }
API cudaError_t cudaFreeHost(void* memory) { return release(memory); }
API cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
API cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
API cudaError_t cudaHostGetDevicePointer(void** out, void* host, unsigned) {
  *out = host;
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  memset(attributes, 0, sizeof *attributes);
  char* base;
  Allocation allocation;
  bool ours = findAllocation(address, &base, &allocation);
  attributes->type = !ours                   ? cudaMemoryTypeUnregistered
                     : allocation.device < 0 ? cudaMemoryTypeHost
                                             : cudaMemoryTypeDevice;
  attributes->device = ours && allocation.device >= 0 ? allocation.device : currentDevice;
  attributes->devicePointer = attributes->hostPointer = const_cast<void*>(address);
  return cudaSuccess;
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  memmove(to, from, size);
  return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) {
  memmove(to, from, size);
  return cudaSuccess;
}
API cudaError_t cudaMemset(void* memory, int value, size_t size) {
  memset(memory, value, size);
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* memory, int value, size_t size, cudaStream_t) {
  memset(memory, value, size);
  return cudaSuccess;
}
API cudaError_t cudaMallocAsync(void** out, size_t size, cudaStream_t) { return allocate(out, size, currentDevice); }
API cudaError_t cudaMallocFromPoolAsync(void** out, size_t size, cudaMemPool_t, cudaStream_t) {
  return allocate(out, size, currentDevice);
}
API cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return release(memory); }
API cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) { return makeHandle(pool); }
API cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return dropHandle(pool); }
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

// ---------------------------------------------------------------- streams, events

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return makeHandle(stream); }
API cudaError_t cudaStreamDestroy(cudaStream_t stream) { return dropHandle(stream); }
API cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
API cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  // The null stream is the legacy one, as in a program built without per-thread streams.
  if (stream == nullptr) stream = cudaStreamLegacy;
  *id = reinterpret_cast<unsigned long long>(stream);
  return cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*,
                                            cudaGraph_t*, const cudaGraphNode_t**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*,
                                            cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                            size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
API cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* argument) {
  function(argument);
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* event) { return makeHandle(event); }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return makeHandle(event); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) { return dropHandle(event); }
API cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
API cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

// ---------------------------------------------------------------- kernels

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = 10 * kFakeMajor + kFakeMinor;
  return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
API cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  *function = static_cast<cudaFunction_t>(const_cast<void*>(symbol));
  return cudaSuccess;
}
API cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { return cudaSuccess; }

// ---------------------------------------------------------------- driver

namespace driver {

CUresult getErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
CUresult deviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return knownDevice(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult deviceGetAttribute(int* value, CUdevice_attribute number, CUdevice) {
  // The attributes of the driver have the numbers of those of the runtime.
  *value = attribute(number);
  return CUDA_SUCCESS;
}
CUresult deviceGetUuid(CUuuid* uuid, CUdevice device) {
  memset(uuid, 0, sizeof *uuid);
  snprintf(uuid->bytes, sizeof uuid->bytes, "fake GPU %d", realNumber(device));
  return CUDA_SUCCESS;
}
CUresult ctxGetCurrent(CUcontext* context) {
  // One context for each device, known by an address of its own.
  static char contexts[kFakeMaxDevices];
  *context = reinterpret_cast<CUcontext>(&contexts[currentDevice]);
  return CUDA_SUCCESS;
}
CUresult ctxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult ctxDestroy(CUcontext) { return CUDA_SUCCESS; }
CUresult ctxGetDevice(CUdevice* device) {
  *device = currentDevice;
  return CUDA_SUCCESS;
}
CUresult memGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  char* start;
  Allocation allocation;
  if (!findAllocation(reinterpret_cast<void*>(address), &start, &allocation)) return CUDA_ERROR_INVALID_VALUE;
  if (base) *base = reinterpret_cast<CUdeviceptr>(start);
  if (size) *size = allocation.size;
  return CUDA_SUCCESS;
}
// Asked for before NCCL knows that it cannot map memory itself: answer as CUDA does,
// and refuse the allocation, upon which NCCL takes another way.
CUresult memGetAllocationGranularity(size_t* size, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *size = size_t(2) << 20;
  return CUDA_SUCCESS;
}
CUresult memCreate(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult launchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                      void**, void**) {
  return CUDA_SUCCESS;
}
CUresult launchKernelEx(const CUlaunchConfig*, CUfunction, void**, void**) { return CUDA_SUCCESS; }

const struct {
  const char* name;
  void* function;
} kFunctions[] = {
    {"cuGetErrorString", reinterpret_cast<void*>(getErrorString)},
    {"cuGetErrorName", reinterpret_cast<void*>(getErrorString)},
    {"cuDeviceGet", reinterpret_cast<void*>(deviceGet)},
    {"cuDeviceGetAttribute", reinterpret_cast<void*>(deviceGetAttribute)},
    {"cuDeviceGetUuid", reinterpret_cast<void*>(deviceGetUuid)},
    {"cuCtxGetCurrent", reinterpret_cast<void*>(ctxGetCurrent)},
    {"cuCtxSetCurrent", reinterpret_cast<void*>(ctxSetCurrent)},
    {"cuCtxDestroy", reinterpret_cast<void*>(ctxDestroy)},
    {"cuCtxGetDevice", reinterpret_cast<void*>(ctxGetDevice)},
    {"cuMemGetAddressRange", reinterpret_cast<void*>(memGetAddressRange)},
    {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(memGetAllocationGranularity)},
    {"cuMemCreate", reinterpret_cast<void*>(memCreate)},
    {"cuLaunchKernel", reinterpret_cast<void*>(launchKernel)},
    {"cuLaunchKernelEx", reinterpret_cast<void*>(launchKernelEx)},
};

}  // namespace driver

API cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long,
                                        cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  for (const auto& known : driver::kFunctions)
    if (strcmp(known.name, name) == 0) *function = known.function;
  // A missing function is no error: NCCL then leaves the feature out.
  if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long flags,
                                                 cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPoint(name, function, flags, result);
}
