#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/block_reader.h"
#include "io/file.h"

namespace thimble {

/// A request on its way.
struct ReadJob {
  ReadRequest request;
  ReadBatch* batch = nullptr;
  ReadPriority priority = ReadPriority::kDemand;
  size_t taken_bytes = 0;     // handed out as pieces
  size_t pieces_in_hand = 0;  // handed out and not finished
  std::string error;          // the first
};

/// A part of a request that goes to the kernel in one call.
struct ReadPiece {
  uint32_t file = 0;
  uint64_t offset = 0;
  size_t bytes = 0;         // a multiple of BlockReader::kAlignment
  size_t needed_bytes = 0;  // of them; at least 1
  std::byte* out = nullptr;
  size_t done_bytes = 0;  // there already; a multiple of BlockReader::kAlignment
  size_t retries = 0;     // after answers that said "not now"
  ReadJob* job = nullptr;
};

/// How a piece stands after the kernel has answered.
struct PieceState {
  bool over = false;   // else what follows its done_bytes has to be read
  bool pause = false;  // after kRetryPauseMicroseconds, since the kernel had no room for it
  std::string error;   // empty where all went well
};
inline constexpr unsigned kRetryPauseMicroseconds = 1000;
/// Takes note of the kernel's answer to a read of what was left of `piece`: a number of bytes, or a
/// negative errno. A kernel that is short of resources is asked again for some seconds.
PieceState Advance(const File& file, int64_t answer, ReadPiece* piece);

/// Requests that wait for the drive, handed out piece by piece: all that is demanded first, then
/// what is read ahead, then what is likely, each in order of arrival. The queue is where priority
/// is decided, so whoever takes pieces has few of them under way. Safe from any thread.
class ReadQueue {
 public:
  explicit ReadQueue(size_t piece_bytes) : piece_bytes_(piece_bytes) {}

  /// Adds requests to the queue and to `batch`. True where a TryPop since the last Push found
  /// nothing, so that its caller has to be told.
  bool Push(std::span<const ReadRequest> requests, ReadPriority priority, ReadBatch& batch);
  /// Takes back those likely requests of `batch` of which no piece was handed out, and returns how
  /// many.
  size_t Withdraw(ReadBatch& batch);
  /// The next piece, if there is one.
  std::optional<ReadPiece> TryPop();
  /// The next piece, once there is one; nothing when the queue is closed and empty.
  std::optional<ReadPiece> Pop();
  /// Ends a piece that was handed out. The last one of a request completes it.
  void Finish(const ReadPiece& piece, const std::string& error);

  /// No Push comes any more.
  void Close();
  bool closed() const;

 private:
  void Enqueue(const ReadRequest& request, ReadPriority priority, ReadBatch& batch);
  std::optional<ReadPiece> Take();

  const size_t piece_bytes_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::array<std::deque<ReadJob*>, 3> waiting_;  // by priority
  std::deque<ReadJob> jobs_;                     // as many as were ever there at once
  std::vector<ReadJob*> free_;                   // those not in use
  bool missed_ = false;                          // TryPop found nothing since the last Push
  bool closed_ = false;
};

}  // namespace thimble
