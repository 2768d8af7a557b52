#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "cli/run_report.h"
#include "cli/run_screen.h"
#include "cli/token_ids.h"
#include "engine/generation.h"
#include "engine/session_file.h"
#include "engine/snapshot.h"
#include "io/output_file.h"
#include "outlook/embedded_model.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  std::optional<std::string> prompt;
  std::string file;
  std::vector<TokenId> ids;
  GenerationOptions generation;
  std::optional<float> temperature;
  bool seed_given = false;
  std::optional<size_t> context;
  std::optional<size_t> prefill_chunk;
  std::string stats_file;
  std::string logits_file;
  std::string session_file;  // empty: none
  bool out_ids = false;
  bool verbose = false;
};

// The files that a run writes. They are opened before the model is, so that nothing is computed
// that cannot be kept.
struct RunOutputs {
  explicit RunOutputs(const RunOptions& options) {
    CheckDistinct({options.stats_file, options.logits_file, options.session_file});
    if (!options.session_file.empty()) CheckOutputFile(options.session_file);
    if (!options.stats_file.empty()) stats.emplace(options.stats_file);
    if (!options.logits_file.empty()) logits.emplace(options.logits_file);
  }

  std::optional<OutputFile> stats;
  std::optional<OutputFile> logits;
};

// Whether there is a session to go on from.
bool HasSession(const RunOptions& options) {
  return !options.session_file.empty() && SessionFile::Exists(options.session_file);
}

std::vector<TokenId> PromptIds(const RunOptions& options, const ModelDirectory& model) {
  const int sources =
      (options.prompt ? 1 : 0) + (options.file.empty() ? 0 : 1) + (options.ids.empty() ? 0 : 1);
  if (sources == 0 && HasSession(options)) return {};
  if (sources != 1) {
    throw Error(ErrorCode::kUsage, "give the prompt by exactly one of -p, -f and --ids");
  }
  if (!options.ids.empty()) return options.ids;
  const std::string text = options.prompt ? *options.prompt : ReadUserText(options.file);
  std::vector<TokenId> ids;
  model.RequireTokenizer().Encode(text, &ids);
  if (ids.empty()) throw Error(ErrorCode::kUsage, "the prompt is empty, expected some text");
  return ids;
}

void CheckIds(const std::vector<TokenId>& ids, size_t vocab_size) {
  for (const TokenId id : ids) {
    if (id >= vocab_size) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("token id {} is outside the vocabulary, expected 0 "
                              "to {}",
                              id, vocab_size - 1));
    }
  }
}

// What was asked for, within what the model can hold. Room for the prompt and the answer by
// default.
size_t ContextFor(const RunOptions& options, const ModelConfig& config, size_t prompt_tokens) {
  const size_t wanted = options.context.value_or(
      std::min(config.max_context, prompt_tokens + options.generation.max_tokens));
  if (wanted > config.max_context) {
    throw Error(ErrorCode::kUsage, fmt::format("-c {} is more than the model's {} tokens", wanted,
                                               config.max_context));
  }
  if (wanted < prompt_tokens) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the prompt has {} tokens, the context {}: {}", prompt_tokens, wanted,
                            wanted < config.max_context ? "raise -c or shorten the prompt"
                                                        : "shorten the prompt"));
  }
  return wanted;
}

SamplingOptions SamplingOf(const RunOptions& options) {
  SamplingOptions sampling = options.generation.sampling;
  const bool samples = sampling.top_k != 0 || sampling.top_p < 1 || sampling.min_p > 0;
  sampling.temperature = options.temperature.value_or(samples ? 1.0F : 0.0F);
  CheckSamplingOptions(sampling);
  return sampling;
}

class RunCommand {
 public:
  RunCommand(const RunOptions& options, const ModelDirectory& model, RunOutputs* outputs)
      : options_(options),
        model_(model),
        outputs_(*outputs),
        prompt_(PromptIds(options, model)),
        engine_(OpenEngine()),
        session_(*engine_),
        screen_({options.prompt.value_or(""), options.out_ids || !model.tokenizer, options.verbose,
                 !options.session_file.empty()},
                *engine_, prompt_.size()) {}

