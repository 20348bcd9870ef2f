#include "streams.h"

#include <map>

namespace software_cuda {

namespace {

std::map<void *, std::shared_ptr<Stream>> streams;
std::shared_ptr<Stream> null_stream = std::make_shared<Stream>();

}  // namespace

std::set<Event *> &events() {
  static std::set<Event *> all;
  return all;
}

std::shared_ptr<Stream> find_stream(void *handle) {
  if (!handle) return null_stream;
  auto it = streams.find(handle);
  return it == streams.end() ? nullptr : it->second;
}

void *create_stream(bool blocking) {
  auto stream = std::make_shared<Stream>();
  stream->blocking = blocking;
  void *handle = stream.get();
  streams[handle] = std::move(stream);
  return handle;
}

void destroy_stream(void *handle) {
  const auto stream = find_stream(handle);
  run_until(*stream, stream->enqueued);
  streams.erase(handle);
}

void enqueue(Stream &stream, Operation operation) {
  if (stream.capture) {
    stream.capture->operations.push_back(std::move(operation));
    return;
  }
  if (&stream == null_stream.get()) {
    for (auto &[handle, other] : streams)
      if (other->blocking && !other->capture) run_until(*other, other->enqueued);
  } else if (stream.blocking) {
    run_until(*null_stream, null_stream->enqueued);
  }
  stream.queue.push_back(std::move(operation));
  ++stream.enqueued;
}

void run_until(Stream &stream, size_t position) {
  while (stream.executed < position && !stream.queue.empty()) {
    const Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    ++stream.executed;
    operation();
  }
}

void run_all() {
  run_until(*null_stream, null_stream->enqueued);
  for (auto &[handle, stream] : streams) run_until(*stream, stream->enqueued);
}

bool capture_forbids() {
  for (auto &[handle, stream] : streams) {
    if (!stream->capture || stream->capture->mode == 2) continue;
    if (stream->capture->mode == 0 || stream->capture->thread == std::this_thread::get_id()) return true;
  }
  return false;
}

void end_capture(const std::shared_ptr<Graph> &graph) {
  for (auto &[handle, stream] : streams) {
    if (stream->capture != graph) continue;
    stream->capture.reset();
    stream->captures = false;
  }
}

void destroy_streams() {
  run_all();
  streams.clear();
  for (Event *event : events()) event->stream.reset();
}

}  // namespace software_cuda
