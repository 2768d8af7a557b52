#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "json/json_value.h"

namespace thimble {

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool };

/// Original size in pixels.
struct ImageSize {
  size_t width = 0;
  size_t height = 0;
};

/// A piece of a message's content: text, or an image of which only the size enters the prompt.
struct ContentPart {
  std::string text;
  std::optional<ImageSize> image;
  bool is_placeholder = false;  // the text stands for what the model cannot take
};

/// A call that the model made earlier.
struct ToolCall {
  std::string id;  // empty: none
  std::string name;
  std::vector<JsonMember> arguments;
  std::optional<std::string> raw_arguments;  // instead of them, where they were no JSON object
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string name;  // empty: none
  std::vector<ContentPart> content;
  // Of the assistant.
  std::string reasoning;
  std::vector<ToolCall> tool_calls;
  // Of a tool's result.
  std::string tool;          // its name; empty: by its call
  std::string tool_call_id;  // empty: none
  // Of a system message that brings further tools: an array. Its content is then not rendered.
  std::optional<JsonValue> tools;
};

/// kRequired: the answer calls at least one tool, one of `callable_tools` where these are named.
enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };
enum class ResponseFormat : uint8_t { kText, kJsonObject, kJsonSchema };

/// Everything that a prompt is rendered from.
struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::optional<JsonValue> tools;  // an array, not empty
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::vector<std::string> callable_tools;  // names; empty: all. A named choice is one name here
                                            // and kRequired
  bool parallel_tool_calls = true;          // false: at most one call in an answer
  ResponseFormat response_format = ResponseFormat::kText;
  JsonValue schema;  // of kJsonSchema
  bool thinking = true;
  std::string effort;                 // low, high or max; empty: not said
  bool add_generation_prompt = true;  // end with the beginning of an answer
  // The last message, an answer without tool calls, is continued: the prompt ends inside it,
  // exactly where its text ends (inside the thought where it has no content), and the reply is the
  // rest alone. Overrides add_generation_prompt.
  bool continue_last = false;
  // What was replaced or left out of the request, one sentence each, for the client to see.
  std::vector<std::string> notes;

  /// Adds a note unless it is there already.
  void AddNote(const std::string& note);
};

/// Whether the last message can be continued: it is of the assistant, has a text or a thought, and
/// calls no tool.
bool EndsWithAnswer(const ChatRequest& request);

/// Reads `messages`, `tools`, `tool_choice`, `response_format`, `thinking` (a boolean),
/// `thinking_effort` and `add_generation_prompt` of a request in the form of the OpenAI API; other
/// fields are left alone. Images take their sizes from `images`, in turn; those without one become
/// texts. Error(kUsage) naming the field, e.g. messages[1].tool_calls[0].function.name, where a
/// field has a wrong type or value.
ChatRequest ReadChatRequest(const JsonValue& body, std::span<const ImageSize> images = {});

/// The arguments of a call: an object, or a string that holds one. Other arguments, which models
/// write and clients send back, are kept as they are spelled; null and blank text are none.
void ReadToolArguments(const JsonValue& arguments, ToolCall* call);

/// Reads which tools the answer may or must call, in any API's spelling: a string, or an object of
/// type function, tool, allowed_tools, auto, any, none or required. Error(kUsage) for anything
/// else.
void ReadToolChoice(const JsonValue& choice, ChatRequest* request);

/// Error(kUsage) unless `effort` is low, high or max. The encoder of the model's makers takes no
/// `medium`, though the prompt speaks of it.
void CheckEffort(const std::string& effort);

/// The first text and all further text of a message's content, joined.
std::string TextOf(const std::vector<ContentPart>& content);

}  // namespace thimble