  void Run() {
    CatchInterrupts();
    Generate();
    const bool interrupted = result_.reason == FinishReason::kInterrupted && !screen_.failure();
    // An interrupted prompt counts as far as it was read.
    const size_t prompt_tokens = std::min(prompt_.size(), session_.num_tokens());
    LastSteps steps;
    if (!options_.session_file.empty()) steps.Do([&] { SaveSession(); });
    if (outputs_.logits && !interrupted)
      steps.Do([&] { Commit(*outputs_.logits, options_.logits_file); });
    if (!screen_.failure()) ReportRun(*engine_, prompt_tokens, result_, options_.verbose);
    if (outputs_.stats) {
      steps.Do([&] { WriteStats(RunStats(*engine_, prompt_tokens, result_)); });
    }
    if (screen_.failure()) steps.Do([&] { std::rethrow_exception(screen_.failure()); });
    steps.ThrowFailure();
    if (interrupted) throw Error(ErrorCode::kInterrupted, "");
  }

 private:
  std::unique_ptr<Engine> OpenEngine() {
    CheckIds(prompt_, model_.config.vocab_size);
    EngineOptions engine = options_.model.ForEngine();
    const size_t num_saved =
        HasSession(options_) ? SessionFile::NumTokens(options_.session_file) : 0;
    engine.context = ContextFor(options_, model_.config, num_saved + prompt_.size());
    engine.prefill_chunk = options_.prefill_chunk;
    engine.all_logits = outputs_.logits.has_value();
    if (outputs_.logits) {
      outputs_.logits->RequireRoom(prompt_.size() * model_.config.vocab_size * sizeof(float));
    }
    if (!options_.session_file.empty()) {
      CheckOutputFile(options_.session_file,
                      Snapshot::Bytes(model_.config, engine.context, engine.latents));
    }
    return Engine::Open(model_, engine);
  }

  // Goes on from the session of an earlier run, if there is one.
  void Generate() {
    GenerationOptions generation = options_.generation;
    if (HasSession(options_)) notes_ = SessionFile::Load(options_.session_file, session_);
    if (!options_.seed_given) generation.random_state = notes_.random_state;
    tokens_ = session_.tokens();
    const size_t num_loaded = tokens_.size();
    tokens_.insert(tokens_.end(), notes_.pending.begin(), notes_.pending.end());
    tokens_.insert(tokens_.end(), prompt_.begin(), prompt_.end());
    Session::LogitsSink sink;
    if (outputs_.logits) {
      sink = [&](size_t, const float* rows, size_t num_rows) {
        outputs_.logits->Write(rows, num_rows * model_.config.vocab_size * sizeof(float));
      };
    }
    result_ = thimble::Generate(session_, std::span(tokens_).subspan(num_loaded), generation,
                                screen_, sink);
    screen_.End();
  }

  void SaveSession() {
    if (session_.poisoned()) {
      Note("the session was not saved: it broke off in the middle of a step\n");
      return;
    }
    tokens_.insert(tokens_.end(), result_.ids.begin(), result_.ids.end());
    notes_.pending.assign(tokens_.begin() + static_cast<ptrdiff_t>(session_.num_tokens()),
                          tokens_.end());
    notes_.random_state = result_.random_state;
    const auto save = [&](const std::filesystem::path& path) {
      SessionFile::Save(path, session_, notes_);
    };
    SaveOrRescue(
        options_.session_file, [&] { save(options_.session_file); }, save);
    Note("session of {} tokens saved in {}\n", tokens_.size(), options_.session_file);
  }

  static void Commit(OutputFile& file, const std::string& named) {
    SaveOrRescue(
        named, [&] { file.Commit(); },
        [&](const std::filesystem::path& place) { file.CommitTo(place); });
  }

