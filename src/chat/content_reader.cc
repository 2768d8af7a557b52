#include "chat/content_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/base64.h"
#include "base/error.h"

namespace thimble {
namespace {

// A part of an unknown type is shown to the model as JSON up to this size; above it, what is in it
// is rather data than text.
constexpr size_t kMaxShownJson = 4096;

[[noreturn]] void FailWanting(const std::string& path, std::string_view expected) {
  throw Error(ErrorCode::kUsage, fmt::format("{}: expected {}", path, expected));
}

template <size_t N>
bool IsOneOf(std::string_view text, const std::array<std::string_view, N>& names) {
  return std::ranges::find(names, text) != names.end();
}

constexpr std::array<std::string_view, 6> kTextTypes = {
    "", "text", "input_text", "output_text", "summary_text", "reasoning_text"};
constexpr std::array<std::string_view, 5> kImageTypes = {"image", "image_url", "input_image",
                                                         "computer_screenshot", "input_screenshot"};
constexpr std::array<std::string_view, 3> kVideoTypes = {"video", "video_url", "input_video"};
constexpr std::array<std::string_view, 3> kAudioTypes = {"audio", "audio_url", "input_audio"};
constexpr std::array<std::string_view, 2> kFileTypes = {"file", "input_file"};

// The text in base64 data; nothing where that is no UTF-8 text.
std::optional<std::string> DecodeText(std::string_view base64) {
  std::string compact(base64);
  std::erase_if(compact, [](char c) { return c == '\n' || c == '\r' || c == ' '; });
  std::string bytes;
  if (!DecodeBase64(compact, &bytes) || bytes.find('\0') != std::string::npos) return std::nullopt;
  // A JSON string holds UTF-8 alone.
  if (!IsJson(WriteJson(JsonValue::String(bytes), JsonStyle::kCompact))) return std::nullopt;
  return bytes;
}

bool IsTextType(std::string_view media_type) {
  return media_type.starts_with("text/") || media_type.starts_with("application/json") ||
         media_type.starts_with("application/xml");
}

// The text of "data:text/plain;base64,...".
std::optional<std::string> TextOfDataUrl(std::string_view url) {
  constexpr std::string_view kScheme = "data:";
  constexpr std::string_view kBase64 = ";base64";
  const size_t comma = url.find(',');
  if (!url.starts_with(kScheme) || comma == std::string_view::npos) return std::nullopt;
  const std::string_view type = url.substr(kScheme.size(), comma - kScheme.size());
  if (!IsTextType(type) || !type.ends_with(kBase64)) return std::nullopt;
  return DecodeText(url.substr(comma + 1));
}

// Whether a value can be content: a string, or an array of strings and objects.
bool HoldsParts(const JsonValue& value) {
  return value.is_string() ||
         (value.is_array() && std::ranges::all_of(value.items, [](const JsonValue& item) {
            return item.is_string() || item.is_object();
          }));
}

std::string JoinLines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    if (line.empty()) continue;
    if (!text.empty()) text += '\n';
    text += line;
  }
  return text;
}

}  // namespace

std::string FindText(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.FindSet(key);
  return value != nullptr && value->is_string() ? value->text : std::string();
}

std::vector<ContentPart> ContentReader::Read(const JsonValue* content, const std::string& path) {
  if (content == nullptr || content->is_null()) return {};
  if (content->is_string()) return {{content->text, std::nullopt}};
  if (content->is_object()) return {ReadPart(*content, path)};
  if (!content->is_array()) FailWanting(path, "a string or an array of parts");
  std::vector<ContentPart> parts;
  for (size_t i = 0; i < content->items.size(); ++i) {
    parts.push_back(ReadPart(content->items[i], fmt::format("{}[{}]", path, i)));
  }
  return parts;
}

std::string ContentReader::ReadText(const JsonValue* content, const std::string& path) {
  return TextOf(Read(content, path));
}

