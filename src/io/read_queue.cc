#include "io/read_queue.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"

namespace thimble {
namespace {

constexpr size_t kAlignment = BlockReader::kAlignment;
constexpr size_t kMostRetries = 5000;

// What is read for a request: the pages of its needed bytes.
size_t WantedBytes(const ReadRequest& request) {
  return std::min(RoundUp(request.needed_bytes, kAlignment), request.bytes);
}

}  // namespace

PieceState Advance(const File& file, int64_t answer, ReadPiece* piece) {
  if (answer == -EINTR) return {};
  const bool is_transient = answer == -EAGAIN || answer == -EBUSY || answer == -ENOMEM;
  if (is_transient && ++piece->retries < kMostRetries) return {.pause = true, .error = {}};
  const uint64_t position = piece->offset + piece->done_bytes;
  if (answer < 0) {
    return {.over = true, .error = file.DescribeFailure(position, static_cast<int>(-answer))};
  }
  const size_t there = piece->done_bytes + static_cast<size_t>(answer);
  if (there >= piece->needed_bytes) return {.over = true, .error = {}};
  // Direct reads have to go on at an aligned place, so the bytes past it come once more.
  const size_t aligned = there / kAlignment * kAlignment;
  if (aligned == piece->done_bytes) {
    const ReadRequest& request = piece->job->request;
    return {.over = true,
            .error = file.DescribeShortage(piece->offset + there,
                                           request.offset + request.needed_bytes)};
  }
  piece->done_bytes = aligned;
  return {};
}

bool ReadQueue::Push(std::span<const ReadRequest> requests, ReadPriority priority,
                     ReadBatch& batch) {
  batch.Expect(requests.size());
  size_t num_empty = 0;
  bool missed = false;
  {
    const std::lock_guard lock(mutex_);
    for (const ReadRequest& request : requests) {
      THIMBLE_CHECK(request.needed_bytes <= request.bytes);
      if (request.needed_bytes == 0) {
        ++num_empty;
      } else {
        Enqueue(request, priority, batch);
      }
    }
    missed = num_empty < requests.size() && std::exchange(missed_, false);
  }
  changed_.notify_all();
  for (; num_empty > 0; --num_empty) batch.Finish({});
  return missed;
}

void ReadQueue::Enqueue(const ReadRequest& request, ReadPriority priority, ReadBatch& batch) {
  if (free_.empty()) free_.push_back(&jobs_.emplace_back());
  ReadJob* job = free_.back();
  free_.pop_back();
  *job = {request, &batch, priority, 0, 0, {}};
  waiting_[static_cast<size_t>(priority)].push_back(job);
}

size_t ReadQueue::Withdraw(ReadBatch& batch) {
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    auto& likely = waiting_[static_cast<size_t>(ReadPriority::kLikely)];
    count = std::erase_if(likely, [&](ReadJob* job) {
      if (job->batch != &batch || job->taken_bytes > 0) return false;
      free_.push_back(job);
      return true;
    });
  }
  for (size_t i = 0; i < count; ++i) batch.Finish({});
  return count;
}

std::optional<ReadPiece> ReadQueue::Take() {
  for (auto& waiting : waiting_) {
    if (waiting.empty()) continue;
    ReadJob& job = *waiting.front();
    const ReadRequest& request = job.request;
    const size_t from = job.taken_bytes;
    const size_t bytes = std::min(piece_bytes_, WantedBytes(request) - from);
    job.taken_bytes += bytes;
    ++job.pieces_in_hand;
    if (job.taken_bytes == WantedBytes(request)) waiting.pop_front();
    return ReadPiece{request.file,
                     request.offset + from,
                     bytes,
                     std::min(bytes, request.needed_bytes - from),
                     request.out + from,
                     0,
                     0,
                     &job};
  }
  return std::nullopt;
}

std::optional<ReadPiece> ReadQueue::TryPop() {
  const std::lock_guard lock(mutex_);
  auto piece = Take();
  missed_ = !piece;
  return piece;
}

std::optional<ReadPiece> ReadQueue::Pop() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (auto piece = Take()) return piece;
    if (closed_) return std::nullopt;
    changed_.wait(lock);
  }
}

void ReadQueue::Finish(const ReadPiece& piece, const std::string& error) {
  ReadBatch* batch = nullptr;
  std::string first_error;
  {
    const std::lock_guard lock(mutex_);
    ReadJob& job = *piece.job;
    if (job.error.empty()) job.error = error;
    if (--job.pieces_in_hand > 0 || job.taken_bytes < WantedBytes(job.request)) return;
    batch = job.batch;
    first_error = std::move(job.error);
    free_.push_back(&job);
  }
  batch->Finish(first_error);
}

void ReadQueue::Close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool ReadQueue::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace thimble
