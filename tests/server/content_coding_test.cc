#include "server/content_coding.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <string>

#include "server/api.h"

namespace thimble::server {
namespace {

// What zlib takes for gzip, zlib's own format, and neither's header.
constexpr int kGzipBits = 31;
constexpr int kZlibBits = 15;
constexpr int kRawBits = -15;

std::string Deflated(const std::string& text, int window_bits) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, window_bits, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text, int window_log = 0) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  if (window_log > 0) ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, window_log);
  std::string out(ZSTD_compressBound(text.size()) + 100, '\0');
  // As a stream, which does not tell its size beforehand.
  ZSTD_inBuffer in = {text.data(), text.size(), 0};
  ZSTD_outBuffer to = {out.data(), out.size(), 0};
  while (ZSTD_compressStream2(context, &to, &in, ZSTD_e_continue) != 0 && in.pos < in.size) {
  }
  EXPECT_EQ(ZSTD_compressStream2(context, &to, &in, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  return out;
}

int StatusOf(const std::string& coding, const std::string& body, size_t max_bytes) {
  try {
    DecodeBody(coding, body, max_bytes);
  } catch (const ApiError& error) {
    return error.status();
  }
  return 200;
}

std::string Text() {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += std::to_string(i * 7919) + ",";
  return text;
}

TEST(ContentCodingTest, TakesWhatClientsSend) {
  const std::string text = Text();
  const size_t most = text.size();
  EXPECT_EQ(DecodeBody("", text, most), text);
  EXPECT_EQ(DecodeBody("identity", text, most), text);
  EXPECT_EQ(DecodeBody("gzip", Deflated(text, kGzipBits), most), text);
  EXPECT_EQ(DecodeBody("X-GZip", Deflated(text, kGzipBits), most), text);
  EXPECT_EQ(DecodeBody("deflate", Deflated(text, kZlibBits), most), text);
  EXPECT_EQ(DecodeBody("deflate", Deflated(text, kRawBits), most), text);
  EXPECT_EQ(DecodeBody("zstd", Zstd(text), most), text);
  EXPECT_EQ(DecodeBody("zstd", Zstd(text.substr(0, 1000)) + Zstd(text.substr(1000)), most), text);
  EXPECT_EQ(DecodeBody("gzip", Deflated("a", kGzipBits) + Deflated("b", kGzipBits), most), "ab");
  EXPECT_EQ(DecodeBody("gzip , zstd", Zstd(Deflated(text, kGzipBits)), most), text);
  EXPECT_EQ(DecodeBody("zstd", "", most), "");
}

TEST(ContentCodingTest, BoundsWhatComesOut) {
  const std::string zeros(10'000'000, '0');
  for (const auto& [coding, body] : {std::pair{"gzip", Deflated(zeros, kGzipBits)},
                                     {"deflate", Deflated(zeros, kZlibBits)},
                                     {"zstd", Zstd(zeros)}}) {
    EXPECT_LT(body.size(), 20'000u);
    EXPECT_EQ(StatusOf(coding, body, zeros.size() - 1), 413) << coding;
    EXPECT_EQ(StatusOf(coding, body, zeros.size()), 200) << coding;
  }
  // A window of 128 MB would be allocated before the first byte.
  EXPECT_EQ(StatusOf("zstd", Zstd(zeros, 27), zeros.size()), 400);
}

TEST(ContentCodingTest, RefusesTheRest) {
  EXPECT_EQ(StatusOf("br", "x", 100), 415);
  EXPECT_EQ(StatusOf("gzip, compress", "x", 100), 415);
  EXPECT_EQ(StatusOf("gzip, gzip, gzip, gzip", "x", 100), 415);
  for (const std::string coding : {"gzip", "deflate", "zstd"}) {
    EXPECT_EQ(StatusOf(coding, "{\"messages\": []}", 100), 400) << coding;
  }
  const std::string text = Text();
  for (const auto& [coding, body] : {std::pair{"gzip", Deflated(text, kGzipBits)},
                                     {"deflate", Deflated(text, kZlibBits)},
                                     {"zstd", Zstd(text)}}) {
    EXPECT_EQ(StatusOf(coding, body.substr(0, body.size() / 2), text.size()), 400) << coding;
    EXPECT_EQ(StatusOf(coding, body.substr(0, body.size() - 1), text.size()), 400) << coding;
  }
  try {
    DecodeBody("br", "x", 100);
  } catch (const ApiError& error) {
    EXPECT_STREQ(error.what(),
                 "Content-Encoding: expected gzip, deflate, zstd or identity, found br");
  }
}

}  // namespace
}  // namespace thimble::server
