#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "format/model_config.h"
#include "format/tensor_store.h"
#include "io/block_reader.h"
#include "kernels/kernels.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"
#include "model/weights.h"
#include "residency/trunk_schedule.h"

namespace thimble {

/// How much memory a TrunkStream gets.
struct TrunkMemory {
  size_t ring_slots = 0;      // each holds the largest block; 0 where everything is pinned
  uint64_t pinned_bytes = 0;  // for blocks that stay
};

/// The trunk, streamed from disk through a ring of blocks. Blocks that fit the pinned memory are
/// read once and stay; they are spread evenly over the sweep, so that the drive never idles. The
/// others are read in order, as many ahead as the ring has slots, across the end of a sweep into
/// the next one. If a read ahead into the next sweep fails, that sweep repeats it: one session's
/// error is not reported to another.
class TrunkStream final : public LayerSource, private Lender {
 public:
  /// Borrows all arguments. Memory is charged to `budget` as "trunk ring", "pinned trunk",
  /// "embedding rows" and "trunk schedule".
  TrunkStream(const ModelConfig& config, const TensorStore& store, TrunkSchedule schedule,
              const TrunkMemory& memory, const Kernels& kernels, BlockReader& reader,
              ReadMonitor& monitor, MemoryBudget& budget);
  ~TrunkStream() override;

  void BeginSweep(bool with_head) override;
  Lease<WeightMatrix> Acquire(const TensorAddress& tensor, size_t first_row) override;
  void ReadEmbeddings(std::span<const uint32_t> tokens, float* out) override;

  /// Reads all pinned blocks now, between two sweeps, and reports the tensor bytes of each.
  /// Error(kRuntime) like Acquire.
  void Preload(const std::function<void(uint64_t)>& on_read);
  uint64_t PinnedTensorBytes() const;
  /// The memory of the pinned blocks, to be locked against swapping.
  Buffer& pinned_buffer() { return pinned_buffer_; }

  /// Bytes of tensors read so far, embedding rows included.
  uint64_t read_bytes() const { return read_bytes_; }

  /// Bytes of the buffer for embedding rows.
  static uint64_t EmbeddingBytes(const ModelConfig& config);

 private:
  static constexpr size_t kNoSlot = SIZE_MAX;

  // Memory that blocks pass through.
  struct Slot {
    explicit Slot(ReadMonitor& monitor) : batch(monitor) {}
    ReadBatch batch;
    std::byte* data = nullptr;
    size_t block = 0;
    bool in_use = false;
    bool passed = false;  // the sweep has moved on; free once no lease is left
    bool early = false;   // read ahead by the sweep before
    size_t leases = 0;
  };
  struct PinnedBlock {
    explicit PinnedBlock(ReadMonitor& monitor) : batch(monitor) {}
    ReadBatch batch;
    std::byte* data = nullptr;  // null: not pinned
    bool requested = false;     // read, or being read
  };

  void Return(uint64_t ticket) noexcept override;
  void CheckCoded(const TrunkPiece& piece, const uint8_t* data) const;
  void ChoosePinned(uint64_t bytes);
  bool Idle() const;
  void Reset();
  void EnterBlock(size_t block);
  void Recycle(Slot& slot);
  void ReadAhead();
  void ReadPinnedAhead(size_t first, size_t end);
  static void AwaitPinned(PinnedBlock& block);
  void AwaitSlot(Slot& slot);
  bool NextToRead(size_t* block);
  bool AtBlockEnd() const;
  void Submit(size_t block, std::byte* data, ReadPriority priority, ReadBatch& batch);
  size_t EndBlock() const { return with_head_ ? schedule_.blocks.size() : schedule_.head_block; }

  const ModelConfig& config_;
  const TensorStore& store_;
  const TensorExtent& embedding_;
  const TrunkSchedule schedule_;
  const Kernels& kernels_;
  BlockReader& reader_;
  ReadMonitor& monitor_;
  std::deque<PinnedBlock> pinned_;  // [block]
  Reservation tables_;
  Buffer pinned_buffer_;
  Buffer ring_buffer_;
  Buffer embedding_buffer_;
  std::deque<Slot> slots_;
  std::vector<size_t> slot_of_;  // [block] -> slot that holds it or will, or kNoSlot

  bool with_head_ = false;
  bool in_sweep_ = false;
  size_t next_piece_ = 0;  // of the schedule
  size_t current_block_ = 0;
  bool entered_ = false;       // current_block_ is there
  size_t read_block_ = 0;      // next block that the ring looks at
  bool read_wrapped_ = false;  // read_block_ belongs to the next sweep
  uint64_t read_bytes_ = 0;
  std::vector<ReadRequest> requests_;  // scratch of Submit
};

}  // namespace thimble
