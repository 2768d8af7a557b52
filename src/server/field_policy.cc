#include "server/field_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "server/request_fields.h"

namespace thimble::server {
namespace {

using Names = std::span<const std::string_view>;

// Read by ReadSampling and by each API of chat.
constexpr std::array<std::string_view, 26> kRead = {"temperature",
                                                    "top_p",
                                                    "top_k",
                                                    "min_p",
                                                    "seed",
                                                    "frequency_penalty",
                                                    "presence_penalty",
                                                    "repetition_penalty",
                                                    "repeat_penalty",
                                                    "logit_bias",
                                                    "stream",
                                                    "tools",
                                                    "tool_choice",
                                                    "parallel_tool_calls",
                                                    "model",
                                                    "stop",
                                                    "stop_token_ids",
                                                    "thinking",
                                                    "reasoning",
                                                    "enable_thinking",
                                                    "thinking_budget",
                                                    "include_reasoning",
                                                    "store",
                                                    "verbosity",
                                                    "chat_template_kwargs",
                                                    "web_search_options"};
constexpr std::array<std::string_view, 17> kReadOfChat = {"messages",
                                                          "functions",
                                                          "function_call",
                                                          "response_format",
                                                          "reasoning_effort",
                                                          "stream_options",
                                                          "logprobs",
                                                          "top_logprobs",
                                                          "max_tokens",
                                                          "max_completion_tokens",
                                                          "n",
                                                          "continue_final_message",
                                                          "add_generation_prompt",
                                                          "guided_json",
                                                          "structured_outputs",
                                                          "json_schema",
                                                          "n_predict"};
constexpr std::array<std::string_view, 7> kReadOfMessages = {
    "messages",      "system",        "stop_sequences",    "max_tokens",
    "output_config", "output_format", "context_management"};
constexpr std::array<std::string_view, 6> kReadOfResponses = {
    "input", "instructions", "include", "text", "max_output_tokens", "top_logprobs"};
constexpr std::array<std::string_view, 10> kReadOfCompletions = {
    "prompt",   "max_tokens", "n_predict", "n",          "best_of",
    "logprobs", "echo",       "suffix",    "ignore_eos", "stream_options"};

// These change no answer: what they ask for is done anyway, or is about accounts, caches and speed.
constexpr std::array<std::string_view, 30> kHarmless = {"metadata",
                                                        "user",
                                                        "service_tier",
                                                        "cache_control",
                                                        "betas",
                                                        "anthropic_beta",
                                                        "anthropic_version",
                                                        "stream_options",
                                                        "prompt_cache_key",
                                                        "prompt_cache_retention",
                                                        "safety_identifier",
                                                        "truncation",
                                                        "prediction",
                                                        "cache_prompt",
                                                        "id_slot",
                                                        "slot_id",
                                                        "keep_alive",
                                                        "max_tool_calls",
                                                        "inference_geo",
                                                        "speed",
                                                        "provider",
                                                        "route",
                                                        "usage",
                                                        "priority",
                                                        "request_id",
                                                        "cache_salt",
                                                        "guided_decoding_backend",
                                                        "return_token_ids",
                                                        "timings_per_token",
                                                        "client_metadata"};

// A field that would change the answer, unless it has the neutral value.
struct RefusedField {
  std::string_view name;
  std::string_view neutral;  // JSON; null and an empty string or array are neutral, too
  std::string_view remedy;
};
constexpr std::string_view kLeaveOut = "leave it out";
constexpr std::string_view kUseSchema = "use response_format with a JSON schema";
constexpr std::string_view kUseChat = "the form of an answer is bound by /v1/chat/completions";
constexpr std::string_view kSendAll = "nothing is stored; send the whole conversation";
constexpr std::array<RefusedField, 61> kRefused = {{
    {"best_of", "1", kLeaveOut},
    {"use_beam_search", "false", kLeaveOut},
    {"num_beams", "1", kLeaveOut},
    {"length_penalty", "1", kLeaveOut},
    {"early_stopping", "false", kLeaveOut},
    {"no_repeat_ngram_size", "0", kLeaveOut},
    {"min_tokens", "0", kLeaveOut},
    {"ignore_eos", "false", "it is understood by /v1/completions"},
    {"typical_p", "1", kLeaveOut},
    {"tfs_z", "1", kLeaveOut},
    {"top_a", "0", kLeaveOut},
    {"top_n_sigma", "-1", kLeaveOut},
    {"epsilon_cutoff", "0", kLeaveOut},
    {"eta_cutoff", "0", kLeaveOut},
    {"mirostat", "0", kLeaveOut},
    {"dynatemp_range", "0", kLeaveOut},
    {"xtc_probability", "0", kLeaveOut},
    {"dry_multiplier", "0", kLeaveOut},
    {"smoothing_factor", "0", kLeaveOut},
    {"penalty_alpha", "0", kLeaveOut},
    {"guidance_scale", "1", kLeaveOut},
    {"samplers", "", kLeaveOut},
    {"bad_words", "", "use logit_bias"},
    {"allowed_token_ids", "", "use logit_bias"},
    {"logits_processors", "", kLeaveOut},
    {"skip_special_tokens", "true", kLeaveOut},
    {"spaces_between_special_tokens", "true", kLeaveOut},
    {"include_stop_str_in_output", "false", kLeaveOut},
    {"truncate_prompt_tokens", "", "shorten the conversation"},
    {"prompt_logprobs", "0", "use /v1/completions with echo and logprobs"},
    {"separate_reasoning", "true", kLeaveOut},
    {"chat_template", "", "the model's own is used"},
    {"documents", "", "put them into a message"},
    {"echo", "false", "it is understood by /v1/completions"},
    {"suffix", "", kLeaveOut},
    {"response_format", R"({"type":"text"})", kUseChat},
    {"guided_json", "", kUseChat},
    {"structured_outputs", "", kUseChat},
    {"json_schema", "", kUseChat},
    {"guided_regex", "", kUseSchema},
    {"guided_choice", "", "use response_format with a JSON schema that has an enum"},
    {"guided_grammar", "", kUseSchema},
    {"grammar", "", kUseSchema},
    {"regex", "", kUseSchema},
    {"ebnf", "", kUseSchema},
    {"structural_tag", "", kUseSchema},
    {"audio", "", "this model answers with text"},
    {"modalities", R"(["text"])", "this model answers with text"},
    {"max_new_tokens", "", "use max_tokens"},
    {"max_length", "", "use max_tokens"},
    {"num_predict", "", "use max_tokens"},
    {"num_ctx", "", "serve with -c"},
    {"mcp_servers", "", "offer their tools as functions"},
    {"container", "", kLeaveOut},
    {"plugins", "", kLeaveOut},
    {"background", "false", "answers are not stored; wait for this one, or stream it"},
    {"previous_response_id", "", kSendAll},
    {"conversation", "", kSendAll},
    {"prompt", "", "templates are not stored; send what they say"},
    {"input_ids", "", "use /v1/completions"},
    {"lora", "", kLeaveOut},
}};

// A field of another API that means the same under a name of this one.
struct Misnamed {
  Api api;
  std::string_view name;
  std::string_view right;
};
constexpr std::array<Misnamed, 12> kMisnamed = {{
    {Api::kChat, "max_output_tokens", "max_tokens"},
    {Api::kChat, "stop_sequences", "stop"},
    {Api::kChat, "system", "a message of role system"},
    {Api::kChat, "input", "messages"},
    {Api::kCompletions, "messages", "prompt"},
    {Api::kCompletions, "stop_sequences", "stop"},
    {Api::kMessages, "max_completion_tokens", "max_tokens"},
    {Api::kMessages, "response_format", "output_config.format"},
    {Api::kMessages, "reasoning_effort", "output_config.effort"},
    {Api::kResponses, "max_tokens", "max_output_tokens"},
    {Api::kResponses, "messages", "input"},
    {Api::kResponses, "response_format", "text.format"},
}};

bool Contains(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Names ReadBy(Api api) {
  switch (api) {
    case Api::kMessages:
      return kReadOfMessages;
    case Api::kResponses:
      return kReadOfResponses;
    case Api::kCompletions:
      return kReadOfCompletions;
    case Api::kChat:
      break;
  }
  return kReadOfChat;
}

bool IsNeutral(const JsonValue& value, std::string_view neutral) {
  if (value.is_null()) return true;
  if (value.is_string() && value.text.empty()) return true;
  if (value.is_array() && value.items.empty()) return true;
  if (neutral.empty()) return false;
  const JsonValue expected = ParseJson(neutral);
  if (value.is_number() && expected.is_number()) return value.AsDouble() == expected.AsDouble();
  return value == expected;
}

// Whether the field is one of kRefused, and neutral.
bool IsNeutralField(const JsonMember& field) {
  const auto* const refused = std::ranges::find(kRefused, field.key, &RefusedField::name);
  if (refused == kRefused.end()) return false;
  if (IsNeutral(field.value, refused->neutral)) return true;
  throw ApiError(400, fmt::format("{}: not supported; {}", field.key, refused->remedy));
}

void CheckMisnamed(Api api, const JsonMember& field) {
  for (const Misnamed& wrong : kMisnamed) {
    if (wrong.api != api || wrong.name != field.key || field.value.is_null()) continue;
    throw ApiError(400, fmt::format("{}: not a field of this API; use {}", field.key, wrong.right));
  }
}

void NoteUnknown(const std::vector<std::string_view>& unknown, ChatRequest* chat) {
  constexpr size_t kMaxNamed = 8;
  if (unknown.empty()) return;
  const auto named = std::span(unknown).first(std::min(unknown.size(), kMaxNamed));
  std::string names = fmt::format("{}", fmt::join(named, ", "));
  if (unknown.size() > kMaxNamed) names += fmt::format(" and {} more", unknown.size() - kMaxNamed);
  chat->AddNote(fmt::format("not known and ignored: {}", names));
}

}  // namespace

void CheckFields(Api api, const JsonValue& body, ChatRequest* chat) {
  std::vector<std::string_view> unknown;
  for (const JsonMember& field : body.members) {
    CheckMisnamed(api, field);
    if (Contains(kRead, field.key) || Contains(ReadBy(api), field.key)) continue;
    const bool passes = IsNeutralField(field) || Contains(kHarmless, field.key);
    if (!passes && !field.value.is_null()) unknown.push_back(field.key);
  }
  NoteUnknown(unknown, chat);
}

}  // namespace thimble::server
