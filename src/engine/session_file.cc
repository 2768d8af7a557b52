#include "engine/session_file.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "format/checksum.h"
#include "io/file.h"
#include "io/output_file.h"

namespace thimble {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is little-endian");

constexpr std::array<char, 8> kMagic = {'T', 'H', 'I', 'M', 'S', 'E', 'S', 'S'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kNumPrecisions = 3;  // of the latents: LatentFormat; all else is float32
constexpr uint64_t kMaxTokens = uint64_t{1} << 32;
constexpr uint64_t kMaxNoteBytes = uint64_t{1} << 30;

// The head of the file. What follows, without gaps: tokens, pending tokens, random state, text,
// pieces of the state, logits, and a checksum of all before it.
struct Head {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t precision = 0;
  uint64_t fingerprint = 0;
  uint64_t num_tokens = 0;
  uint64_t num_pending = 0;
  uint64_t random_bytes = 0;
  uint64_t text_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t num_logits = 0;  // 0 or the vocabulary
  uint64_t checksum = 0;    // of what precedes it
};
static_assert(sizeof(Head) == 80);

uint64_t HeadChecksum(const Head& head) {
  return ChecksumOf({reinterpret_cast<const char*>(&head), offsetof(Head, checksum)});
}

[[noreturn]] void Refuse(const std::filesystem::path& path, std::string_view reason) {
  throw Error(ErrorCode::kBadModel, fmt::format("the session in {} {}", path.string(), reason));
}

std::string_view BytesOf(const std::vector<TokenId>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(TokenId)};
}

class Writer {
 public:
  explicit Writer(const std::filesystem::path& path)
      : file_(path, OutputFile::Accept::kFilesOnly) {}
  void Write(std::string_view bytes) {
    file_.Write(bytes);
    checksum_.Update(bytes.data(), bytes.size());
  }
  void Finish() {
    const uint64_t digest = checksum_.Digest();
    Write({reinterpret_cast<const char*>(&digest), sizeof(digest)});
    file_.Commit();
  }

 private:
  OutputFile file_;
  Checksum checksum_;
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(File::Open(path)) {
    if (file_.size() < sizeof(Head)) Refuse(path, "is cut short: its head is missing");
    Read(&head_, sizeof(head_));
    if (head_.magic != kMagic) Refuse(path, "is not a Thimble session");
    if (head_.version != kVersion) {
      Refuse(path, fmt::format("has format {}, expected {}: another version of Thimble wrote it",
                               head_.version, kVersion));
    }
    if (head_.checksum != HeadChecksum(head_))
      Refuse(path, "is damaged: the checksum of its head does not match");
    CheckSize();
  }

  const Head& head() const { return head_; }
  const std::filesystem::path& path() const { return file_.path(); }

  void Read(void* out, size_t bytes) {
    file_.ReadAt(position_, bytes, out);
    checksum_.Update(out, bytes);
    position_ += bytes;
  }
  std::vector<TokenId> ReadTokens(uint64_t count) {
    std::vector<TokenId> tokens(count);
    Read(tokens.data(), count * sizeof(TokenId));
    return tokens;
  }
  std::string ReadText(uint64_t bytes) {
    std::string text(bytes, '\0');
    Read(text.data(), bytes);
    return text;
  }
  void CheckEnd() {
    const uint64_t found = checksum_.Digest();
    uint64_t expected = 0;
    Read(&expected, sizeof(expected));
    if (found != expected) Refuse(path(), "is damaged: its checksum does not match");
  }

 private:
  void CheckSize() const {
    const Head& head = head_;
    if (head.num_tokens > kMaxTokens || head.num_pending > kMaxTokens ||
        head.random_bytes > kMaxNoteBytes || head.text_bytes > kMaxNoteBytes ||
        head.num_logits > kMaxTokens || head.state_bytes > file_.size()) {
      Refuse(path(), "is damaged: the sizes in its head are impossible");
    }
    const uint64_t expected =
        sizeof(Head) + (head.num_tokens + head.num_pending) * sizeof(TokenId) + head.random_bytes +
        head.text_bytes + head.state_bytes + head.num_logits * sizeof(float) + sizeof(uint64_t);
    if (file_.size() != expected) {
      Refuse(path(), fmt::format("has {} bytes, expected {}: it was cut or changed", file_.size(),
                                 expected));
    }
  }

