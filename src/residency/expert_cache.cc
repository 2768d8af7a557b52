#include "residency/expert_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "codec/coded_scales.h"
#include "residency/expert_layout.h"

namespace thimble {
namespace {

size_t NumSets(const ModelConfig& config) {
  return static_cast<size_t>(std::count_if(
      config.layers.begin(), config.layers.end(),
      [](const LayerSpec& spec) { return spec.feed_forward == FeedForwardKind::kMoe; }));
}

}  // namespace

uint64_t ExpertCache::SlotBytes(const ModelConfig& config, const TensorStore& store) {
  uint64_t most = 0;
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    if (config.layers[layer].feed_forward != FeedForwardKind::kMoe) continue;
    for (size_t expert = 0; expert < config.moe.num_experts; ++expert) {
      most = std::max(most, LayOutExpert(store.Expert(layer, expert)).bytes);
    }
  }
  return most;
}

uint64_t ExpertCache::SlotTableBytes() { return sizeof(Slot) + sizeof(uint32_t); }

// An entry for each expert, and a place in its set's list of slots.
uint64_t ExpertCache::TableBytes(const ModelConfig& config) {
  return NumSets(config) * config.moe.num_experts * (sizeof(Entry) + sizeof(uint32_t));
}

ExpertCache::ExpertCache(const ModelConfig& config, const TensorStore& store,
                         const ExpertMemory& memory, BlockReader& reader, ReadMonitor& monitor,
                         MemoryBudget& budget)
    : store_(store),
      config_(config),
      reader_(reader),
      monitor_(monitor),
      num_experts_(config.moe.num_experts),
      set_of_layer_(config.num_layers()) {
  size_t num_sets = 0;
  for (size_t layer = 0; layer < config.num_layers(); ++layer) {
    set_of_layer_[layer] = num_sets;
    if (config.layers[layer].feed_forward == FeedForwardKind::kMoe) ++num_sets;
  }
  for (size_t set = 0; set < num_sets; ++set) {
    const size_t rest = set < memory.cached_slots % num_sets ? 1 : 0;
    capacity_.push_back(memory.cached_slots / num_sets + rest);
  }
  residents_.resize(num_sets);
  clock_.resize(num_sets);

  const uint64_t entry_bytes = num_sets * num_experts_ * sizeof(Entry);
  tables_ = budget.Reserve("expert table", TableBytes(config) - entry_bytes);
  table_ = Buffer(budget, "expert table", entry_bytes);
  entries_ = {reinterpret_cast<Entry*>(table_.data()), num_sets * num_experts_};
  std::fill(entries_.begin(), entries_.end(), Entry{});

  THIMBLE_CHECK(memory.window_slots >= 1);
  const size_t num_slots = num_sets == 0 ? 0 : memory.window_slots + memory.cached_slots;
  const uint64_t slot_bytes = SlotBytes(config, store);
  slot_tables_ = budget.Reserve("expert slots", num_slots * SlotTableBytes());
  memory_ = Buffer(budget, "expert slots", num_slots * slot_bytes);
  scratch_ = Buffer(budget, "expert slots", store.MostCodedScaleBytes());
  free_.reserve(num_slots);
  for (size_t i = num_slots; i-- > 0;) free_.push_back(static_cast<uint32_t>(i));
  for (size_t i = 0; i < num_slots; ++i) {
    slots_.emplace_back(monitor_);
    slots_.back().data = memory_.data() + i * slot_bytes;
  }
  for (auto& residents : residents_) residents.reserve(std::min(num_slots, num_experts_));
  waiting_.reserve(num_experts_);
}

ExpertCache::~ExpertCache() {
  monitor_.Await([this] {
    return std::all_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.batch.done(); });
  });
}

void ExpertCache::Request(size_t layer, std::span<const uint32_t> experts) {
  Forget();
  layer_ = layer;
  set_ = set_of_layer_[layer];
  WithdrawEarly();
  if (early_layer_ != layer) SettleEarly();
  num_outstanding_ = experts.size();
  const uint32_t now = ++clock_[set_];
  for (size_t i = experts.size(); i-- > 0;) {
    Entry& entry = EntryOf(set_, experts[i]);
    entry.score = ScoreNow(set_, entry) + 1;
    entry.last_request = now;
    ++num_requests_;
    if (entry.slot != kNoSlot) {
      Slot& slot = slots_[entry.slot];
      if (!std::exchange(slot.early, false)) ++num_hits_;
      slot.wanted = true;
    } else {
      waiting_.push_back(experts[i]);
    }
  }
  StartReads();
  SettleEarly();
  StartReads();
  Announce(layer, experts.size());
  ReadEarly();
}

