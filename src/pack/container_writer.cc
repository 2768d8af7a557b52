#include "pack/container_writer.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "base/byte_size.h"
#include "base/checked_math.h"
#include "base/error.h"
#include "format/checksum.h"
#include "format/model_files.h"
#include "io/file.h"
#include "io/foreign_file.h"
#include "memory/buffer.h"
#include "memory/memory_budget.h"
#include "pack/extent_encoder.h"
#include "pack/journal.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{64} << 20;

std::string PlaceOf(const std::filesystem::path& path, uint64_t offset) {
  return path.string() + " at byte " + std::to_string(offset);
}

void MakeDirectory(const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (!error) return;
  throw Error(ErrorCode::kRuntime, "cannot make the directory " + dir.string() + ": " +
                                       error.message() + "; choose another one with -o");
}

// Removes the directories it made, unless the work in them began: what is refused leaves nothing.
class MadeDirectories {
 public:
  MadeDirectories() = default;
  MadeDirectories(const MadeDirectories&) = delete;
  MadeDirectories& operator=(const MadeDirectories&) = delete;
  ~MadeDirectories() {
    // The innermost first; one in which something lies stays.
    // NOLINTNEXTLINE(modernize-loop-convert): clang 14 cannot read libstdc++'s reversed views
    for (auto made = made_.rbegin(); made != made_.rend(); ++made) {
      std::error_code ignored;
      std::filesystem::remove(*made, ignored);
    }
  }

  void Make(const std::filesystem::path& dir) {
    std::vector<std::filesystem::path> missing;
    std::error_code error;
    for (auto at = dir.lexically_normal(); !at.empty() && !std::filesystem::exists(at, error);
         at = at.parent_path()) {
      if (at.has_filename()) missing.push_back(at);
    }
    made_.insert(made_.end(), missing.rbegin(), missing.rend());
    MakeDirectory(dir);
  }

  void Keep() { made_.clear(); }

 private:
  std::vector<std::filesystem::path> made_;
};

// A journal that was being started when the process died is no content.
bool IsEmptyDirectory(const std::filesystem::path& dir) {
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (name != "lost+found" && name != PartialPath(kJournalFile)) return false;
  }
  return true;
}

void CheckEmpty(const std::filesystem::path& dir) {
  if (IsEmptyDirectory(dir)) return;
  throw Error(ErrorCode::kUsage,
              dir.string() +
                  ": expected an empty directory, or an unfinished container of the "
                  "same model, found other files; choose another one with -o");
}

// The end of a file that grows, through a buffer of aligned blocks: what is written need not be
// aligned, what reaches the file is.
class BlockTail {
 public:
  explicit BlockTail(Buffer& buffer) : buffer_(buffer) {}

  // Goes on at byte `end` of `file`; the bytes before it are kept.
  void Start(DiskFile& file, uint64_t end) {
    file_ = &file;
    base_ = end / DiskFile::kAlignment * DiskFile::kAlignment;
    filled_ = end - base_;
    if (filled_ > 0) file.ReadAt(base_, DiskFile::kAlignment, buffer_.data());
  }

  uint64_t end() const { return base_ + filled_; }

  // At most `most` bytes of memory for what comes next, at least one.
  std::span<std::byte> Room(uint64_t most) {
    return {buffer_.data() + filled_, std::min<uint64_t>(most, buffer_.bytes() - filled_)};
  }
  // The first `bytes` of that memory are filled.
  void Add(size_t bytes) {
    filled_ += bytes;
    if (filled_ < buffer_.bytes()) return;
    WriteBlocks(filled_);
    base_ += filled_;
    filled_ = 0;
  }
  void PadTo(uint64_t offset) {
    while (end() < offset) {
      const std::span<std::byte> room = Room(offset - end());
      std::memset(room.data(), 0, room.size());
      Add(room.size());
    }
  }
  // Writes what there is, the last block padded with zeros; it will be written again.
  void Flush() {
    const size_t whole = filled_ / DiskFile::kAlignment * DiskFile::kAlignment;
    const size_t rest = filled_ - whole;
    const size_t bytes = whole + (rest > 0 ? DiskFile::kAlignment : 0);
    std::memset(buffer_.data() + filled_, 0, bytes - filled_);
    WriteBlocks(bytes);
    std::memmove(buffer_.data(), buffer_.data() + whole, rest);
    base_ += whole;
    filled_ = rest;
  }

