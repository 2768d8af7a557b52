#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/run_report.h"
#include "engine/generation.h"
#include "engine/session_file.h"
#include "outlook/embedded_model.h"
#include "terminal/interrupt.h"
#include "terminal/live_status.h"
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

// The prompt, so that a reader at a terminal sees what the text continues. Pipes get only what is
// new.
void EchoPrompt(const RunOptions& options) {
  if (!options.prompt || options.out_ids) return;
  if (::isatty(STDOUT_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1) {
    fmt::print(stderr, "\033[1m{}\033[0m", *options.prompt);
  }
}

// Shows a generation: text or ids on standard output, progress on standard error.
class Screen : public GenerationListener {
 public:
  Screen(const RunOptions& options, const Engine& engine, size_t prompt_tokens)
      : options_(options),
        engine_(engine),
        prompt_tokens_(prompt_tokens),
        status_(engine, options.verbose) {}

  bool OnLayer(size_t layer) override {
    layer_ = layer;
    return Continue();
  }
  bool Continue() override {
    ShowProgress();
    return Resumes() || !Interrupted();
  }
  bool OnPause() override { return !Interrupted(); }
  void OnProgress(size_t done, size_t total) override {
    prompt_done_ = done;
    if (done == total) progress_.Clear();
  }
  void OnToken(TokenId id) override {
    if (num_tokens_++ == 0) status_.BeginText();
    if (!options_.out_ids) return;
    Print(any_ ? fmt::format(",{}", id) : fmt::format("{}", id));
    any_ = true;
  }
  void OnText(std::string_view text) override {
    if (options_.out_ids) return;
    // Not before: the lines of progress would have erased it.
    if (!any_) EchoPrompt(options_);
    Print(text);
    ends_line_ = text.back() == '\n';
    any_ = true;
  }
  // Leaves the cursor at the start of a line.
  void End() {
    progress_.Clear();
    status_.Clear();
    if (any_ && !ends_line_) Print("\n");
  }

 private:
  // A chunk may take minutes, and a layer many seconds: each layer moves the progress by its share
  // of the chunk, and within it the time that is left is brought up to date.
  void ShowProgress() {
    if (prompt_done_ < prompt_tokens_) {
      const size_t chunk = std::min(engine_.plan().prefill_chunk, prompt_tokens_ - prompt_done_);
      const size_t done = prompt_done_ + chunk * layer_ / engine_.config().num_layers();
      status_.Show("reading the prompt", done, layer_);
      if (!status_.active()) progress_.Show("reading the prompt", done, prompt_tokens_);
    } else {
      status_.Show("writing", num_tokens_, layer_);
    }
  }

  // A session that is to be saved ends between two sweeps, where it is whole.
  bool Resumes() {
    if (options_.session_file.empty()) return false;
    if (Interrupted() && !told_) {
      fmt::print(stderr, "\nfinishing this step to save the session; Ctrl-C again ends at once\n");
      told_ = true;
    }
    return true;
  }

  const RunOptions& options_;
  bool told_ = false;
  const Engine& engine_;
  size_t prompt_tokens_;
  size_t prompt_done_ = 0;
  size_t layer_ = 0;
  ProgressLine progress_;
  LiveStatus status_;
  size_t num_tokens_ = 0;  // sampled so far
  bool any_ = false;
  bool ends_line_ = false;
};

// Whether there is a session to go on from.
bool HasSession(const RunOptions& options) {
  return !options.session_file.empty() && std::filesystem::exists(options.session_file);
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

// Continues `session`, and saves it where that is asked for.
GenerationResult Continue(const RunOptions& options, Session& session,
                          std::span<const TokenId> prompt, Screen& screen,
                          const Session::LogitsSink& sink) {
  GenerationOptions generation = options.generation;
  std::vector<TokenId> tokens;  // of the conversation, computed or not
  SessionNotes notes;
  if (HasSession(options)) notes = SessionFile::Load(options.session_file, session);
  if (!options.seed_given) generation.random_state = notes.random_state;
  tokens = session.tokens();
  const size_t num_loaded = tokens.size();
  tokens.insert(tokens.end(), notes.pending.begin(), notes.pending.end());
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  GenerationResult result =
      Generate(session, std::span(tokens).subspan(num_loaded), generation, screen, sink);
  screen.End();
  if (options.session_file.empty()) return result;
  if (session.poisoned()) {
    fmt::print(stderr, "the session was not saved: it broke off in the middle of a step\n");
    return result;
  }
  tokens.insert(tokens.end(), result.ids.begin(), result.ids.end());
  notes.pending.assign(tokens.begin() + static_cast<ptrdiff_t>(session.num_tokens()), tokens.end());
  notes.random_state = result.random_state;
  SessionFile::Save(options.session_file, session, notes);
  fmt::print(stderr, "session of {} tokens saved in {}\n", tokens.size(), options.session_file);
  return result;
}

void Run(RunOptions options) {
  const ModelDirectory model = ModelDirectory::Open(ModelOrEmbedded(options.model.model));
  options.generation.sampling = SamplingOf(options);
  const std::vector<TokenId> prompt = PromptIds(options, model);
  CheckIds(prompt, model.config.vocab_size);
  if (!model.tokenizer) options.out_ids = true;

  EngineOptions engine_options = options.model.ForEngine();
  const size_t num_saved = HasSession(options) ? SessionFile::NumTokens(options.session_file) : 0;
  engine_options.context = ContextFor(options, model.config, num_saved + prompt.size());
  engine_options.prefill_chunk = options.prefill_chunk;
  engine_options.all_logits = !options.logits_file.empty();
  const auto engine = Engine::Open(model, engine_options);
  Session session(*engine);

  CatchInterrupts();
  Screen screen(options, *engine, prompt.size());
  std::optional<OutputFile> logits;
  Session::LogitsSink sink;
  if (engine_options.all_logits) {
    logits.emplace(options.logits_file);
    sink = [&](size_t, const float* rows, size_t num_rows) {
      logits->Write(rows, num_rows * model.config.vocab_size * sizeof(float));
    };
  }
  const GenerationResult result = Continue(options, session, prompt, screen, sink);
  const bool interrupted = result.reason == FinishReason::kInterrupted;
  if (logits && !interrupted) logits->Commit();
  // An interrupted prompt counts as far as it was read.
  ReportRun(*engine, std::min(prompt.size(), session.num_tokens()), result,
            {options.stats_file, options.verbose});
  if (interrupted) throw Error(ErrorCode::kInterrupted, "");
}

void AddSamplingOptions(CLI::App& app, RunOptions* options) {
  SamplingOptions& sampling = options->generation.sampling;
  app.add_option("-s,--seed", sampling.seed,
                 "Seed of the sampling: same seed, same text (default: 0)")
      ->type_name("N");
  app.add_option("--temp", options->temperature,
                 "Sampling temperature; 0 always takes the likeliest token (default: 0, or 1 where "
                 "--top-k, --top-p or --min-p is given)")
      ->type_name("X");
  app.add_option("--top-k", sampling.top_k, "Sample from the N likeliest tokens only")
      ->type_name("N");
  app.add_option("--top-p", sampling.top_p,
                 "Sample from the likeliest tokens that together reach probability X")
      ->type_name("X");
  app.add_option("--min-p", sampling.min_p,
                 "Sample from tokens at least X times as likely as the likeliest")
      ->type_name("X");
  app.add_option("--repeat-penalty", sampling.repeat_penalty,
                 "Above 1: make tokens that occurred before less likely (default: 1)")
      ->type_name("X");
  app.add_option("--stop", options->generation.stop_strings,
                 "Stop before this text; may be given several times")
      ->type_name("TEXT")
      ->allow_extra_args(false);
}

}  // namespace

void AddRunCommand(CLI::App& program) {
  auto options = std::make_shared<RunOptions>();
  CLI::App& app = *program.add_subcommand("run", "Continue a text");
  AddEngineOptions(app, &options->model);
  app.add_option("-p,--prompt", options->prompt, "The text to continue")->type_name("TEXT");
  app.add_option("-f,--file", options->file, "Read the text to continue from a file, or '-'")
      ->type_name("FILE");
  app.add_option("--ids", options->ids, "The token ids to continue, e.g. 1,2,3")
      ->type_name("IDS")
      ->delimiter(',');
  app.add_option("-n", options->generation.max_tokens, "Most tokens to generate (default: 256)")
      ->type_name("N");
  app.add_option("-c,--context", options->context,
                 "Tokens to make room for (default: the prompt and -n)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  AddSamplingOptions(app, options.get());
  app.add_option(
         "--prefill-chunk", options->prefill_chunk,
         "Tokens of the prompt that pass through a layer together; changes the speed, never "
         "the text (default: as memory allows)")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  app.add_option("--session", options->session_file,
                 "Go on from the session in a file, if it is there, and save it there afterwards")
      ->type_name("FILE");
  app.add_option("--stats", options->stats_file, "Write figures of the run to a JSON file")
      ->type_name("FILE");
  app.add_option("--logits", options->logits_file,
                 "Write the logits of every prompt position: float32, little-endian, a row each")
      ->type_name("FILE");
  app.add_flag("--out-ids", options->out_ids, "Print token ids instead of text");
  app.add_flag("-v,--verbose", options->verbose,
               "Show what the engine does while it works, and at the end what its memory was for");
  app.callback([options, &app] {
    options->seed_given = app.count("--seed") > 0;
    Run(*options);
  });
}

}  // namespace thimble::cli
