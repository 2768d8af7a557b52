#pragma once

#include <string>

#include "chat/prompt.h"
#include "text/tokenizer.h"

namespace thimble::fuzz {

inline std::string Base64Byte(int byte) {
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {kAlphabet[byte >> 2], kAlphabet[(byte & 3) << 4], '=', '='};
}

/// The 256 single bytes as tokens, and the names in the given order from id 256 on.
template <size_t N>
Tokenizer ByteTokenizer(const char* const (&names)[N]) {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte) {
    ranks += Base64Byte(byte) + ' ' + std::to_string(byte) + '\n';
  }
  std::string config = R"({"added_tokens_decoder": {)";
  for (size_t i = 0; i < N; ++i) {
    if (i > 0) config += ',';
    config += '"' + std::to_string(256 + i) + "\": {\"content\": \"" + names[i] + "\"}";
  }
  config += "}}";
  return Tokenizer::Parse({.ranks = ranks, .config = config, .directory = "fuzz"});
}

inline const Tokenizer& ChatTokenizer(ChatMarkup markup) {
  static const Tokenizer k3 =
      ByteTokenizer({"[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>",
                     "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"});
  static const Tokenizer linear = ByteTokenizer(
      {"[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>",
       "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
       "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_middle|>"});
  return markup == ChatMarkup::kKimiK3 ? k3 : linear;
}

}  // namespace thimble::fuzz
