#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

// Reads the event streams of the client APIs as strictly as their own clients do, and rebuilds the
// answer from its deltas.

namespace thimble::server {

struct StreamEvent {
  std::string name;  // of its line "event:"; empty: none
  nlohmann::json json;
};

/// The events of a stream; comments are left out, and a last "[DONE]" is `done`.
struct EventStream {
  std::vector<StreamEvent> events;
  bool done = false;
};

inline EventStream ParseEvents(const std::string& text) {
  EventStream stream;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event without an end: " << text.substr(at);
    if (end == std::string::npos) break;
    std::string block = text.substr(at, end - at);
    at = end + 2;
    if (block.starts_with(": ")) continue;
    EXPECT_FALSE(stream.done) << "after [DONE]: " << block;
    StreamEvent event;
    if (block.starts_with("event: ")) {
      event.name = block.substr(7, block.find('\n') - 7);
      block.erase(0, block.find('\n') + 1);
    }
    EXPECT_TRUE(block.starts_with("data: ")) << block;
    if (block == "data: [DONE]") {
      stream.done = true;
      continue;
    }
    event.json = nlohmann::json::parse(block.substr(6), nullptr, false);
    EXPECT_FALSE(event.json.is_discarded()) << block;
    stream.events.push_back(event);
  }
  return stream;
}

/// What a stream made: the answer as the API gives it whole, or the error that it ended with.
struct Rebuilt {
  nlohmann::json answer;
  nlohmann::json error;
};

inline void AppendLogprobs(const nlohmann::json& piece, nlohmann::json* all) {
  if (piece.is_null()) return;
  if (all->is_null()) {
    *all = piece;
    return;
  }
  for (const auto& [key, values] : piece.items()) {
    for (const nlohmann::json& value : values) (*all)[key].push_back(value);
  }
}

/// OpenAI's chat: a role first, one reason to finish for each choice, calls by index.
inline Rebuilt RebuildChat(const EventStream& stream) {
  Rebuilt rebuilt;
  EXPECT_TRUE(stream.done);
  std::set<size_t> finished;
  nlohmann::json choices = nlohmann::json::array();
  for (const StreamEvent& event : stream.events) {
    const nlohmann::json& json = event.json;
    EXPECT_TRUE(rebuilt.error.is_null()) << "after an error: " << json;
    if (json.contains("error")) {
      rebuilt.error = json["error"];
      continue;
    }
    EXPECT_EQ(json["object"], "chat.completion.chunk");
    for (const char* key : {"id", "created", "model", "system_fingerprint"}) {
      EXPECT_EQ(json[key], stream.events[0].json[key]);
      rebuilt.answer[key] = json[key];
    }
    if (json.contains("usage") && !json["usage"].is_null()) {
      EXPECT_TRUE(json["choices"].empty());
      rebuilt.answer["usage"] = json["usage"];
    }
    for (const nlohmann::json& choice : json["choices"]) {
      const size_t index = choice["index"];
      EXPECT_LE(index, choices.size());
      const nlohmann::json& delta = choice["delta"];
      if (index == choices.size()) {
        EXPECT_EQ(delta["role"], "assistant");
        choices.push_back(
            {{"index", index},
             {"message", {{"role", "assistant"}, {"content", ""}, {"refusal", nullptr}}},
             {"logprobs", nullptr},
             {"finish_reason", nullptr}});
      }
      EXPECT_FALSE(finished.contains(index)) << "after its end: " << json;
      nlohmann::json& message = choices[index]["message"];
      for (const char* key : {"content", "reasoning_content"}) {
        if (!delta.contains(key)) continue;
        message[key] = message.value(key, "") + delta[key].get<std::string>();
      }
      if (delta.contains("function_call")) {
        const nlohmann::json& call = delta["function_call"];
        nlohmann::json& made = message["function_call"];
        EXPECT_EQ(made.is_null(), call.contains("name"));
        if (made.is_null()) made = {{"name", call["name"]}, {"arguments", ""}};
        made["arguments"].get_ref<std::string&>() += call["arguments"].get<std::string>();
      }
      for (const nlohmann::json& call : delta.value("tool_calls", nlohmann::json::array())) {
        nlohmann::json& calls = message["tool_calls"];
        const size_t at = call["index"];
        if (call.contains("id")) {
          EXPECT_EQ(at, calls.size());
          calls.push_back(call);
          calls.back().erase("index");
        } else {
          EXPECT_EQ(at + 1, calls.size());
          auto& arguments = calls[at]["function"]["arguments"].get_ref<std::string&>();
          arguments += call["function"]["arguments"].get<std::string>();
        }
      }
      if (choice.contains("logprobs")) {
        AppendLogprobs(choice["logprobs"], &choices[index]["logprobs"]);
      }
      if (choice["finish_reason"].is_null()) continue;
      choices[index]["finish_reason"] = choice["finish_reason"];
      finished.insert(index);
    }
  }
  if (rebuilt.error.is_null()) {
    EXPECT_EQ(finished.size(), choices.size());
  }
  for (nlohmann::json& choice : choices) {
    if (choice["message"]["content"] == "") choice["message"]["content"] = nullptr;
  }
  rebuilt.answer["choices"] = choices;
  rebuilt.answer["object"] = "chat.completion";
  return rebuilt;
}

