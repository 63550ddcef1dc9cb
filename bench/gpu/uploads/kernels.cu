// Kernels that programs of these sections launch through the driver: driver.py.

// Spins for `ns`, or for ever if that is negative.
extern "C" __global__ void spin(long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (ns < 0 || static_cast<long long>(now - begin) < ns);
}

extern "C" __global__ void store(int* where) { *where = 1; }

// Needs more than 64 registers a thread, so that no block of 1024 threads fits on a multiprocessor.
extern "C" __global__ void greedy(float* data, int rounds) {
  float values[160];
#pragma unroll
  for (int i = 0; i < 160; ++i) values[i] = data[threadIdx.x + i * 1024];
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int i = 0; i < 160; ++i) values[i] = values[i] * values[(i + 37) % 160] + 1.0f;
  }
#pragma unroll
  for (int i = 0; i < 160; ++i) data[threadIdx.x + i * 1024] = values[i];
}

extern "C" __global__ void saxpy(float* y, const float* x, float a, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
