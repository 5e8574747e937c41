// Registers a buffer, gives it back, and idles: whoever ends the registration reaches the driver's device.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int registered, unregistered, lost;
int cudaHostRegister(void *, size_t, unsigned);
int cudaHostUnregister(void *);

int main() {
  size_t length = (size_t)24 << 20;
  char *buffer = malloc(length);
  memset(buffer, 1, length);
  if (cudaHostRegister(buffer, length, 0) || cudaHostUnregister(buffer)) return 1;
  free(buffer);
  for (int i = 0; i < 300 && !unregistered; i++) usleep(100 * 1000);
  if (registered != 1 || unregistered != 1 || lost) return printf("%d %d %d\n", registered, unregistered, lost), 1;
  puts("ok");
  return 0;
}