/// OpenAI's older completions.
inline Rebuilt RebuildCompletion(const EventStream& stream) {
  Rebuilt rebuilt;
  EXPECT_TRUE(stream.done);
  nlohmann::json choices = nlohmann::json::array();
  for (const StreamEvent& event : stream.events) {
    const nlohmann::json& json = event.json;
    EXPECT_TRUE(rebuilt.error.is_null()) << "after an error: " << json;
    if (json.contains("error")) {
      rebuilt.error = json["error"];
      continue;
    }
    for (const char* key : {"id", "object", "created", "model", "system_fingerprint"}) {
      rebuilt.answer[key] = json[key];
    }
    if (json.contains("usage") && !json["usage"].is_null()) rebuilt.answer["usage"] = json["usage"];
    for (const nlohmann::json& choice : json["choices"]) {
      const size_t index = choice["index"];
      while (choices.size() <= index) {
        choices.push_back({{"index", choices.size()},
                           {"text", ""},
                           {"logprobs", nullptr},
                           {"finish_reason", nullptr}});
      }
      EXPECT_TRUE(choices[index]["finish_reason"].is_null()) << "after its end: " << json;
      choices[index]["text"].get_ref<std::string&>() += choice["text"].get<std::string>();
      AppendLogprobs(choice["logprobs"], &choices[index]["logprobs"]);
      choices[index]["finish_reason"] = choice["finish_reason"];
    }
  }
  for (const nlohmann::json& choice : choices) {
    EXPECT_EQ(choice["finish_reason"].is_null(), !rebuilt.error.is_null());
  }
  rebuilt.answer["choices"] = choices;
  return rebuilt;
}

/// Anthropic's messages: message_start, blocks one after the other, message_delta, message_stop.
inline Rebuilt RebuildMessage(const EventStream& stream) {
  Rebuilt rebuilt;
  nlohmann::json message;
  bool open = false;
  bool ended = false;
  bool stopped = false;
  std::string arguments;
  EXPECT_FALSE(stream.done);
  for (const auto& [name, json] : stream.events) {
    const std::string type = json["type"];
    EXPECT_EQ(name, type);
    EXPECT_TRUE(!stopped && rebuilt.error.is_null()) << "after the end: " << json;
    if (type == "error") {
      rebuilt.error = json["error"];
      continue;
    }
    if (type == "message_start") {
      EXPECT_TRUE(message.is_null());
      message = json["message"];
      EXPECT_TRUE(message["content"].empty() && message["stop_reason"].is_null());
      continue;
    }
    EXPECT_FALSE(message.is_null()) << "before message_start: " << json;
    if (type == "ping") continue;
    nlohmann::json& content = message["content"];
    if (type == "content_block_start") {
      EXPECT_TRUE(!open && !ended);
      EXPECT_EQ(json["index"], content.size());
      content.push_back(json["content_block"]);
      open = true;
      arguments.clear();
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open);
      EXPECT_EQ(json["index"].get<size_t>() + 1, content.size());
      nlohmann::json& block = content.back();
      const nlohmann::json& delta = json["delta"];
      const std::string kind = delta["type"];
      if (kind == "input_json_delta") {
        EXPECT_EQ(block["type"], "tool_use");
        arguments += delta["partial_json"].get<std::string>();
      } else if (kind == "signature_delta") {
        block["signature"] = delta["signature"];
      } else {
        const char* key = kind == "thinking_delta" ? "thinking" : "text";
        EXPECT_EQ(block["type"], key);
        block[key].get_ref<std::string&>() += delta[key].get<std::string>();
      }
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(open);
      EXPECT_EQ(json["index"].get<size_t>() + 1, content.size());
      open = false;
      if (content.back()["type"] == "tool_use") {
        content.back()["input"] = nlohmann::json::parse(arguments, nullptr, false);
        EXPECT_TRUE(content.back()["input"].is_object()) << arguments;
      }
    } else if (type == "message_delta") {
      EXPECT_TRUE(!open && !ended);
      ended = true;
      message.update(json["delta"]);
      for (const char* key : {"input_tokens", "cache_read_input_tokens"}) {
        EXPECT_EQ(message["usage"][key], json["usage"][key]) << "message_start said otherwise";
      }
      message["usage"].update(json["usage"]);
    } else {
      EXPECT_EQ(type, "message_stop");
      EXPECT_TRUE(ended);
      stopped = true;
    }
  }
  EXPECT_EQ(stopped, rebuilt.error.is_null());
  rebuilt.answer = message;
  return rebuilt;
}