 private:
  void WriteBlocks(size_t bytes) {
    file_->WriteAt(base_, {reinterpret_cast<const char*>(buffer_.data()), bytes});
  }

  Buffer& buffer_;
  DiskFile* file_ = nullptr;
  uint64_t base_ = 0;  // of the buffer, in the file
  size_t filled_ = 0;
};

class Writer {
 public:
  Writer(const std::filesystem::path& dir, ContainerLayout layout, ExtentSource& source,
         const WriteOptions& options, PackObserver* observer)
      : dir_(dir),
        layout_(std::move(layout)),
        identity_(IdentityOf(layout_)),
        source_(source),
        encoder_(layout_.manifest, source),
        options_(options),
        observer_(observer),
        budget_(options.chunk_bytes),
        chunk_(budget_, "chunk", options.chunk_bytes) {
    THIMBLE_CHECK(options.chunk_bytes % DiskFile::kAlignment == 0);
    // Everything is written once and read once.
    total_ = 2 * layout_.TotalBytes();
  }

  PackResult Write(const std::vector<SmallFile>& small_files) {
    const uint64_t plain_bytes = layout_.TotalBytes();
    const WriteOutcome outcome = WriteAll(small_files);
    return {outcome, layout_.TotalBytes(), plain_bytes, layout_.manifest.files.size(),
            std::move(losses_)};
  }

 private:
  WriteOutcome WriteAll(const std::vector<SmallFile>& small_files) {
    MadeDirectories made;
    made.Make(dir_);
    for (const std::string& extra : ExtraDirectories()) made.Make(extra);
    if (IsContainer(dir_)) return CheckSame();
    const bool is_new = !FileExists(dir_ / kJournalFile);
    if (is_new) {
      CheckEmpty(dir_);
      for (const std::string& extra : ExtraDirectories()) CheckEmpty(extra);
      CheckRoom();
    }
    journal_.emplace(dir_ / kJournalFile, identity_, layout_.extents.size());
    made.Keep();
    for (size_t file = 0; file < layout_.manifest.files.size(); ++file) Place(file);
    Step();
    if (!is_new) CheckRoom();
    for (const SmallFile& file : small_files) {
      WriteWhole(dir_ / file.name, file.bytes);
      Step();
    }
    CountSkipped();
    for (size_t file = 0; file < layout_.manifest.files.size(); ++file) WriteFile(file);
    Finish();
    return WriteOutcome::kWritten;
  }

  std::vector<std::string> ExtraDirectories() const {
    const auto& all = layout_.manifest.directories;
    return {all.begin() + 1, all.end()};
  }

  std::filesystem::path PathOf(size_t file) const {
    return ContainerPath(dir_, layout_.manifest, layout_.manifest.files[file]);
  }

  // Tells containers apart: the source, and how it is laid out.
  static std::string IdentityOf(const ContainerLayout& layout) {
    return FormatChecksum(
        ChecksumOf(ManifestText(layout.manifest) + ExtentTableBytes({layout.extents, {}})));
  }

  // Moves the extents of a file together where those that are written turned out smaller than the
  // layout allowed for.
  void Place(size_t file) {
    uint64_t end = 0;
    const auto [first, last] = ExtentsOf(file);
    for (size_t i = first; i < last; ++i) {
      ContainerExtent& extent = layout_.extents[i];
      if (const auto& written = journal_->Find(i)) extent.bytes = written->bytes;
      extent.offset = layout_.uses[i].starts_group ? RoundUp(end, kContainerAlignment) : end;
      end = extent.offset + extent.bytes;
    }
    uint64_t& size = layout_.manifest.files[file].size;
    const uint64_t was = std::exchange(size, RoundUp(end, kContainerAlignment));
    total_ -= 2 * (was - size);
  }

