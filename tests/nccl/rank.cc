// One rank of an NCCL job, for tests of what NCCL RAS answers.
//
//   rank [options] FILE
//
// FILE carries the ncclUniqueId from rank 0 to the others; its folder must exist, and it must not.
// RANK, WORLD_SIZE and LOCAL_RANK are read from the environment, as torchrun sets
// them. The rank launches one all-reduce a step. It never ends by itself: after
// its last step it sleeps, as a rank that hangs in its data loader would. It ends
// with its parent.
//
//   --steps M          launch M steps, then sleep (default: without end)
//   --pace SECONDS     time between two steps (default 1)
//   --also-allgather   launch an all-gather, too, in each step
//   --split            make a second communicator of the ranks of the same parity
//                      and launch in it, too
//   --leave            destroy the second communicator after the last step
//   --stop-after N     the same as --steps, for the one rank that is to fall behind
//   --only RANK        --stop-after is for this rank alone, so that all ranks can have
//                      the same arguments

#include <nccl.h>

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

static int number(const char* name) {
  const char* text = getenv(name);
  if (text) return atoi(text);
  fprintf(stderr, "rank: %s is not set\n", name);
  exit(2);
}

static void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "rank: %s: %s: %s\n", what, ncclGetErrorString(result), ncclGetLastError(nullptr));
  exit(1);
}

// Rank 0 writes the id beside FILE and renames it, so that no rank reads half of it.
static ncclUniqueId exchangeId(int rank, const std::string& path) {
  ncclUniqueId id;
  if (rank == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::string partial = path + ".part";
    int file = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, &id, sizeof id) != sizeof id || rename(partial.c_str(), path.c_str()) != 0) {
      perror("rank: the file for the id");
      exit(1);
    }
    close(file);
    return id;
  }
  for (;;) {
    int file = open(path.c_str(), O_RDONLY);
    if (file >= 0 && read(file, &id, sizeof id) == sizeof id) return close(file), id;
    if (file >= 0) close(file);
    usleep(20000);
  }
}

int main(int argc, char** argv) {
  long steps = LONG_MAX, stopAfter = LONG_MAX, only = -1;
  double pace = 1;
  bool alsoAllgather = false, split = false, leave = false;
  std::string path;
  for (int i = 1; i < argc; i++) {
    std::string word = argv[i];
    bool more = i + 1 < argc;
    if (word == "--steps" && more) {
      steps = atol(argv[++i]);
    } else if (word == "--stop-after" && more) {
      stopAfter = atol(argv[++i]);
    } else if (word == "--only" && more) {
      only = atol(argv[++i]);
    } else if (word == "--pace" && more) {
      pace = atof(argv[++i]);
    } else if (word == "--also-allgather") {
      alsoAllgather = true;
    } else if (word == "--split") {
      split = true;
    } else if (word == "--leave") {
      leave = true;
    } else if (word[0] != '-' && path.empty()) {
      path = word;
    } else {
      fprintf(stderr, "rank: unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  if (path.empty()) {
    fprintf(stderr,
            "usage: rank [--steps M] [--stop-after N [--only RANK]] [--pace SECONDS] [--also-allgather]\n"
            "            [--split [--leave]] FILE\n");
    return 2;
  }

  pid_t parent = getppid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) return 1;  // it ended before we asked

  int rank = number("RANK"), worldSize = number("WORLD_SIZE"), device = number("LOCAL_RANK");
  if ((only < 0 || only == rank) && stopAfter < steps) steps = stopAfter;
  if (cudaSetDevice(device) != cudaSuccess) {
    fprintf(stderr, "rank: there is no device %d\n", device);
    return 1;
  }
  ncclComm_t world, half = nullptr;
  check(ncclCommInitRank(&world, worldSize, exchangeId(rank, path), rank), "ncclCommInitRank");
  if (split) check(ncclCommSplit(world, rank % 2, rank, &half, nullptr), "ncclCommSplit");

  constexpr size_t kCount = 1024;
  float *from, *to;
  cudaStream_t stream;
  if (cudaMalloc(reinterpret_cast<void**>(&from), kCount * sizeof(float)) != cudaSuccess ||
      cudaMalloc(reinterpret_cast<void**>(&to), kCount * sizeof(float) * worldSize) != cudaSuccess ||
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
    fprintf(stderr, "rank: the fake CUDA gave no memory or no stream\n");
    return 1;
  }
  printf("rank %d ready\n", rank);
  fflush(stdout);
  for (long step = 0; step < steps; step++) {
    check(ncclAllReduce(from, to, kCount, ncclFloat, ncclSum, world, stream), "ncclAllReduce");
    if (half) check(ncclAllReduce(from, to, kCount, ncclFloat, ncclSum, half, stream), "ncclAllReduce");
    if (alsoAllgather) check(ncclAllGather(from, to, kCount, ncclFloat, world, stream), "ncclAllGather");
    usleep(static_cast<useconds_t>(pace * 1e6));
  }
  printf("rank %d stops after %ld steps\n", rank, steps);
  fflush(stdout);
  if (half && leave) check(ncclCommDestroy(half), "ncclCommDestroy");
  for (;;) pause();
}