/// OpenAI's responses: each item and each part is added, told in deltas and done.
class ResponseRebuilder {
 public:
  Rebuilt Rebuild(const EventStream& stream) {
    EXPECT_FALSE(stream.done);
    for (size_t i = 0; i < stream.events.size(); ++i) {
      const auto& [name, json] = stream.events[i];
      EXPECT_EQ(name, json["type"]);
      EXPECT_EQ(json["sequence_number"], i);
      EXPECT_FALSE(ended_) << "after the end: " << json;
      EXPECT_EQ(json["type"] == "response.created", i == 0);
      Read(json["type"], json);
    }
    EXPECT_TRUE(ended_);
    return rebuilt_;
  }

 private:
  void Read(const std::string& type, const nlohmann::json& json) {
    if (type == "response.created" || type == "response.in_progress") {
      EXPECT_EQ(json["response"]["status"], "in_progress");
      EXPECT_TRUE(json["response"]["output"].empty());
    } else if (type == "error") {
      rebuilt_.error = json;
    } else if (type == "response.output_item.added") {
      EXPECT_TRUE(item_.is_null());
      EXPECT_EQ(json["output_index"], output_.size());
      item_ = json["item"];
      EXPECT_EQ(item_["status"], "in_progress");
    } else if (type == "response.output_item.done") {
      EXPECT_TRUE(part_.is_null());
      EXPECT_EQ(json["output_index"], output_.size());
      nlohmann::json item = json["item"];
      output_.push_back(item);
      EXPECT_NE(item["status"], "in_progress");
      // Only what the deltas do not tell may differ.
      item["status"] = item_["status"];
      item.erase("encrypted_content");
      EXPECT_EQ(item, item_);
      item_ = nullptr;
    } else if (type.starts_with("response.content_part.")) {
      InItem(json);
      ReadPart(type, json);
    } else if (type.ends_with(".delta") || type.ends_with(".done")) {
      InItem(json);
      ReadText(type, json);
    } else if (type != "keepalive") {
      End(type, json["response"]);
    }
  }
  void InItem(const nlohmann::json& json) {
    EXPECT_FALSE(item_.is_null());
    EXPECT_EQ(json["item_id"], item_["id"]);
    EXPECT_EQ(json["output_index"], output_.size());
  }
  void ReadPart(const std::string& type, const nlohmann::json& json) {
    EXPECT_EQ(json["content_index"], item_["content"].size());
    if (type.ends_with(".added")) {
      EXPECT_TRUE(part_.is_null());
      part_ = json["part"];
      EXPECT_EQ(part_["text"], "");
      part_done_ = false;
      return;
    }
    EXPECT_TRUE(part_done_);
    EXPECT_EQ(json["part"], part_);
    item_["content"].push_back(part_);
    part_ = nullptr;
  }
  void ReadText(const std::string& type, const nlohmann::json& json) {
    const bool is_call = type.starts_with("response.function_call_arguments");
    EXPECT_EQ(is_call, item_["type"] == "function_call");
    nlohmann::json& holder = is_call ? item_["arguments"] : part_["text"];
    ASSERT_TRUE(holder.is_string()) << "no part is open: " << json;
    if (!is_call) {
      EXPECT_EQ(type.substr(9, type.rfind('.') - 9), part_["type"]);
    }
    if (type.ends_with(".delta")) {
      EXPECT_NE(json["delta"], "");
      holder.get_ref<std::string&>() += json["delta"].get<std::string>();
    } else {
      EXPECT_EQ(json[is_call ? "arguments" : "text"], holder);
      part_done_ = true;
    }
  }
  void End(const std::string& type, const nlohmann::json& response) {
    EXPECT_TRUE(item_.is_null() && part_.is_null());
    EXPECT_EQ(type, "response." + response["status"].get<std::string>());
    EXPECT_EQ(response["output"], output_);
    EXPECT_EQ(response["status"] == "failed", !rebuilt_.error.is_null());
    EXPECT_EQ(response["status"] == "failed", !response["error"].is_null());
    EXPECT_EQ(response["status"] == "incomplete", !response["incomplete_details"].is_null());
    rebuilt_.answer = response;
    ended_ = true;
  }

  Rebuilt rebuilt_;
  nlohmann::json output_ = nlohmann::json::array();
  nlohmann::json item_;  // that is open
  nlohmann::json part_;  // that is open
  bool part_done_ = false;
  bool ended_ = false;
};

}  // namespace thimble::server
