#include "residency/trunk_stream.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"
#include "codec/coded_bf16.h"

namespace thimble {
namespace {

// Embedding rows that are in memory at once.
constexpr size_t kEmbeddingRows = 32;
// Pinned blocks that are on their way at once, the first time.
constexpr size_t kPinnedAhead = 4;

// Room for one embedding row, wherever it begins.
uint64_t EmbeddingRoom(const ModelConfig& config) {
  constexpr size_t kMostBytesPerElement = 4;
  return RoundUp<uint64_t>(config.hidden_size * kMostBytesPerElement, BlockReader::kAlignment) +
         BlockReader::kAlignment;
}

}  // namespace

uint64_t TrunkStream::EmbeddingBytes(const ModelConfig& config) {
  return kEmbeddingRows * EmbeddingRoom(config);
}

TrunkStream::TrunkStream(const ModelConfig& config, const TensorStore& store,
                         TrunkSchedule schedule, const TrunkMemory& memory, const Kernels& kernels,
                         BlockReader& reader, ReadMonitor& monitor, MemoryBudget& budget)
    : config_(config),
      store_(store),
      embedding_(store.Global(TensorRole::kEmbedding)),
      schedule_(std::move(schedule)),
      kernels_(kernels),
      reader_(reader),
      monitor_(monitor),
      slot_of_(schedule_.blocks.size(), kNoSlot) {
  static_assert(sizeof(PinnedBlock) + sizeof(size_t) <= TrunkSchedule::kBlockStateBytes);
  tables_ = budget.Reserve("trunk schedule", schedule_.TableBytes());
  embedding_buffer_ = Buffer(budget, "embedding rows", EmbeddingBytes(config));
  pinned_buffer_ = Buffer(budget, "pinned trunk", std::min(memory.pinned_bytes, schedule_.bytes));
  ring_buffer_ = Buffer(budget, "trunk ring", memory.ring_slots * schedule_.max_block_bytes);
  for (size_t i = 0; i < schedule_.blocks.size(); ++i) pinned_.emplace_back(monitor_);
  ChoosePinned(pinned_buffer_.bytes());
  for (size_t i = 0; i < memory.ring_slots; ++i) {
    slots_.emplace_back(monitor_);
    slots_.back().data = ring_buffer_.data() + i * schedule_.max_block_bytes;
  }
}

TrunkStream::~TrunkStream() {
  monitor_.Await([this] { return Idle(); });
}

bool TrunkStream::Idle() const {
  const auto done = [](const auto& part) { return part.batch.done(); };
  return std::all_of(slots_.begin(), slots_.end(), done) &&
         std::all_of(pinned_.begin(), pinned_.end(), done);
}

// Takes block i where the running share of the pinned bytes rises past it, so that pinned and
// streamed blocks alternate in one proportion from the first layer to the last.
void TrunkStream::ChoosePinned(uint64_t bytes) {
  if (schedule_.bytes == 0) return;
  const double share = static_cast<double>(bytes) / static_cast<double>(schedule_.bytes);
  double owed = 0;
  uint64_t used = 0;
  for (size_t block = 0; block < pinned_.size(); ++block) {
    const uint64_t size = schedule_.blocks[block].bytes;
    owed += share * static_cast<double>(size);
    const bool due = share >= 1.0 || owed >= static_cast<double>(size) * 0.5;
    if (!due || used + size > bytes) continue;
    pinned_[block].data = pinned_buffer_.data() + used;
    used += size;
    owed -= static_cast<double>(size);
  }
}

void TrunkStream::BeginSweep(bool with_head) {
  for (const Slot& slot : slots_) THIMBLE_CHECK(slot.leases == 0);
  if (in_sweep_) Reset();  // the last sweep broke off
  if (!read_wrapped_) read_block_ = 0;
  read_wrapped_ = false;
  with_head_ = with_head;
  in_sweep_ = true;
  entered_ = false;
  next_piece_ = 0;
  current_block_ = 0;
  ReadAhead();
  ReadPinnedAhead(0, EndBlock());
}

// Forgets what the ring holds, and every read error with it.
void TrunkStream::Reset() {
  monitor_.Await([this] { return Idle(); });
  const auto forget_error = [](ReadBatch& batch) {
    try {
      batch.Await();
      return false;
    } catch (const Error&) {
      return true;
    }
  };
  for (Slot& slot : slots_) {
    forget_error(slot.batch);
    slot.in_use = false;
    slot.passed = false;
  }
  for (PinnedBlock& block : pinned_) {
    if (forget_error(block.batch)) block.requested = false;
  }
  std::fill(slot_of_.begin(), slot_of_.end(), kNoSlot);
  read_wrapped_ = false;
}

bool TrunkStream::AtBlockEnd() const {
  const TrunkBlock& block = schedule_.blocks[current_block_];
  return next_piece_ == block.first_piece + block.num_pieces;
}

Lease<WeightMatrix> TrunkStream::Acquire(const TensorAddress& tensor, size_t first_row) {
  THIMBLE_CHECK(in_sweep_);
  if (!entered_ || AtBlockEnd()) EnterBlock(entered_ ? current_block_ + 1 : 0);
  const TrunkPiece& piece = schedule_.pieces[next_piece_++];
  THIMBLE_CHECK(piece.tensor == tensor && piece.first_row == first_row);
  const bool sweep_ends = AtBlockEnd() && current_block_ + 1 == EndBlock();
  if (sweep_ends) in_sweep_ = false;

  WeightMatrix rows = piece.rows;
  const std::byte* pinned = pinned_[current_block_].data;
  const size_t index = slot_of_[current_block_];
  const std::byte* block = pinned != nullptr ? pinned : slots_[index].data;
  rows.data = reinterpret_cast<const uint8_t*>(block + piece.data_offset);
  if (rows.format == WeightFormat::kCodedBF16) CheckCoded(piece, rows.data);
  if (pinned != nullptr) return {rows, nullptr, 0};
  Slot& slot = slots_[index];
  ++slot.leases;
  if (sweep_ends) slot.passed = true;
  return {rows, this, index};
}

// What a damaged file says of itself must not lead the kernels out of their memory.
void TrunkStream::CheckCoded(const TrunkPiece& piece, const uint8_t* data) const {
  const CodedRows& coded = piece.rows.coded;
  for (size_t row = 0; row < piece.rows.rows; row += coded.group_rows) {
    const size_t group = coded.GroupOf(row);
    const uint64_t start = coded.GroupStart(group);
    if (IsSoundGroup(data + (start - coded.data_offset), coded.group_ends[group] - start,
                     coded.RowsOfGroup(group), piece.rows.cols)) {
      continue;
    }
    const TensorExtent& extent = piece.tensor.layer == kNoLayer
                                     ? store_.Global(piece.tensor.role)
                                     : store_.Layer(piece.tensor.layer, piece.tensor.role);
    throw Error(ErrorCode::kBadModel,
                store_.files()[extent.file].path.string() + " at byte " +
                    std::to_string(extent.offset + start) +
                    ": expected the head of a group of coded rows, found other bytes; `thimble "
                    "verify` tells what is damaged");
  }
}

void TrunkStream::EnterBlock(size_t block) {
  if (entered_ && pinned_[current_block_].data == nullptr) {
    Slot& left = slots_[slot_of_[current_block_]];
    left.passed = true;
    Recycle(left);
  }
  current_block_ = block;
  entered_ = true;
  if (pinned_[block].data != nullptr) {
    ReadPinnedAhead(block, EndBlock());
    AwaitPinned(pinned_[block]);
  } else {
    THIMBLE_CHECK(slot_of_[block] != kNoSlot);
    AwaitSlot(slots_[slot_of_[block]]);
  }
}

void TrunkStream::AwaitSlot(Slot& slot) {
  try {
    slot.batch.Await();
  } catch (const Error&) {
    if (!slot.early) throw;
    Submit(slot.block, slot.data, ReadPriority::kDemand, slot.batch);
    slot.batch.Await();
  }
}

void TrunkStream::Return(uint64_t ticket) noexcept {
  Slot& slot = slots_[ticket];
  --slot.leases;
  Recycle(slot);
}

// Frees a slot that the sweep is done with, which starts the next read.
void TrunkStream::Recycle(Slot& slot) {
  if (slot.leases > 0 || !slot.passed) return;
  slot.in_use = false;
  slot.passed = false;
  slot_of_[slot.block] = kNoSlot;
  ReadAhead();
}

void TrunkStream::AwaitPinned(PinnedBlock& block) {
  try {
    block.batch.Await();
  } catch (const Error&) {
    block.requested = false;  // to be read again, by the next sweep
    throw;
  }
}

void TrunkStream::Preload(const std::function<void(uint64_t)>& on_read) {
  THIMBLE_CHECK(!in_sweep_);
  for (size_t block = 0; block < pinned_.size(); ++block) {
    if (pinned_[block].data == nullptr) continue;
    ReadPinnedAhead(block, pinned_.size());
    AwaitPinned(pinned_[block]);
    on_read(schedule_.blocks[block].read_bytes);
  }
}

uint64_t TrunkStream::PinnedTensorBytes() const {
  uint64_t bytes = 0;
  for (size_t block = 0; block < pinned_.size(); ++block) {
    if (pinned_[block].data != nullptr) bytes += schedule_.blocks[block].read_bytes;
  }
  return bytes;
}

// Pinned blocks are read in the first sweep, a few ahead of the one in use.
void TrunkStream::ReadPinnedAhead(size_t first, size_t end) {
  size_t ahead = 0;
  for (size_t block = first; block < end && ahead < kPinnedAhead; ++block) {
    PinnedBlock& pinned = pinned_[block];
    if (pinned.data == nullptr) continue;
    ++ahead;
    if (pinned.requested) continue;
    pinned.requested = true;
    Submit(block, pinned.data, ReadPriority::kAhead, pinned.batch);
  }
}

void TrunkStream::ReadAhead() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.in_use) continue;
    size_t block = 0;
    if (!NextToRead(&block)) return;
    slot.block = block;
    slot.in_use = true;
    slot.early = read_wrapped_;
    slot_of_[block] = i;
    Submit(block, slot.data, ReadPriority::kAhead, slot.batch);
  }
}