  File file_;
  Checksum checksum_;
  uint64_t position_ = 0;
  Head head_;
};

// Whether the session that `reader` holds is one of this model and fits.
void CheckFits(const Reader& reader, Session& session) {
  const Head& head = reader.head();
  Engine& engine = session.engine();
  const ModelConfig& config = engine.config();
  if (head.fingerprint != engine.Fingerprint()) {
    Refuse(reader.path(),
           fmt::format("belongs to another model (fingerprint {}, expected {})",
                       FormatChecksum(head.fingerprint), FormatChecksum(engine.Fingerprint())));
  }
  if (head.precision >= kNumPrecisions)
    Refuse(reader.path(), "is damaged: it names an unknown latent format");
  const auto precision = static_cast<LatentFormat>(head.precision);
  if (precision != session.latents()) {
    Refuse(reader.path(),
           fmt::format("stores its latents as {}, expected {}; use --kv {}", NameOf(precision),
                       NameOf(session.latents()), NameOf(precision)));
  }
  if (head.num_tokens > session.capacity()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the session in {} holds {} tokens, more than the context of {}; raise "
                            "-c",
                            reader.path().string(), head.num_tokens, session.capacity()));
  }
  if (head.state_bytes != StateCache::PieceBytes(config, head.num_tokens, precision) ||
      (head.num_logits != 0 && head.num_logits != config.vocab_size)) {
    Refuse(reader.path(), "has a state of the wrong size for this model");
  }
}

void CheckIds(const Reader& reader, const std::vector<TokenId>& ids, size_t vocab_size) {
  for (const TokenId id : ids) {
    if (id >= vocab_size)
      Refuse(reader.path(), "is damaged: it contains token ids outside the vocabulary");
  }
}

}  // namespace

void SessionFile::Save(const std::filesystem::path& path, Session& session,
                       const SessionNotes& notes) {
  THIMBLE_CHECK(!session.poisoned());
  const size_t num_tokens = session.num_tokens();
  Engine& engine = session.engine();
  Head head;
  head.precision = static_cast<uint32_t>(session.latents());
  head.fingerprint = engine.Fingerprint();
  head.num_tokens = num_tokens;
  head.num_pending = notes.pending.size();
  head.random_bytes = notes.random_state.size();
  head.text_bytes = notes.text.size();
  head.state_bytes = StateCache::PieceBytes(engine.config(), num_tokens, session.latents());
  head.num_logits = session.has_logits() ? engine.config().vocab_size : 0;
  head.checksum = HeadChecksum(head);
  Writer writer(path);
  writer.Write({reinterpret_cast<const char*>(&head), sizeof(head)});
  writer.Write(BytesOf(session.tokens()));
  writer.Write(BytesOf(notes.pending));
  writer.Write(notes.random_state);
  writer.Write(notes.text);
  for (const std::span<const std::byte> piece : session.state_.Pieces(num_tokens)) {
    writer.Write({reinterpret_cast<const char*>(piece.data()), piece.size()});
  }
  if (session.has_logits()) {
    const auto logits = std::as_bytes(session.logits());
    writer.Write({reinterpret_cast<const char*>(logits.data()), logits.size()});
  }
  writer.Finish();
}

bool SessionFile::Exists(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) return false;
  return !std::filesystem::is_regular_file(status) || std::filesystem::file_size(path, error) != 0;
}

SessionNotes SessionFile::Load(const std::filesystem::path& path, Session& session) {
  try {
    Reader reader(path);
    const Head& head = reader.head();
    const size_t vocab_size = session.engine().config().vocab_size;
    CheckFits(reader, session);
    std::vector<TokenId> tokens = reader.ReadTokens(head.num_tokens);
    SessionNotes notes;
    notes.pending = reader.ReadTokens(head.num_pending);
    notes.random_state = reader.ReadText(head.random_bytes);
    notes.text = reader.ReadText(head.text_bytes);
    for (const std::span<std::byte> piece : session.state_.Pieces(head.num_tokens)) {
      reader.Read(piece.data(), piece.size());
    }
    reader.Read(session.logits_data(), head.num_logits * sizeof(float));
    reader.CheckEnd();
    CheckIds(reader, tokens, vocab_size);
    CheckIds(reader, notes.pending, vocab_size);
    session.Adopt(std::move(tokens), head.num_logits != 0);
    return notes;
  } catch (...) {
    session.Clear();
    throw;
  }
}

size_t SessionFile::NumTokens(const std::filesystem::path& path) {
  const Reader reader(path);
  return reader.head().num_tokens + reader.head().num_pending;
}

}  // namespace thimble
