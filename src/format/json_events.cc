#include "format/json_events.h"

#include <simdjson.h>

#include <new>

#include "base/error.h"
#include "io/foreign_file.h"

namespace thimble {
namespace {

using simdjson::dom::element;

[[noreturn]] void FailText(const std::string& source, simdjson::error_code error) {
  if (error == simdjson::MEMALLOC) throw std::bad_alloc();  // no fault of the file
  if (error == simdjson::DEPTH_ERROR) {
    throw Error(ErrorCode::kBadModel, source + ": JSON nested deeper than " +
                                          std::to_string(kMaxFileDepth) +
                                          " levels, which no published model needs; download it "
                                          "again");
  }
  throw Error(ErrorCode::kBadModel, source + ": expected JSON, found something else (" +
                                        simdjson::error_message(error) +
                                        "); the file is damaged: download it again");
}

void Replay(const element& value, JsonHandler& handler);

void ReplayObject(const simdjson::dom::object& members, JsonHandler& handler) {
  handler.Open('{');
  for (const auto& [key, member] : members) {
    handler.Key(key);
    Replay(member, handler);
  }
  handler.Close();
}

void ReplayArray(const simdjson::dom::array& items, JsonHandler& handler) {
  handler.Open('[');
  for (const element item : items) Replay(item, handler);
  handler.Close();
}

// Recursive, no deeper than the parser allowed the text to be.
void Replay(const element& value, JsonHandler& handler) {
  uint64_t number = 0;
  if (value.is_object()) {
    ReplayObject(value, handler);
  } else if (value.is_array()) {
    ReplayArray(value, handler);
  } else if (value.is_string()) {
    handler.Scalar({.kind = JsonScalar::Kind::kString, .text = value, .number = 0});
  } else if (value.get(number) == simdjson::SUCCESS) {
    handler.Scalar({.kind = JsonScalar::Kind::kUnsigned, .text = {}, .number = number});
  } else {
    handler.Scalar({});
  }
}

// Without a copy where `text` has room for the library's padding behind its end.
void Parse(const std::string& text, const std::string& source, JsonHandler& handler) {
  simdjson::dom::parser parser;
  // The library counts the text itself as a level.
  simdjson::error_code error = parser.allocate(text.size(), kMaxFileDepth + 1);
  element root;
  if (!error) error = parser.parse(text).get(root);
  if (error) FailText(source, error);
  Replay(root, handler);
}

}  // namespace

void ParseJson(std::string_view text, const std::string& source, JsonHandler& handler) {
  std::string padded;
  padded.reserve(text.size() + simdjson::SIMDJSON_PADDING);
  Parse(padded.append(text), source, handler);
}

void ParseJson(const File& file, JsonHandler& handler) {
  std::string padded;
  padded.reserve(file.size() + simdjson::SIMDJSON_PADDING);
  padded.resize(file.size());
  file.ReadAt(0, padded.size(), padded.data());
  padded.erase(0, padded.size() - WithoutByteOrderMark(padded).size());
  Parse(padded, file.path().string(), handler);
}

}  // namespace thimble
