// Any bytes, taken as a stored session of a small model: either an Error and an empty session, or a
// session that is saved as the same bytes again.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "engine/session_file.h"
#include "format/checksum.h"
#include "support/checkpoint_builder.h"
#include "support/file_edit.h"
#include "support/temp_dir.h"

namespace {

using namespace thimble;

// docs/SESSIONS.md, the head of the file.
constexpr size_t kFingerprintOffset = 16;
constexpr size_t kHeadChecksumOffset = 72;
constexpr size_t kHeadBytes = 80;

struct Model {
  Model() {
    CheckpointBuilder::KimiK3().Write(dir.path());
    directory = std::make_unique<ModelDirectory>(ModelDirectory::Open(dir.path()));
    EngineOptions options;
    options.memory_bytes = 4'000'000'000;  // a sanitized process is large
    options.context = 32;
    options.num_threads = 1;
    engine = Engine::Open(*directory, options);
    session = std::make_unique<Session>(*engine);
  }

  TempDir dir;
  std::unique_ptr<ModelDirectory> directory;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Session> session;
};

void Put(uint64_t value, size_t offset, std::string* bytes) {
  std::memcpy(bytes->data() + offset, &value, sizeof(value));
}

// A fuzzer cannot guess checksums, nor the model's fingerprint.
std::string Stamped(std::string bytes, uint64_t fingerprint) {
  if (bytes.size() < kHeadBytes + sizeof(uint64_t)) return bytes;
  const std::string_view all = bytes;
  Put(fingerprint, kFingerprintOffset, &bytes);
  Put(ChecksumOf(all.substr(0, kHeadChecksumOffset)), kHeadChecksumOffset, &bytes);
  const size_t end = bytes.size() - sizeof(uint64_t);
  Put(ChecksumOf(all.substr(0, end)), end, &bytes);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Model model;
  const std::string bytes =
      Stamped({reinterpret_cast<const char*>(data), size}, model.engine->Fingerprint());
  const auto path = model.dir / "session";
  WriteText(path, bytes);
  try {
    const SessionNotes notes = SessionFile::Load(path, *model.session);
    SessionFile::Save(path, *model.session, notes);
    if (ReadBytes(path) != bytes) __builtin_trap();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel && error.code() != ErrorCode::kUsage) __builtin_trap();
    if (model.session->num_tokens() != 0 || model.session->poisoned()) __builtin_trap();
  }
  return 0;
}
