// The devices that the fake CUDA runtime and the fake NVML both show.
#pragma once

#include <strings.h>

#include <cstdio>
#include <cstdlib>

constexpr int kFakeMajor = 9;  // compute capability 9.0
constexpr int kFakeMinor = 0;
constexpr int kFakeMaxDevices = 16;

static inline int fakeDeviceCount() {
  const char* text = getenv("FAKE_CUDA_DEVICES");
  int count = text ? atoi(text) : 8;
  return count < 0 ? 0 : count > kFakeMaxDevices ? kFakeMaxDevices : count;
}

// CUDA shows only the devices of CUDA_VISIBLE_DEVICES (numbers, with commas), NVML all.
// Fills in the real number of each visible device and returns how many there are.
static inline int fakeVisibleDevices(int numbers[kFakeMaxDevices]) {
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  if (text == nullptr) {
    for (; count < fakeDeviceCount(); count++) numbers[count] = count;
    return count;
  }
  while (count < kFakeMaxDevices) {
    char* end;
    long number = strtol(text, &end, 10);
    if (end == text || number < 0 || number >= fakeDeviceCount()) break;
    numbers[count++] = int(number);
    if (*end != ',') break;
    text = end + 1;
  }
  return count;
}

static inline int fakePciBus(int device) { return 0x10 * (device + 1); }

// "00000000:10:00.0": a bus for each device.
static inline void fakePciBusId(int device, char* text, int length) {
  snprintf(text, length, "%08x:%02x:00.0", 0, fakePciBus(device));
}

// The device at a PCI address, with 4 or 8 digits of domain, or -1.
static inline int fakeDeviceOfPciBusId(const char* text) {
  unsigned domain, bus;
  if (sscanf(text, "%x:%x:", &domain, &bus) != 2 || domain != 0) return -1;
  for (int device = 0; device < fakeDeviceCount(); device++)
    if (unsigned(fakePciBus(device)) == bus) return device;
  return -1;
}
