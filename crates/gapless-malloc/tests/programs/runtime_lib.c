// The functions of CUDA's runtime that register memory, with a device that is a descriptor, as a driver's is.
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

static int device = -1;
static struct stat known;
int registered, unregistered, lost;

// Whether this thread reaches the device.
static int reaches(void) {
  struct stat found;
  return !fstat(device, &found) && found.st_ino == known.st_ino && found.st_dev == known.st_dev;
}

int cudaHostRegister(void *start, size_t length, unsigned flags) {
  if (device < 0) {
    device = open("/dev/null", O_RDWR);
    fstat(device, &known);
  }
  registered++;
  return reaches() ? 0 : 999;
}

int cudaHostUnregister(void *start) {
  if (!reaches()) lost++;
  unregistered++;
  return 0;
}

int cudaGetDevice(int *number) {
  *number = 0;
  return 0;
}

int cudaSetDevice(int number) { return reaches() ? 0 : 999; }
