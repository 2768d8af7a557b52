#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_request.h"
#include "json/json_value.h"

namespace thimble {

/// Reads the content of messages as clients of any API spell it: parts of OpenAI's chat, items of
/// its responses, blocks of Anthropic's messages. A text is itself; documents and search results of
/// text are read; an image, a recording or a file of another kind becomes a text in its place, and
/// a note of the request. Borrows both.
class ContentReader {
 public:
  /// Images take their sizes from `images`, in turn; without a size an image is a text.
  explicit ContentReader(ChatRequest* request, std::span<const ImageSize> images = {})
      : request_(request), images_(images) {}

  /// Null, a string, or an array of parts. Error(kUsage) naming `path` for anything else.
  std::vector<ContentPart> Read(const JsonValue* content, const std::string& path);
  /// A part: a string or an object.
  ContentPart ReadPart(const JsonValue& part, const std::string& path);
  /// All parts as one text.
  std::string ReadText(const JsonValue* content, const std::string& path);

 private:
  ContentPart Unseen(std::string_view what, std::string_view verb);
  ContentPart ReadImage();
  void NoteCitations(const JsonValue& part);
  ContentPart ReadDocument(const JsonValue& part, const std::string& path);
  ContentPart ReadFile(const JsonValue& file);
  ContentPart ReadSearchResult(const JsonValue& part, const std::string& path);
  ContentPart ReadOther(const JsonValue& part, const std::string& type, const std::string& path);

  ChatRequest* request_;
  std::span<const ImageSize> images_;
};

/// The string `key` of `object`; empty where it is absent, null or no string.
std::string FindText(const JsonValue& object, std::string_view key);

}  // namespace thimble
