#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "format/container_check.h"
#include "format/model_config.h"
#include "format/tensor_store.h"
#include "io/block_reader.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"
#include "model/weights.h"

namespace thimble {

/// The capacity of an ExpertCache.
struct ExpertMemory {
  size_t window_slots = 1;  // for experts in passing; at least 1
  size_t cached_slots = 0;  // for experts that stay, divided evenly among the MoE layers
};

/// The routed experts, read from disk on request. Each MoE layer has its own set: decoding scans
/// the layers in a cycle, and a shared set would evict every expert just before its turn. Within a
/// layer the experts with the most recent requests stay (counts halve every kHalfLifeRequests
/// requests). A request for most experts of a layer, as from a wide prompt chunk, predicts one for
/// most of the next layer: these are read early into free slots while the drive is otherwise idle.
/// Which experts are kept or read early changes the speed, never a result.
class ExpertCache final : public ExpertSource, private Lender {
 public:
  static constexpr float kHalfLifeRequests = 16;

  /// Borrows all arguments. Memory is charged to `budget` as "expert slots" and "expert table".
  ExpertCache(const ModelConfig& config, const TensorStore& store, const ExpertMemory& memory,
              BlockReader& reader, ReadMonitor& monitor, MemoryBudget& budget);
  ~ExpertCache() override;

  /// Compares every expert that comes from the drive with its checksum, before it is lent. Borrows
  /// `check`.
  void CheckWith(const ContainerCheck* check) { check_ = check; }
  /// Fills the slots of experts that stay, by layer, and reports the bytes of each. Called before
  /// the first request. Error(kRuntime) like Next.
  void Preload(const std::function<void(uint64_t)>& on_read);
  uint64_t CachedExpertBytes() const;

  void Request(size_t layer, std::span<const uint32_t> experts) override;
  Lease<ExpertView> Next() override;

  uint64_t read_bytes() const { return read_bytes_; }
  uint64_t num_requests() const { return num_requests_; }
  uint64_t num_hits() const { return num_hits_; }

  /// Memory of one slot: the largest expert including alignment.
  static uint64_t SlotBytes(const ModelConfig& config, const TensorStore& store);
  /// Bookkeeping of one slot.
  static uint64_t SlotTableBytes();
  /// Memory of the tables of all experts.
  static uint64_t TableBytes(const ModelConfig& config);

 private:
  static constexpr uint32_t kNoSlot = UINT32_MAX;

  struct Slot {
    explicit Slot(ReadMonitor& monitor) : batch(monitor) {}
    ReadBatch batch;
    std::byte* data = nullptr;
    ExpertView view;
    size_t layer = 0;
    size_t set = 0;       // the layer, counted among the MoE layers
    bool wanted = false;  // requested, and not yet handed out
    bool early = false;   // read before it was requested, and not awaited
    bool usable = false;  // compared with its checksum, and its scales decoded
    bool leased = false;
  };
  // An expert's recent request count, as of its last request, and its slot.
  struct Entry {
    float score = 0;
    uint32_t last_request = 0;
    uint32_t slot = kNoSlot;
  };

  void Return(uint64_t ticket) noexcept override;
  Entry& EntryOf(size_t set, uint32_t expert) { return entries_[set * num_experts_ + expert]; }
  float ScoreNow(size_t set, const Entry& entry) const;
  void Forget();
  void Announce(size_t layer, size_t num_requested);
  void StartReads();
  void ReadEarly();
  void WithdrawEarly();
  void SettleEarly();
  void Read(size_t layer, uint32_t expert, uint32_t index, ReadPriority priority);
  uint32_t TakeSlot();
  bool EvictOne(size_t set);
  void Trim(size_t set);
  void Drop(uint32_t index);
  void Await(uint32_t index);
  bool AwaitUnasked(uint32_t index);
  void MakeUsable(Slot& slot);
  uint32_t FindReady() const;

  const TensorStore& store_;
  const ModelConfig& config_;
  BlockReader& reader_;
  ReadMonitor& monitor_;
  const ContainerCheck* check_ = nullptr;
  size_t num_experts_;
  std::vector<size_t> set_of_layer_;
  std::vector<size_t> capacity_;                  // [set]
  std::vector<std::vector<uint32_t>> residents_;  // [set] -> slots that hold its experts
  Reservation tables_;
  Buffer table_;
  std::span<Entry> entries_;
  Reservation slot_tables_;
  Buffer memory_;
  Buffer scratch_;  // coded scales of the expert that is being decoded
  std::deque<Slot> slots_;
  std::vector<uint32_t> free_;

  size_t layer_ = 0;  // of the request being served
  size_t set_ = 0;
  size_t num_outstanding_ = 0;     // its experts that are not yet handed out
  std::vector<uint32_t> waiting_;  // its experts that have no slot yet, last first
  std::vector<uint32_t> clock_;    // [set] -> its requests so far
  size_t early_layer_ = kNoLayer;  // whose experts are read early
  uint32_t next_early_ = 0;        // the first of them that was not tried yet
  uint64_t read_bytes_ = 0;
  uint64_t num_requests_ = 0;
  uint64_t num_hits_ = 0;
  std::vector<ReadRequest> requests_;  // scratch of Read
};

}  // namespace thimble
