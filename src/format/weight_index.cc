#include "format/weight_index.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "format/json_events.h"
#include "format/model_files.h"
#include "io/file.h"
#include "io/foreign_file.h"

namespace thimble {
namespace {

constexpr uint16_t kNoShard = std::numeric_limits<uint16_t>::max();
// K3's index has 60 MB, and so the text of one ten times finer fits.
constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 30;

// Reads {"metadata": {"total_size": N, ..}, "weight_map": {tensor: shard, ..}, ..}.
class IndexHandler : public JsonHandler {
 public:
  IndexHandler(const std::string& source, const TensorNames& names)
      : source_(source), names_(names) {
    index_.shard_of.assign(names.size(), kNoShard);
  }

  void Open(char bracket) override {
    ++depth_;
    const bool in_map = depth_ >= 2 && section_ == "weight_map";
    if ((depth_ == 1 && bracket != '{') || (in_map && (depth_ > 2 || bracket != '{'))) FailForm();
  }

  void Close() override { --depth_; }

  void Key(std::string_view key) override {
    if (depth_ == 1) {
      section_ = key;
      if (!sections_.emplace(key).second) Fail("the field '" + section_ + "' is given twice");
    } else if (depth_ == 2) {
      key_ = key;
    }
  }

  void Scalar(const JsonScalar& scalar) override {
    if (depth_ == 2 && section_ == "weight_map") {
      if (scalar.kind != JsonScalar::Kind::kString) {
        Fail("tensor '" + key_ + "': expected the name of a shard, found something else");
      }
      AddTensor(scalar.text);
    } else if (depth_ == 2 && section_ == "metadata" && key_ == "total_size") {
      index_.total_size = scalar.number;
    } else if (depth_ == 0 || (depth_ == 1 && section_ == "weight_map")) {
      FailForm();
    }
  }

  WeightIndex Take() {
    if (!sections_.contains("weight_map")) FailForm();
    for (size_t slot = 0; slot < names_.size(); ++slot) {
      if (index_.shard_of[slot] == kNoShard) {
        Fail("the tensor '" + names_.NameOf(slot) +
             "', which config.json calls for, is not named; the two files must be of one model");
      }
    }
    for (const auto& [name, id] : shards_) index_.shards.push_back(name);
    return std::move(index_);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorCode::kBadModel, source_ + ": " + what + "; download it again");
  }
  [[noreturn]] void FailForm() const {
    Fail("expected an object with a 'weight_map' of tensor names to shard names");
  }

  void AddTensor(std::string_view shard) {
    ++index_.num_tensors;
    const TensorNames::Place place = names_.Find(key_);
    if (place.kind == TensorNames::Kind::kUnknown) {
      Fail("names the tensor '" + key_ +
           "', which config.json does not call for; the two files must be of one model");
    }
    uint16_t& id = ShardId(shard);
    if (place.kind == TensorNames::Kind::kIgnored) {
      if (!ignored_.insert(key_).second) FailTwice();
      return;
    }
    if (index_.shard_of[place.slot] != kNoShard) FailTwice();
    if (id == kNoShard) id = AddTextShard(shard);
    index_.shard_of[place.slot] = id;
  }

  [[noreturn]] void FailTwice() const { Fail("names the tensor '" + key_ + "' twice"); }

  // The id of a shard, kNoShard until it is known to hold a tensor of the text model.
  uint16_t& ShardId(std::string_view name) {
    if (last_ == nullptr || last_->first != name) {
      auto found = shards_.find(name);
      if (found == shards_.end()) {
        CheckShardName(name);
        found = shards_.emplace(name, kNoShard).first;
      }
      last_ = &*found;
    }
    return last_->second;
  }

  void CheckShardName(std::string_view name) const {
    const bool plain = !name.empty() && name[0] != '.' &&
                       name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
    if (!plain) {
      Fail("tensor '" + key_ + "': expected a plain file name of a shard, found '" +
           std::string(name) + "'");
    }
  }

  uint16_t AddTextShard(std::string_view name) {
    if (index_.text_shards.size() == kNoShard) Fail("names more than 65535 shards");
    index_.text_shards.emplace_back(name);
    return static_cast<uint16_t>(index_.text_shards.size() - 1);
  }

  const std::string& source_;
  const TensorNames& names_;
  WeightIndex index_;
  std::map<std::string, uint16_t, std::less<>> shards_;
  std::pair<const std::string, uint16_t>* last_ = nullptr;  // neighbours mostly share a shard
  std::set<std::string> ignored_;
  std::set<std::string, std::less<>> sections_;
  std::string section_;
  std::string key_;
  size_t depth_ = 0;
};

}  // namespace

WeightIndex ReadWeightIndex(const std::filesystem::path& path, const TensorNames& names) {
  const File file = File::Open(path);
  RefuseForeign(file);
  const std::string source = path.string();
  if (file.size() > kMaxIndexBytes) {
    throw Error(ErrorCode::kBadModel, source + ": expected an index of at most 1 GiB, found " +
                                          std::to_string(file.size()) + " bytes");
  }
  IndexHandler handler(source, names);
  ParseJson(file, handler);
  return handler.Take();
}

WeightIndex LoadWeightIndex(const std::filesystem::path& dir, const TensorNames& names) {
  if (FileExists(dir / kIndexFile)) return ReadWeightIndex(dir / kIndexFile, names);
  if (!FileExists(dir / kSingleShardFile)) {
    throw Error(ErrorCode::kBadModel,
                fmt::format("{}: expected {} or {}, found neither; {}", dir.string(), kIndexFile,
                            kSingleShardFile, MissingFilesRemedy(dir)));
  }
  WeightIndex index;
  index.text_shards = {kSingleShardFile};
  index.shards = index.text_shards;
  index.shard_of.assign(names.size(), 0);
  return index;
}

}  // namespace thimble
