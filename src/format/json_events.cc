#include "format/json_events.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"

namespace thimble {
namespace {

using Json = nlohmann::json;

// The library takes a NUL byte for the end of the text and would leave what follows unread.
void RejectNul(std::string_view text, const std::string& source) {
  if (text.find('\0') == std::string_view::npos) return;
  throw Error(ErrorCode::kBadModel,
              source + ": expected JSON, found a NUL byte; the file is damaged: download it again");
}

// Turns the library's callbacks into events; its `true` means "go on".
class SaxAdapter {
 public:
  SaxAdapter(const std::string& source, JsonHandler& handler)
      : source_(source), handler_(handler) {}

  bool null() { return Other(); }
  bool boolean(bool) { return Other(); }
  bool number_integer(Json::number_integer_t) { return Other(); }
  bool number_float(Json::number_float_t, const std::string&) { return Other(); }
  bool binary(Json::binary_t&) { return Other(); }

  bool number_unsigned(Json::number_unsigned_t value) {
    handler_.Scalar({.kind = JsonScalar::Kind::kUnsigned, .text = {}, .number = value});
    return true;
  }
  bool string(std::string& text) {
    handler_.Scalar({.kind = JsonScalar::Kind::kString, .text = text, .number = 0});
    return true;
  }
  bool key(std::string& text) {
    handler_.Key(text);
    return true;
  }
  bool start_object(size_t) { return Open('{'); }
  bool start_array(size_t) { return Open('['); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    throw Error(ErrorCode::kBadModel, source_ + ": expected JSON, found something else (" +
                                          error.what() +
                                          "); the file is damaged: download it again");
  }

 private:
  bool Other() {
    handler_.Scalar({});
    return true;
  }
  bool Open(char bracket) {
    if (++depth_ > kMaxJsonDepth) {
      throw Error(ErrorCode::kBadModel,
                  source_ + ": JSON nested deeper than " + std::to_string(kMaxJsonDepth) +
                      " levels, which no published model needs; download it again");
    }
    handler_.Open(bracket);
    return true;
  }
  bool Close() {
    --depth_;
    handler_.Close();
    return true;
  }

  const std::string& source_;
  JsonHandler& handler_;
  size_t depth_ = 0;
};

// The bytes of a file, one piece in memory at a time.
class FilePieces {
 public:
  explicit FilePieces(const File& file) : file_(file), piece_(kPieceBytes) { Refill(); }

  bool AtEnd() const { return next_ == end_; }
  char Current() const { return piece_[next_]; }
  void Advance() {
    if (++next_ == end_) Refill();
  }

 private:
  static constexpr size_t kPieceBytes = size_t{64} << 10;

  void Refill() {
    next_ = 0;
    end_ = std::min<uint64_t>(kPieceBytes, file_.size() - offset_);
    file_.ReadAt(offset_, end_, piece_.data());
    RejectNul({piece_.data(), end_}, file_.path().string());
    offset_ += end_;
  }

  const File& file_;
  std::vector<char> piece_;
  uint64_t offset_ = 0;
  size_t next_ = 0;
  size_t end_ = 0;
};

// What the library asks of an input iterator, over pieces; null pieces mark the end.
class PieceIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  explicit PieceIterator(FilePieces* pieces) : pieces_(pieces) {}
  char operator*() const { return pieces_->Current(); }
  PieceIterator& operator++() {
    pieces_->Advance();
    return *this;
  }
  // Only comparisons with the end are asked for.
  bool operator!=(const PieceIterator&) const { return !pieces_->AtEnd(); }
  bool operator==(const PieceIterator&) const { return pieces_->AtEnd(); }

 private:
  FilePieces* pieces_;
};

}  // namespace

void ParseJson(std::string_view text, const std::string& source, JsonHandler& handler) {
  RejectNul(text, source);
  SaxAdapter adapter(source, handler);
  Json::sax_parse(text.begin(), text.end(), &adapter);
}

void ParseJson(const File& file, JsonHandler& handler) {
  const std::string source = file.path().string();
  SaxAdapter adapter(source, handler);
  FilePieces pieces(file);
  Json::sax_parse(PieceIterator(&pieces), PieceIterator(nullptr), &adapter);
}

}  // namespace thimble