  void WriteStats(const std::string& text) {
    const auto save = [&](OutputFile& file) {
      file.Write(text);
      file.Commit();
    };
    SaveOrRescue(
        options_.stats_file, [&] { save(*outputs_.stats); },
        [&](const std::filesystem::path& place) {
          OutputFile elsewhere(place);
          save(elsewhere);
        });
  }

  const RunOptions& options_;
  const ModelDirectory& model_;
  RunOutputs& outputs_;
  const std::vector<TokenId> prompt_;
  const std::unique_ptr<Engine> engine_;
  Session session_;
  RunScreen screen_;
  SessionNotes notes_;
  std::vector<TokenId> tokens_;  // of the conversation, computed or not
  GenerationResult result_;
};

void Run(RunOptions options) {
  options.generation.sampling = SamplingOf(options);
  RunOutputs outputs(options);
  const ModelDirectory model = ModelDirectory::Open(ModelOrEmbedded(options.model.model));
  RunCommand(options, model, &outputs).Run();
}

void AddGenerationOptions(CLI::App& app, RunOptions* options) {
  AddCount(app, "-n", kAnyTokens, &options->generation.max_tokens,
           "Maximum number of tokens to generate (default: 256)");
  AddCount(app, "-c,--context", kSomeTokens, &options->context,
           "Tokens to make room for (default: the prompt and -n)");
  AddSamplingOptions(app, &options->generation.sampling);
  AddReal(
      app, "--temp", kTemperatures, &options->temperature,
      "Sampling temperature; 0 always takes the likeliest token (default: 0, or 1 where --top-k, "
      "--top-p or --min-p is given)");
  AddTexts(app, "--stop", "TEXT", &options->generation.stop_strings,
           "Stop before this text; may be given several times");
  AddCount(app, "--prefill-chunk", {1, 65536}, &options->prefill_chunk,
           "Tokens of the prompt that pass through a layer together; changes the speed, never the "
           "text (default: as memory allows)");
}

void AddPromptOptions(CLI::App& app, RunOptions* options) {
  AddText(app, "-p,--prompt", "TEXT", &options->prompt, "The text to continue");
  AddText(app, "-f,--file", "FILE", &options->file,
          "File with the text to continue, or '-' for standard input");
  AddText(
      app, "--ids", "IDS",
      [options](const std::string& text) {
        const std::string wrong = ParseIds(text, &options->ids);
        if (wrong.empty() && text.find_first_of("0123456789") != std::string::npos) return;
        throw CLI::ValidationError(
            "--ids", fmt::format("expected token ids from 0 to {} separated by commas, found '{}'",
                                 UINT32_MAX, wrong.empty() ? text : wrong));
      },
      "The token ids to continue, e.g. 1,2,3")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args();
}

void AddOutputOptions(CLI::App& app, RunOptions* options) {
  AddText(app, "--session", "FILE", &options->session_file,
          "Continue the session in a file, if it exists, and save it there afterwards");
  AddText(app, "--stats", "FILE", &options->stats_file, "Write figures of the run as JSON");
  AddText(app, "--logits", "FILE", &options->logits_file,
          "Write the logits of every prompt position: float32, little-endian, one row each");
  app.add_flag("--out-ids", options->out_ids, "Print token ids instead of text");
  app.add_flag("-v,--verbose", options->verbose,
               "Show what the engine does while it works, and at the end what its memory was for");
}

}  // namespace

void AddRunCommand(CLI::App& program) {
  auto options = std::make_shared<RunOptions>();
  CLI::App& app = *program.add_subcommand("run", "Continue a text");
  AddEngineOptions(app, &options->model);
  AddPromptOptions(app, options.get());
  AddGenerationOptions(app, options.get());
  AddOutputOptions(app, options.get());
  app.callback([options, &app] {
    options->seed_given = app.count("--seed") > 0;
    Run(*options);
  });
}

}  // namespace thimble::cli