ContentPart ContentReader::ReadPart(const JsonValue& part, const std::string& path) {
  if (part.is_string()) return {part.text, std::nullopt};
  if (!part.is_object()) FailWanting(path, "an object");
  const JsonValue* named = part.FindSet("type");
  if (named != nullptr && !named->is_string()) FailWanting(path + ".type", "a string");
  const std::string type = named == nullptr ? "" : named->text;
  if (IsOneOf(type, kTextTypes)) {
    const JsonValue* text = part.FindSet("text");
    if (text != nullptr && !text->is_string()) FailWanting(path + ".text", "a string");
    if (text == nullptr && type.empty()) FailWanting(path + ".type", "the type of the part");
    return {text == nullptr ? "" : text->text, std::nullopt};
  }
  if (type == "refusal") return {FindText(part, "refusal"), std::nullopt};
  if (IsOneOf(type, kImageTypes)) return ReadImage();
  if (IsOneOf(type, kVideoTypes)) return Unseen("a video", "see");
  if (IsOneOf(type, kAudioTypes)) return Unseen("a recording", "hear");
  if (IsOneOf(type, kFileTypes)) {
    const JsonValue* inner = part.FindSet("file");
    return ReadFile(inner != nullptr && inner->is_object() ? *inner : part);
  }
  if (type == "document") return ReadDocument(part, path);
  if (type == "search_result" || type == "web_search_result") return ReadSearchResult(part, path);
  if (type == "tool_reference") {
    return {fmt::format("The tool {} is available.", FindText(part, "tool_name")), std::nullopt};
  }
  return ReadOther(part, type, path);
}

ContentPart ContentReader::Unseen(std::string_view what, std::string_view verb) {
  request_->AddNote(fmt::format("{} was replaced by a text: this model cannot {} it", what, verb));
  return {fmt::format("[{} that this model cannot {}]", what, verb), std::nullopt, true};
}

ContentPart ContentReader::ReadImage() {
  if (images_.empty()) return Unseen("an image", "see");
  const ImageSize size = images_.front();
  images_ = images_.subspan(1);
  return {{}, size};
}

void ContentReader::NoteCitations(const JsonValue& part) {
  const JsonValue* citations = part.FindSet("citations");
  const JsonValue* enabled = citations == nullptr ? nullptr : citations->FindSet("enabled");
  if (enabled != nullptr && enabled->boolean) request_->AddNote("the answer has no citations");
}

// Anthropic's document: text, blocks of text, or a file in base64, by URL or by id.
ContentPart ContentReader::ReadDocument(const JsonValue& part, const std::string& path) {
  NoteCitations(part);
  const JsonValue* source = part.FindSet("source");
  if (source == nullptr || !source->is_object()) FailWanting(path + ".source", "an object");
  const std::string kind = FindText(*source, "type");
  std::optional<std::string> text;
  if (kind == "text") {
    text = FindText(*source, "data");
  } else if (kind == "content") {
    text = ReadText(source->FindSet("content"), path + ".source.content");
  } else if (kind == "base64" && IsTextType(FindText(*source, "media_type"))) {
    text = DecodeText(FindText(*source, "data"));
  }
  if (!text) return Unseen("a document", "read");
  return {JoinLines({FindText(part, "title"), FindText(part, "context"), *text}), std::nullopt};
}

// OpenAI's file: a data URL, a URL or an id. Nothing is fetched.
ContentPart ContentReader::ReadFile(const JsonValue& file) {
  const std::optional<std::string> text = TextOfDataUrl(FindText(file, "file_data"));
  if (!text) return Unseen("a file", "read");
  return {JoinLines({FindText(file, "filename"), *text}), std::nullopt};
}

ContentPart ContentReader::ReadSearchResult(const JsonValue& part, const std::string& path) {
  NoteCitations(part);
  const std::string source = FindText(part, "source");
  return {JoinLines({FindText(part, "title"), source.empty() ? FindText(part, "url") : source,
                     ReadText(part.FindSet("content"), path + ".content")}),
          std::nullopt};
}

ContentPart ContentReader::ReadOther(const JsonValue& part, const std::string& type,
                                     const std::string& path) {
  for (const char* key : {"text", "content"}) {
    const JsonValue* inner = part.FindSet(key);
    if (inner != nullptr && HoldsParts(*inner)) {
      return {ReadText(inner, path + "." + key), std::nullopt};
    }
  }
  std::string json = WriteJson(part, JsonStyle::kPython);
  if (json.size() > kMaxShownJson) return Unseen(fmt::format("a part of type {}", type), "read");
  request_->AddNote(fmt::format("a part of type {} was passed to the model as JSON", type));
  return {std::move(json), std::nullopt};
}

}  // namespace thimble
