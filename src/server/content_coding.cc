#include "server/content_coding.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <cctype>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "server/api.h"

namespace thimble::server {
namespace {

constexpr size_t kPieceBytes = 64 << 10;
// A window of 8 MB, which RFC 8878 asks every decoder to support; a body that needs a larger one is
// refused before memory is taken for it.
constexpr int kMaxWindowLog = 23;
constexpr size_t kMaxCodings = 3;

void CheckSize(size_t bytes, size_t max_bytes) {
  if (bytes <= max_bytes) return;
  throw ApiError(413, fmt::format("the body has more than {} bytes when decompressed, the most "
                                  "this server takes",
                                  max_bytes));
}

[[noreturn]] void FailDamaged(std::string_view coding) {
  throw ApiError(400,
                 fmt::format("the body is not valid {}, which Content-Encoding names", coding));
}

class Inflater {
 public:
  explicit Inflater(int window_bits) {
    if (::inflateInit2(&stream_, window_bits) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { ::inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// False where `body` is not of this format.
  bool Run(const std::string& body, size_t max_bytes, std::string* text) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));
    stream_.avail_in = static_cast<uInt>(body.size());
    std::vector<char> piece(kPieceBytes);
    int status = Z_OK;
    while (status != Z_STREAM_END) {
      stream_.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream_.avail_out = static_cast<uInt>(piece.size());
      status = ::inflate(&stream_, Z_NO_FLUSH);
      if (status == Z_MEM_ERROR) throw std::bad_alloc();
      if (status != Z_OK && status != Z_STREAM_END) return false;
      const size_t made = piece.size() - stream_.avail_out;
      CheckSize(text->size() + made, max_bytes);
      text->append(piece.data(), made);
      // gzip allows several streams in a row.
      if (status == Z_STREAM_END && stream_.avail_in > 0) {
        if (::inflateReset(&stream_) != Z_OK) return false;
        status = Z_OK;
      } else if (status == Z_OK && stream_.avail_in == 0 && stream_.avail_out > 0) {
        return false;  // cut
      }
    }
    return true;
  }

 private:
  z_stream stream_ = {};
};

// Bits of the window, and what zlib takes as "with a header of gzip" and "without any".
constexpr int kZlib = 15;
constexpr int kGzip = 15 + 16;
constexpr int kRaw = -15;

std::string Inflate(std::string_view coding, const std::string& body, size_t max_bytes) {
  std::string text;
  if (Inflater(coding == "gzip" ? kGzip : kZlib).Run(body, max_bytes, &text)) return text;
  text.clear();
  // Some clients send "deflate" without the header that belongs to it.
  if (coding == "deflate" && Inflater(kRaw).Run(body, max_bytes, &text)) return text;
  FailDamaged(coding);
}

std::string DecompressZstd(const std::string& body, size_t max_bytes) {
  const std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context(ZSTD_createDCtx(),
                                                                     &ZSTD_freeDCtx);
  if (context == nullptr) throw std::bad_alloc();
  ZSTD_DCtx_setParameter(context.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  std::vector<char> piece(kPieceBytes);
  ZSTD_inBuffer in = {body.data(), body.size(), 0};
  std::string text;
  size_t left = 1;
  while (left != 0 || in.pos < in.size) {
    ZSTD_outBuffer out = {piece.data(), piece.size(), 0};
    const size_t before = in.pos;
    left = ZSTD_decompressStream(context.get(), &out, &in);
    const bool stuck = in.pos == before && out.pos == 0;
    if (ZSTD_isError(left) != 0 || (stuck && left != 0)) FailDamaged("zstd");
    CheckSize(text.size() + out.pos, max_bytes);
    text.append(piece.data(), out.pos);
    if (stuck) break;
  }
  return text;
}

// The codings in the order in which they were applied.
std::vector<std::string> CodingsOf(std::string_view header) {
  std::vector<std::string> codings;
  std::string name;
  for (const char c : std::string(header) + ",") {
    if (c == ',') {
      if (!name.empty()) codings.push_back(std::exchange(name, {}));
    } else if (c != ' ' && c != '\t') {
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return codings;
}

std::string DecodeOne(const std::string& coding, std::string body, size_t max_bytes) {
  if (coding == "identity") return body;
  if (coding == "gzip" || coding == "x-gzip") return Inflate("gzip", body, max_bytes);
  if (coding == "deflate") return Inflate(coding, body, max_bytes);
  if (coding == "zstd") return DecompressZstd(body, max_bytes);
  throw ApiError(415, fmt::format("Content-Encoding: expected gzip, deflate, zstd or identity, "
                                  "found {}",
                                  coding));
}

}  // namespace

std::string DecodeBody(std::string_view content_encoding, std::string body, size_t max_bytes) {
  if (body.empty()) return body;
  const std::vector<std::string> codings = CodingsOf(content_encoding);
  if (codings.size() > kMaxCodings) {
    throw ApiError(415, fmt::format("Content-Encoding: expected at most {} codings, found {}",
                                    kMaxCodings, codings.size()));
  }
  for (size_t i = codings.size(); i > 0; --i) {
    body = DecodeOne(codings[i - 1], std::move(body), max_bytes);
  }
  return body;
}

}  // namespace thimble::server
