// Streams, events and graphs. Nothing runs before somebody waits for it: work that the host does not wait for is never seen done,
// and work of two streams runs in the order of what they wait for.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "cuda_api.h"

namespace software_cuda {

using Operation = std::function<void()>;

struct Graph {
  std::vector<Operation> operations;
  bool invalid = false;  // an operation was asked for that cannot be captured
  int mode = 0;          // of the capture: 0 global, 1 of this thread, 2 relaxed
  std::thread::id thread;
};

struct Stream {
  bool blocking = true;  // in step with the null stream
  std::deque<Operation> queue;
  size_t enqueued = 0, executed = 0;
  std::shared_ptr<Graph> capture;
  bool captures = false;  // the capture began here
};

struct Event {
  std::shared_ptr<Stream> stream;  // on which it was recorded last; null before
  size_t position = 0;
  std::shared_ptr<Graph> capture;
};

// The stream of a handle (null: the null stream); null where there is none.
std::shared_ptr<Stream> find_stream(void *handle);
void *create_stream(bool blocking);
void destroy_stream(void *handle);
std::set<Event *> &events();

// Adds to the stream, or to the graph that it captures.
void enqueue(Stream &stream, Operation operation);
void run_until(Stream &stream, size_t position);
void run_all();
// Whether a capture forbids this thread what may wait for the device, such as to allocate: that is what the mode says.
bool capture_forbids();
void end_capture(const std::shared_ptr<Graph> &graph);
void destroy_streams();

}  // namespace software_cuda