// The next block that has to come through the ring. None where it would be one of the next sweep's
// that this sweep still holds, or its head, which that sweep may not want.
bool TrunkStream::NextToRead(size_t* block) {
  while (true) {
    if (read_block_ >= (read_wrapped_ ? schedule_.head_block : EndBlock())) {
      if (read_wrapped_) return false;
      read_wrapped_ = true;
      read_block_ = 0;
      continue;
    }
    if (pinned_[read_block_].data == nullptr) {
      if (slot_of_[read_block_] != kNoSlot) return false;
      *block = read_block_++;
      return true;
    }
    ++read_block_;
  }
}

void TrunkStream::Submit(size_t block, std::byte* data, ReadPriority priority, ReadBatch& batch) {
  const TrunkBlock& parts = schedule_.blocks[block];
  requests_.clear();
  for (size_t i = 0; i < parts.num_reads; ++i) {
    const TrunkRead& read = schedule_.reads[parts.first_read + i];
    requests_.push_back(read.request);
    requests_.back().out = data + read.block_offset;
  }
  read_bytes_ += parts.read_bytes;
  reader_.Submit(requests_, priority, batch);
}

void TrunkStream::ReadEmbeddings(std::span<const uint32_t> tokens, float* out) {
  const uint64_t room = EmbeddingRoom(config_);
  ReadBatch batch(monitor_);
  for (size_t first = 0; first < tokens.size(); first += kEmbeddingRows) {
    const size_t count = std::min(kEmbeddingRows, tokens.size() - first);
    const auto offset = [&](size_t i) {
      return embedding_.offset + tokens[first + i] * embedding_.RowBytes();
    };
    requests_.clear();
    for (size_t i = 0; i < count; ++i) {
      requests_.push_back(AlignedRead(embedding_.file, offset(i), embedding_.RowBytes()));
      requests_.back().out = embedding_buffer_.data() + i * room;
    }
    reader_.Submit(requests_, ReadPriority::kDemand, batch);
    batch.Await();
    read_bytes_ += count * embedding_.RowBytes();
    for (size_t i = 0; i < count; ++i) {
      const std::byte* row = requests_[i].out + (offset(i) - requests_[i].offset);
      kernels_.decode({TrunkFormat(embedding_), 1, config_.hidden_size,
                       reinterpret_cast<const uint8_t*>(row), nullptr},
                      out + (first + i) * config_.hidden_size);
    }
  }
}

}  // namespace thimble
