#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/evaluation.h"
#include "outlook/embedded_model.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr size_t kDefaultWindow = 512;

struct EvalOptions {
  ModelOptions model;
  std::string file;
  std::optional<size_t> window;
  bool json = false;
};

void Evaluate(const EvalOptions& options) {
  const ModelDirectory model = ModelDirectory::Open(ModelOrEmbedded(options.model.model));
  const Tokenizer& tokenizer = model.RequireTokenizer();
  const std::string text = ReadUserText(options.file);
  std::vector<TokenId> tokens;
  tokenizer.Encode(text, &tokens);

  EngineOptions engine_options = options.model.ForEngine();
  engine_options.context =
      options.window.value_or(std::min(kDefaultWindow, model.config.max_context));
  engine_options.all_logits = true;
  const auto engine = Engine::Open(model, engine_options);

  CatchInterrupts();
  ProgressLine progress;
  const EvaluationResult result =
      thimble::Evaluate(*engine, tokens, engine_options.context, [&](size_t done, size_t total) {
        progress.Show("reading the text", done, total);
        return !Interrupted();
      });
  progress.Clear();
  const uint64_t scored_bytes = text.size() - tokenizer.TokenBytes(tokens.front()).size();
  const double bits = result.BitsPerByte(scored_bytes);
  const double perplexity = result.PerplexityPerToken();
  if (options.json) {
    const nlohmann::ordered_json json = {{"bits_per_byte", bits},
                                         {"perplexity_per_token", perplexity},
                                         {"tokens", result.num_tokens},
                                         {"bytes", scored_bytes},
                                         {"window", engine_options.context}};
    Print(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    Print(fmt::format(
        "{:.4f} bits per byte, perplexity {:.3f} per token ({} tokens, {} bytes, windows "
        "of {} tokens)\n",
        bits, perplexity, result.num_tokens, scored_bytes, engine_options.context));
  }
}

}  // namespace

void AddEvalCommand(CLI::App& program) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App& app = *program.add_subcommand(
      "eval", "Measure how well a model predicts a text, in bits per byte and perplexity");
  AddEngineOptions(app, &options->model);
  AddText(app, "-f,--file", "FILE", &options->file, "The text, or '-' for standard input")
      ->required();
  AddCount(app, "-c,--context", {2, kSomeTokens.most}, &options->window,
           fmt::format("Tokens of a window, each read from an empty state (default: {})",
                       kDefaultWindow));
  app.add_flag("--json", options->json, "Print JSON");
  app.callback([options] { Evaluate(*options); });
}

}  // namespace thimble::cli