  WriteOutcome CheckSame() {
    const std::filesystem::path path = dir_ / kManifestFile;
    ContainerManifest found = ParseManifest(ReadModelText(path, kMaxManifestBytes), path.string());
    // What only the finished container knows.
    layout_.manifest.table_checksum = found.table_checksum;
    if (found.lossy.size() == layout_.manifest.lossy.size()) {
      for (size_t i = 0; i < found.lossy.size(); ++i) {
        layout_.manifest.lossy[i].relative_error = found.lossy[i].relative_error;
      }
    }
    if (found.files.size() == layout_.manifest.files.size()) {
      for (size_t i = 0; i < found.files.size(); ++i) {
        layout_.manifest.files[i].size = found.files[i].size;
      }
    }
    if (ManifestText(found) != ManifestText(layout_.manifest)) {
      throw Error(ErrorCode::kUsage, dir_.string() +
                                         " holds the container of another model, or one made with "
                                         "other options; choose another directory with -o");
    }
    std::error_code ignored;  // left where the process died after the manifest was in place
    std::filesystem::remove(dir_ / kJournalFile, ignored);
    return WriteOutcome::kAlreadyThere;
  }

  // Bytes of a file that are still to be written.
  uint64_t MissingBytes(size_t file) const {
    const std::filesystem::path path = PathOf(file);
    const uint64_t size = layout_.manifest.files[file].size;
    if (FileExists(path)) return 0;
    std::error_code error;
    const uint64_t there = std::filesystem::file_size(PartialPath(path), error);
    return error ? size : size - std::min(size, there);
  }

  void CheckRoom() const {
    struct Drive {
      std::filesystem::path dir;
      uint64_t needed = 0;
    };
    std::map<dev_t, Drive> drives;
    for (size_t file = 0; file < layout_.manifest.files.size(); ++file) {
      const std::filesystem::path dir = PathOf(file).parent_path();
      struct stat status = {};
      if (::stat(dir.empty() ? "." : dir.c_str(), &status) != 0) {
        throw Error(ErrorCode::kRuntime, "cannot look at " + dir.string() + ": " +
                                             std::strerror(errno) + "; check the drive");
      }
      Drive& drive = drives[status.st_dev];
      if (drive.dir.empty()) drive.dir = dir.empty() ? "." : dir;
      drive.needed += MissingBytes(file);
    }
    for (const auto& [device, drive] : drives) {
      const uint64_t free = options_.free_disk_bytes(drive.dir);
      // The table, the manifest and the small files are nothing beside the weights.
      const uint64_t needed = drive.needed + 64 * kMiB;
      if (drive.needed == 0 || needed <= free) continue;
      throw Error(ErrorCode::kRuntime, "the drive of " + drive.dir.string() + " has " +
                                           FormatBytes(free) + " free, " + FormatBytes(needed) +
                                           " are needed there; make room, or choose another "
                                           "directory with -o");
    }
  }

  // Extents of a file as [first, last).
  std::pair<size_t, size_t> ExtentsOf(size_t file) const {
    const auto first_of = [&](size_t number) {
      const auto at = std::ranges::lower_bound(
          layout_.extents, number, {}, [](const auto& extent) { return size_t{extent.file}; });
      return static_cast<size_t>(at - layout_.extents.begin());
    };
    return {first_of(file), first_of(file + 1)};
  }

  // The first extent of a file that is not there for certain.
  size_t FirstMissing(size_t file, uint64_t partial_bytes) const {
    const auto [first, last] = ExtentsOf(file);
    size_t next = first;
    while (next < last && journal_->Find(next)) ++next;
    if (next == first) return first;
    const ContainerExtent& end = layout_.extents[next - 1];
    return partial_bytes < end.offset + end.bytes ? first : next;
  }

  bool IsDone(size_t file) const {
    const std::filesystem::path path = PathOf(file);
    if (!FileExists(path)) return false;
    const auto [first, last] = ExtentsOf(file);
    for (size_t i = first; i < last; ++i) {
      if (!journal_->Find(i)) FailForeign(path);
    }
    if (File::Open(path).size() != layout_.manifest.files[file].size) FailForeign(path);
    return true;
  }

  [[noreturn]] static void FailForeign(const std::filesystem::path& path) {
    throw Error(ErrorCode::kUsage, path.string() +
                                       " is not of this container, or was changed since; remove "
                                       "it, then run the same command again");
  }

  // Where the writing of a file goes on: after the extents that are there for certain.
  struct Resume {
    size_t extent = 0;
    uint64_t offset = 0;
  };
  Resume ResumeAt(size_t file) const {
    std::error_code none;
    const uint64_t there = std::filesystem::file_size(PartialPath(PathOf(file)), none);
    const size_t next = FirstMissing(file, none ? 0 : there);
    if (next == ExtentsOf(file).first) return {next, 0};
    const ContainerExtent& last = layout_.extents[next - 1];
    return {next, last.offset + last.bytes};
  }