void ExpertCache::Announce(size_t layer, size_t num_requested) {
  if (num_requested * 2 < num_experts_) return;
  const auto& layers = config_.layers;
  const auto next = std::find_if(
      layers.begin() + static_cast<ptrdiff_t>(layer) + 1, layers.end(),
      [](const LayerSpec& spec) { return spec.feed_forward == FeedForwardKind::kMoe; });
  if (next == layers.end()) return;
  early_layer_ = static_cast<size_t>(next - layers.begin());
  next_early_ = 0;
}

// Cancels the early reads that have not begun: the actual request is known now.
void ExpertCache::WithdrawEarly() {
  if (early_layer_ == kNoLayer) return;
  const size_t set = set_of_layer_[early_layer_];
  for (const uint32_t index : std::vector<uint32_t>(residents_[set])) {
    Slot& slot = slots_[index];
    if (!slot.early) continue;
    const size_t withdrawn = reader_.Withdraw(slot.batch);
    if (withdrawn == 0) continue;
    const ExpertExtent extent = store_.Expert(early_layer_, slot.view.expert);
    if (withdrawn == LayOutExpert(extent).num_reads) read_bytes_ -= extent.StoredBytes();
    slot.early = false;
    if (AwaitUnasked(index)) Drop(index);
  }
}

// Ends early reading: experts that arrived and are not wanted may be evicted from now on.
void ExpertCache::SettleEarly() {
  if (early_layer_ == kNoLayer) return;
  const size_t set = set_of_layer_[early_layer_];
  for (const uint32_t index : std::vector<uint32_t>(residents_[set])) {
    if (std::exchange(slots_[index].early, false)) AwaitUnasked(index);
  }
  if (early_layer_ != layer_) Trim(set);
  early_layer_ = kNoLayer;
}

// Waits for an expert that nobody requested. False if it could not be read and was dropped; a later
// request reads it again.
bool ExpertCache::AwaitUnasked(uint32_t index) {
  try {
    slots_[index].batch.Await();
    return true;
  } catch (const Error&) {
    Drop(index);
    return false;
  }
}

float ExpertCache::ScoreNow(size_t set, const Entry& entry) const {
  const auto age = static_cast<float>(clock_[set] - entry.last_request);
  return entry.score * std::exp2(-age / kHalfLifeRequests);
}

// Discards what is left of a request.
void ExpertCache::Forget() {
  waiting_.clear();
  if (residents_.empty()) return;
  for (const uint32_t index : std::vector<uint32_t>(residents_[set_])) {
    Slot& slot = slots_[index];
    if (std::exchange(slot.wanted, false)) AwaitUnasked(index);
  }
  Trim(set_);
}

void ExpertCache::StartReads() {
  while (!waiting_.empty()) {
    const uint32_t slot = TakeSlot();
    if (slot == kNoSlot) return;
    const uint32_t expert = waiting_.back();
    waiting_.pop_back();
    Read(layer_, expert, slot, ReadPriority::kDemand);
    slots_[slot].wanted = true;
  }
}

// Uses free slots only: a kept expert is worth more than an early one.
void ExpertCache::ReadEarly() {
  if (early_layer_ == kNoLayer || !waiting_.empty()) return;
  const size_t set = set_of_layer_[early_layer_];
  for (; next_early_ < num_experts_ && !free_.empty(); ++next_early_) {
    if (EntryOf(set, next_early_).slot != kNoSlot) continue;
    const uint32_t slot = free_.back();
    free_.pop_back();
    Read(early_layer_, next_early_, slot, ReadPriority::kLikely);
    slots_[slot].early = true;
  }
}

void ExpertCache::Read(size_t layer, uint32_t expert, uint32_t index, ReadPriority priority) {
  Slot& slot = slots_[index];
  const ExpertExtent extent = store_.Expert(layer, expert);
  const ExpertLayout layout = LayOutExpert(extent);
  slot.view = ViewExpert(config_, layout, slot.data, expert);
  slot.layer = layer;
  slot.set = set_of_layer_[layer];
  slot.usable = false;
  residents_[slot.set].push_back(index);
  EntryOf(slot.set, expert).slot = index;
  requests_.clear();
  for (size_t i = 0; i < layout.num_reads; ++i) {
    requests_.push_back(layout.reads[i]);
    requests_.back().out = slot.data + layout.read_offset[i];
  }
  read_bytes_ += extent.StoredBytes();
  reader_.Submit(requests_, priority, slot.batch);
}

