#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/token_ids.h"
#include "outlook/embedded_model.h"
#include "terminal/output.h"
#include "text/tokenizer.h"

namespace thimble::cli {
namespace {

using JsonLine = nlohmann::json;

struct TokenizeOptions {
  std::filesystem::path model;
  bool markup = false;
  bool jsonl = false;
};

std::vector<TokenId> EncodeText(const Tokenizer& tokenizer, const TokenizeOptions& options,
                                const std::string& text) {
  std::vector<TokenId> ids;
  if (options.markup) {
    tokenizer.EncodeMarkup(text, &ids);
  } else {
    tokenizer.Encode(text, &ids);
  }
  return ids;
}

// Calls `convert` with the value of each line of standard input that is not empty.
template <typename T, typename Convert>
void ForEachJsonLine(const char* expected, const Convert& convert) {
  size_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (line.empty()) continue;
    std::optional<T> value;
    try {
      value = JsonLine::parse(line).get<T>();
    } catch (const JsonLine::exception&) {
      throw Error(ErrorCode::kUsage, fmt::format("line {} of the input: expected {}, found {}",
                                                 number, expected, line.substr(0, 60)));
    }
    convert(*value);
  }
}

void Tokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = Tokenizer::Load(ModelOrEmbedded(options.model));
  if (options.jsonl) {
    ForEachJsonLine<std::string>("a JSON string", [&](const std::string& text) {
      Print(JsonLine(EncodeText(tokenizer, options, text)).dump() + "\n");
    });
    return;
  }
  Print(fmt::format(
      "{}\n", fmt::join(EncodeText(tokenizer, options, ReadStandardInput(kMaxTextBytes)), ",")));
}

std::vector<TokenId> ParseInput(const std::string& text) {
  std::vector<TokenId> ids;
  const std::string wrong = ParseIds(text, &ids);
  if (wrong.empty()) return ids;
  throw Error(ErrorCode::kUsage,
              fmt::format("expected token ids separated by commas, found '{}'", wrong));
}

void Detokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = Tokenizer::Load(ModelOrEmbedded(options.model));
  if (options.jsonl) {
    ForEachJsonLine<std::vector<TokenId>>(
        "a JSON array of ids", [&](const std::vector<TokenId>& ids) {
          // JSON holds characters only: bytes that are none become U+FFFD.
          Print(JsonLine(tokenizer.Decode(ids))
                    .dump(-1, ' ', false, JsonLine::error_handler_t::replace) +
                "\n");
        });
    return;
  }
  Print(tokenizer.Decode(ParseInput(ReadStandardInput(kMaxTextBytes))));
}

void AddTokenizerModelOption(CLI::App& app, TokenizeOptions* options) {
  AddText(
      app, "-m,--model", "DIR", &options->model,
      "Directory with tiktoken.model, and tokenizer_config.json for the names of special tokens "
      "(default: the small model that comes with Thimble)");
}

}  // namespace

void AddTokenizeCommand(CLI::App& program) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App& app =
      *program.add_subcommand("tokenize", "Turn standard input into token ids, on one line");
  AddTokenizerModelOption(app, options.get());
  app.add_flag("--markup", options->markup, "Recognise the spellings of special tokens");
  app.add_flag("--jsonl", options->jsonl,
               "Each input line is a JSON string, each output line a JSON array of ids");
  app.callback([options] { Tokenize(*options); });
}

void AddDetokenizeCommand(CLI::App& program) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App& app = *program.add_subcommand(
      "detokenize", "Turn token ids on standard input (1,2,3 or a JSON array) into text");
  AddTokenizerModelOption(app, options.get());
  app.add_flag("--jsonl", options->jsonl,
               "Each input line is a JSON array of ids, each output line a JSON string");
  app.callback([options] { Detokenize(*options); });
}

}  // namespace thimble::cli