  void CountSkipped() {
    for (size_t file = 0; file < layout_.manifest.files.size(); ++file) {
      const uint64_t size = layout_.manifest.files[file].size;
      skipped_ += IsDone(file) ? 2 * size : ResumeAt(file).offset;
    }
    done_ = skipped_;
  }

  void WriteFile(size_t file) {
    if (IsDone(file)) return;
    const std::filesystem::path path = PathOf(file);
    {
      DiskFile partial(PartialPath(path), DiskFile::Cache::kBypass);
      WriteExtents(file, partial);
      ReadBack(file, partial);
    }
    Publish(path);
    Step();
  }

  void WriteExtents(size_t file, DiskFile& partial) {
    const Resume resume = ResumeAt(file);
    tail_.Start(partial, resume.offset);
    for (size_t i = resume.extent; i < ExtentsOf(file).second; ++i) {
      WriteExtent(i);
      if (unsynced_ >= options_.sync_bytes) Sync(partial);
    }
    const uint64_t written = tail_.end();
    const uint64_t size = layout_.manifest.files[file].size;
    tail_.PadTo(size);
    Sync(partial);
    partial.Truncate(size);
    Advance(size - written);
  }

  void WriteExtent(size_t index) {
    ContainerExtent& extent = layout_.extents[index];
    const uint64_t before = tail_.end();
    tail_.PadTo(extent.offset);
    uint64_t padding = extent.offset - before;
    checksum_.Reset();
    uint64_t bytes = 0;
    while (true) {
      const std::span<std::byte> room = tail_.Room(extent.bytes);
      const size_t count = encoder_.Read(layout_.uses[index], bytes, room);
      if (count == 0) break;
      checksum_.Update(room.data(), count);
      tail_.Add(count);
      bytes += count;
      unsynced_ += count;
      Advance(count + std::exchange(padding, 0));
    }
    THIMBLE_CHECK(bytes <= extent.bytes);
    if (std::exchange(extent.bytes, bytes) != bytes) Place(extent.file);
    pending_.push_back({index, bytes, checksum_.Digest(), source_.Loss()});
  }

  // Data first: what the journal names is on the drive.
  void Sync(DiskFile& partial) {
    tail_.Flush();
    Step();
    partial.Sync();
    journal_->Append(pending_);
    pending_.clear();
    unsynced_ = 0;
    Step();
  }

  void ReadBack(size_t file, const DiskFile& partial) {
    partial.DropCache();
    const uint64_t size = layout_.manifest.files[file].size;
    size_t next = ExtentsOf(file).first;
    checksum_.Reset();
    for (uint64_t at = 0; at < size;) {
      const size_t bytes = std::min<uint64_t>(size - at, chunk_.bytes());
      partial.ReadAt(at, bytes, chunk_.data());
      next = Compare(next, at, {chunk_.data(), bytes}, partial);
      at += bytes;
      Advance(bytes);
    }
  }

  // Compares the extents from `next` on with the bytes at `offset` of their file. Returns the first
  // extent that these bytes do not end.
  size_t Compare(size_t next, uint64_t offset, std::span<const std::byte> bytes,
                 const DiskFile& partial) {
    const uint64_t end = offset + bytes.size();
    const uint32_t file = layout_.extents[next].file;  // the last block of a file ends an extent
    for (; next < layout_.extents.size() && layout_.extents[next].file == file; ++next) {
      const ContainerExtent& extent = layout_.extents[next];
      const uint64_t from = std::max(extent.offset, offset);
      const uint64_t to = std::min(extent.offset + extent.bytes, end);
      if (from < to) checksum_.Update(bytes.data() + (from - offset), to - from);
      if (extent.offset + extent.bytes > end) break;
      if (checksum_.Digest() != journal_->Find(next)->checksum) FailReadBack(next, partial);
      checksum_.Reset();
    }
    return next;
  }

  [[noreturn]] void FailReadBack(size_t index, const DiskFile& partial) const {
    std::error_code ignored;  // then the file is written anew
    std::filesystem::remove(partial.path(), ignored);
    throw Error(ErrorCode::kRuntime,
                PlaceOf(partial.path(), layout_.extents[index].offset) + " (" +
                    Describe(layout_.uses[index], layout_.manifest) +
                    ") reads back other bytes than were written; check the drive, then run the "
                    "same command again");
  }