// A free slot, or one of this layer whose expert is not needed now; kNoSlot if there is none.
uint32_t ExpertCache::TakeSlot() {
  if (free_.empty() && !EvictOne(set_)) return kNoSlot;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

// Evicts the least requested expert of `set` that is not wanted, lent or being read.
bool ExpertCache::EvictOne(size_t set) {
  uint32_t least = kNoSlot;
  float least_score = 0;
  for (const uint32_t index : residents_[set]) {
    const Slot& slot = slots_[index];
    if (slot.wanted || slot.leased || slot.early) continue;
    const float score = ScoreNow(set, EntryOf(set, slot.view.expert));
    if (least == kNoSlot || score < least_score) {
      least = index;
      least_score = score;
    }
  }
  if (least == kNoSlot) return false;
  Drop(least);
  return true;
}

void ExpertCache::Trim(size_t set) {
  while (residents_[set].size() > capacity_[set] && EvictOne(set)) {
  }
}

void ExpertCache::Drop(uint32_t index) {
  Slot& slot = slots_[index];
  auto& residents = residents_[slot.set];
  residents.erase(std::find(residents.begin(), residents.end(), index));
  EntryOf(slot.set, slot.view.expert).slot = kNoSlot;
  free_.push_back(index);
}

uint32_t ExpertCache::FindReady() const {
  for (const uint32_t index : residents_[set_]) {
    if (slots_[index].wanted && slots_[index].batch.done()) return index;
  }
  return kNoSlot;
}

Lease<ExpertView> ExpertCache::Next() {
  uint32_t index = kNoSlot;
  monitor_.Await([&] { return (index = FindReady()) != kNoSlot; });
  Slot& slot = slots_[index];
  --num_outstanding_;
  slot.wanted = false;
  Await(index);
  slot.leased = true;
  return {slot.view, this, index};
}

// Waits for the expert of a slot, and drops it if it cannot be read or fails its checksum.
void ExpertCache::Await(uint32_t index) {
  Slot& slot = slots_[index];
  try {
    slot.batch.Await();
    if (!slot.usable) MakeUsable(slot);
  } catch (const Error&) {
    Drop(index);
    throw;
  }
}

// Work done once for each expert that comes from the drive.
void ExpertCache::MakeUsable(Slot& slot) {
  const ExpertExtent extent = store_.Expert(slot.layer, slot.view.expert);
  const auto* data = reinterpret_cast<const uint8_t*>(slot.data);
  if (check_ != nullptr) {
    // In a container an expert is one read, its first tensor the gate.
    const std::byte* first = slot.data + (slot.view.gate.data - data);
    check_->CheckExpert(slot.layer, slot.view.expert, {first, extent.StoredBytes()});
  }
  slot.usable = true;
  if (extent.coded_scale_bytes == 0) return;
  auto* scales = reinterpret_cast<uint8_t*>(slot.data) + (slot.view.gate.scales - data);
  auto* coded = reinterpret_cast<uint8_t*>(scratch_.data());
  std::memcpy(coded, scales, extent.coded_scale_bytes);
  if (DecodeScales({coded, extent.coded_scale_bytes}, {scales, extent.ScaleBytes()})) return;
  const ExpertPiece& place = extent[0];
  throw Error(ErrorCode::kBadModel,
              store_.files()[place.file].path.string() + " is damaged: layer " +
                  std::to_string(slot.layer) + ", expert " + std::to_string(slot.view.expert) +
                  " (" + std::to_string(extent.StoredBytes()) + " bytes at byte " +
                  std::to_string(place.offset) +
                  "): its coded scales cannot be decoded; see 'thimble verify', then copy the file "
                  "again, or pack the model again");
}

void ExpertCache::Preload(const std::function<void(uint64_t)>& on_read) {
  for (layer_ = 0; layer_ < config_.num_layers(); ++layer_) {
    if (config_.layers[layer_].feed_forward != FeedForwardKind::kMoe) continue;
    set_ = set_of_layer_[layer_];
    const size_t count = std::min(capacity_[set_], num_experts_);
    for (uint32_t expert = 0; expert < count; ++expert) {
      const uint32_t slot = TakeSlot();
      THIMBLE_CHECK(slot != kNoSlot);
      Read(layer_, expert, slot, ReadPriority::kDemand);
    }
    for (const uint32_t slot : std::vector<uint32_t>(residents_[set_])) {
      Await(slot);
      on_read(store_.Expert(layer_, slots_[slot].view.expert).StoredBytes());
    }
  }
  layer_ = 0;
  set_ = 0;
}

uint64_t ExpertCache::CachedExpertBytes() const {
  uint64_t bytes = 0;
  for (size_t layer = 0; layer < config_.num_layers(); ++layer) {
    if (config_.layers[layer].feed_forward != FeedForwardKind::kMoe) continue;
    const size_t count = std::min(capacity_[set_of_layer_[layer]], num_experts_);
    for (size_t expert = 0; expert < count; ++expert) {
      bytes += store_.Expert(layer, expert).StoredBytes();
    }
  }
  return bytes;
}

void ExpertCache::Return(uint64_t ticket) noexcept {
  Slot& slot = slots_[ticket];
  slot.leased = false;
  // Not before all of a request are handed out: until then those yet to come cannot be dropped, and
  // the one just returned would be, however often it is asked for.
  if (slot.set != set_ || num_outstanding_ == 0) Trim(slot.set);
  StartReads();
  ReadEarly();
}

}  // namespace thimble
