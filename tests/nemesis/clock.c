// A clock of its own for a process and its children: the file CLOCK_FILE holds how far it is ahead, in ns (int64).
// cc -shared -fPIC -o clock.so clock.c; LD_PRELOAD=clock.so CLOCK_FILE=... PROGRAM
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *ahead;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
  real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  const char *path = getenv("CLOCK_FILE");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  if (found != MAP_FAILED) ahead = found;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real) begin();
  int failed = real(clock, now);
  if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t ns = now->tv_nsec + *ahead % 1000000000;
    now->tv_sec += *ahead / 1000000000 + (ns >= 1000000000) - (ns < 0);
    now->tv_nsec = ns + (ns < 0 ? 1000000000 : ns >= 1000000000 ? -1000000000 : 0);
  }
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec found;
  int failed = clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *now) {
  struct timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (now) *now = found.tv_sec;
  return found.tv_sec;
}