  // Where the groups of all coded tensors end: each starts with its size.
  std::vector<uint32_t> GroupEnds() const {
    std::vector<uint32_t> ends;
    for (size_t i = 0; i < layout_.extents.size(); ++i) {
      const ContainerTensor* tensor = TensorOf(layout_.uses[i], layout_.manifest);
      if (tensor == nullptr || tensor->group_rows == 0) continue;
      const ContainerExtent& extent = layout_.extents[i];
      const File file = File::Open(PathOf(extent.file));
      uint32_t end = 0;
      for (size_t group = 0; group < tensor->NumGroups(); ++group) {
        uint32_t bytes = 0;
        file.ReadAt(extent.offset + end, sizeof(bytes), &bytes);
        end += bytes;
        ends.push_back(end);
      }
    }
    return ends;
  }

  // Adds up what quantising cost, extent by extent in their order.
  void SumLosses() {
    std::map<uint32_t, LayerLoss> layers;
    LayerLoss head = {"output head", {}, {}};  // alone may be, outside the layers
    LayerLoss all = {"in all", {}, {}};
    for (size_t i = 0; i < layout_.extents.size(); ++i) {
      const WeightLoss& loss = journal_->Find(i)->loss;
      const ExtentUse& use = layout_.uses[i];
      const bool is_expert = use.kind == ExtentUse::Kind::kExpert;
      if (loss.weights == 0) continue;
      const bool is_global = use.kind == ExtentUse::Kind::kGlobal;
      LayerLoss& layer = is_global ? head : layers[use.layer];
      (is_expert ? layer.experts : layer.trunk).Add(loss);
      (is_expert ? all.experts : all.trunk).Add(loss);
    }
    for (LossyPart& part : layout_.manifest.lossy) {
      const WeightLoss& loss = part.part == kLossyExperts ? all.experts : all.trunk;
      // What was quantised in the source already is as far off as it was.
      if (loss.weights > 0) part.relative_error = static_cast<float>(loss.Relative());
    }
    for (auto& [number, layer] : layers) {
      layer.name = "layer " + std::to_string(number);
      losses_.push_back(layer);
    }
    if (head.trunk.weights > 0) losses_.push_back(head);
    if (!losses_.empty()) losses_.push_back(all);
  }

  void Finish() {
    SumLosses();
    for (size_t i = 0; i < layout_.extents.size(); ++i) {
      layout_.extents[i].checksum = journal_->Find(i)->checksum;
    }
    const std::string table = ExtentTableBytes({layout_.extents, GroupEnds()});
    layout_.manifest.table_checksum = ChecksumOf(table);
    WriteWhole(dir_ / kExtentTableFile, table);
    Step();
    WriteWhole(dir_ / kManifestFile, ManifestText(layout_.manifest));
    Step();
    journal_->Remove();
    Step();
  }

  void Advance(uint64_t bytes) {
    done_ += bytes;
    Step();
    if (observer_ == nullptr || observer_->OnProgress(done_, total_, skipped_)) return;
    throw Error(ErrorCode::kInterrupted, "stopped; the same command goes on from here");
  }

  void Step() const {
    if (options_.on_step) options_.on_step();
  }

  const std::filesystem::path dir_;
  ContainerLayout layout_;
  const std::string identity_;
  ExtentSource& source_;
  ExtentEncoder encoder_;
  const WriteOptions& options_;
  PackObserver* observer_;
  MemoryBudget budget_;
  Buffer chunk_;
  BlockTail tail_{chunk_};
  std::optional<Journal> journal_;
  Checksum checksum_;
  std::vector<LayerLoss> losses_;
  std::vector<Journal::Entry> pending_;  // written, perhaps not yet on the drive
  uint64_t unsynced_ = 0;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
  uint64_t skipped_ = 0;
};

}  // namespace

PackResult WriteContainer(const std::filesystem::path& dir, ContainerLayout layout,
                          const std::vector<SmallFile>& small_files, ExtentSource& source,
                          const WriteOptions& options, PackObserver* observer) {
  return Writer(dir, std::move(layout), source, options, observer).Write(small_files);
}

}  // namespace thimble
