#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/grammar.h"

namespace thimble {

/// Where a text stands in a grammar. A state is every way in which the text so far can be read;
/// states and the steps between them are made when first met and kept, so that going on by a byte
/// is usually one look into a table. From every live state the text can be completed.
///
/// A state that more than kMaxReadings readings lead to forgets the rest of them: it then allows
/// less than the grammar, but still only what the grammar allows. Borrows the grammar. One thread
/// at a time.
class GrammarStates {
 public:
  using Id = uint32_t;
  static constexpr Id kDead = 0;
  static constexpr size_t kMaxReadings = 1024;

  explicit GrammarStates(const Grammar& grammar);

  Id start() const { return start_; }
  /// The state after one more symbol; kDead where it cannot follow.
  Id Step(Id state, uint32_t symbol) {
    if (symbol < 256) {
      const Id known = (*states_[state].next)[symbol];
      if (known != kUnknown) return known;
    }
    return Compute(state, symbol);
  }
  /// Whether the text so far is whole. It may still go on.
  bool complete(Id state) const { return states_[state].complete; }
  /// Whether nothing can follow.
  bool ended(Id state) const { return states_[state].tips.empty(); }
  /// The special tokens that may follow, as symbols.
  std::vector<uint32_t> Specials(Id state) const;

  /// Whether so much is kept that Compact should be called.
  bool full() const { return states_.size() > max_states_ || frames_.size() > max_frames_; }
  /// Forgets all states but `live` ones, which get new numbers, and the start, whose number is
  /// lost.
  void Compact(std::span<Id> live);

  /// The most that is kept, roughly: what full() stands for.
  static constexpr size_t kMaxBytes = size_t{6} << 20;

 private:
  static constexpr Id kUnknown = UINT32_MAX;
  static constexpr uint32_t kRoot = UINT32_MAX;
  static constexpr size_t kUsualStates = 2048;
  static constexpr size_t kUsualFrames = 30'000;

  // A node that has begun; `parent` is the frame of the one around it.
  struct Frame {
    uint32_t node = 0;
    uint32_t position = 0;  // in a literal, automaton or sequence; the next member
    uint32_t count = 0;     // of code points, members or items
    uint32_t parent = kRoot;
    uint64_t written = 0;  // members that are there, where others need them
    bool operator==(const Frame&) const = default;
  };
  struct FrameHash {
    size_t operator()(const Frame& frame) const;
  };
  struct TipsHash {
    size_t operator()(const std::vector<uint32_t>& tips) const;
  };
  using Table = std::array<Id, 256>;
  struct State {
    std::vector<uint32_t> tips;  // frames that await a symbol, ascending
    bool complete = false;
    std::unique_ptr<Table> next;
  };
  struct Task {
    bool enters = false;  // `node` below the frame; otherwise what the frame awaited has ended
    uint32_t node = 0;
    uint32_t frame = kRoot;
  };

  Id Compute(Id state, uint32_t symbol);
  uint32_t Intern(const Frame& frame);
  Id InternState();
  void Advance(uint32_t tip, uint32_t symbol);
  void AdvanceText(const Frame& frame, uint32_t symbol);
  void Run();
  void Enter(uint32_t index, uint32_t parent);
  void Leave(uint32_t index);
  void NextMember(uint32_t index);
  void NextItem(uint32_t index);
  void PutMember(Frame frame, const Grammar::Member& member, uint32_t next);
  bool Fits(uint32_t node, uint32_t depth) const;
  bool MeetsNeeds(const Grammar::Members& members, uint64_t written, uint32_t next,
                  uint32_t depth) const;
  uint32_t Depth(uint32_t frame) const { return frame == kRoot ? 0 : depths_[frame]; }
  void AddTip(const Frame& frame) { tips_.push_back(Intern(frame)); }

  const Grammar& grammar_;
  std::vector<Frame> frames_;
  std::vector<uint32_t> depths_;  // objects and arrays around and including each frame
  std::unordered_map<Frame, uint32_t, FrameHash> frame_ids_;
  std::vector<State> states_;
  std::unordered_map<std::vector<uint32_t>, Id, TipsHash> state_ids_;  // tips, then completeness
  size_t max_states_ = kUsualStates;
  size_t max_frames_ = kUsualFrames;
  Id start_ = kDead;
  // The state that is being made.
  std::vector<uint32_t> tips_;
  bool complete_ = false;
  std::vector<Task> tasks_;
  std::unordered_set<uint64_t> entered_;
};

}  // namespace thimble
