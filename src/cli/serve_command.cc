#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include "base/byte_size.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/planner.h"
#include "outlook/embedded_model.h"
#include "server/access.h"
#include "server/http_server.h"
#include "server/scheduler.h"
#include "terminal/interrupt.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr size_t kDefaultContext = 4096;
constexpr double kGraceSeconds = 30;

struct ServeOptions {
  ModelOptions model;
  server::HttpOptions http;
  server::SchedulerLimits limits = {4, 32, 0};
  std::string effort = "low";
  std::optional<size_t> context;
  std::string name;
};

size_t PromptLogitRows(uint64_t budget, const ModelConfig& config) {
  constexpr uint64_t kShare = 256;
  constexpr uint64_t kMost = 512;
  return std::clamp<uint64_t>(budget / kShare / (config.vocab_size * sizeof(float)), 1, kMost);
}

EngineOptions EngineOptionsFor(const ServeOptions& options, const ModelConfig& config) {
  EngineOptions engine = options.model.ForEngine();
  const uint64_t budget = options.model.MemoryBytes().value_or(DefaultMemoryBudget());
  engine.memory_bytes = budget;
  engine.context = options.context.value_or(std::min(kDefaultContext, config.max_context));
  engine.num_sessions = options.limits.num_sessions;
  // A sixteenth of the budget for what clients send, a quarter for what they come back to.
  engine.program_bytes = server::Scheduler::OwnBytes(config.vocab_size);
  engine.program_bytes += server::HttpServer::OwnBytes(
      options.http, options.limits.num_sessions + options.limits.max_queue, engine.context);
  // Clients may ask for the probabilities of their prompts: a 256th of the budget for the logits.
  const uint64_t row_bytes = config.vocab_size * sizeof(float);
  engine.program_bytes += PromptLogitRows(budget, config) * row_bytes;
  engine.snapshot_bytes =
      std::min(16 * Snapshot::Bytes(config, engine.context, engine.latents), budget / 4);
  return engine;
}

void Serve(ServeOptions options) {
  server::HttpServer::CheckAddress(options.http);
  const ModelDirectory model = ModelDirectory::Open(ModelOrEmbedded(options.model.model));
  const uint64_t budget = options.model.MemoryBytes().value_or(DefaultMemoryBudget());
  options.http.max_body_bytes =
      std::min(options.http.max_body_bytes, server::HttpServer::MaxBodyBytes(budget));
  EngineOptions engine_options = EngineOptionsFor(options, model.config);
  if (model.tokenizer) {
    engine_options.program_bytes +=
        TokenFilter::OwnBytes(*model.tokenizer, options.limits.num_sessions);
  }
  std::unique_ptr<Engine> engine;
  try {
    engine = Engine::Open(model, engine_options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOverBudget) throw;
    engine_options.snapshot_bytes = 0;
    engine = Engine::Open(model, engine_options);
  }
  options.limits.snapshot_bytes = engine_options.snapshot_bytes;
  options.limits.prompt_logit_rows = PromptLogitRows(budget, model.config);

  server::ServedModel served;
  served.tokenizer = &model.RequireTokenizer();
  served.trie = std::make_shared<LazyTokenTrie>(*served.tokenizer);
  try {
    served.markup = FindChatMarkup(*served.tokenizer);
  } catch (const Error&) {
    Note("thimble: this model has no chat format: only /v1/completions works\n");
  }
  served.name = options.name;
  if (served.name.empty()) {
    served.name = std::filesystem::canonical(model.path).filename().string();
  }
  served.context = engine_options.context;
  served.created = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  served.fingerprint = fmt::format("fp_{:016x}", engine->Fingerprint());
  served.effort = options.effort == "off" ? "" : options.effort;
  served.stop_ids = model.StopIds();
  served.sampling.temperature = 1.0F;
  served.sampling.top_p = 0.95F;

  server::Scheduler scheduler(*engine, options.limits);
  server::HttpServer http(options.http, served, scheduler);
  CatchInterrupts();
  const int port = http.Start();
  Note("serving {} on {}/v1, context {}, {} at once\n", served.name,
       server::UrlOf(options.http.host, port), served.context, options.limits.num_sessions);
  while (!Interrupted()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  Note("ending the answers that are on their way\n");
  scheduler.Drain();
  http.Stop(kGraceSeconds);
}

}  // namespace

void AddServeCommand(CLI::App& program) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App& app =
      *program.add_subcommand("serve", "Serve a model to clients of OpenAI's and Anthropic's APIs");
  AddEngineOptions(app, &options->model);
  AddText(app, "--host", "ADDRESS", &options->http.host,
          "Address to listen on (default: 127.0.0.1, this machine only)");
  AddCount(app, "--port", {0, 65535}, &options->http.port,
           "Port to listen on; 0: any that is free (default: 8080)");
  AddText(app, "--api-key", "KEY", &options->http.api_key,
          "Key that clients must give (default: none)");
  AddText(app, "--cors", "ORIGIN", &options->http.origin,
          "Origin of web pages that may call, or '*' (default: pages of this server and of this "
          "machine)");
  AddTexts(app, "--allow-host", "NAME", &options->http.allowed_hosts,
           "Further name by which clients may call this server, e.g. that of a proxy or container; "
           "may be repeated (default: addresses and this machine's own names)");
  AddText(app, "--name", "NAME", &options->name, "Name of the model (default: its directory's)");
  app.add_option("--effort", options->effort,
                 "How much the model thinks where a request does not say: low, high, max or off "
                 "(default: low)")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"low", "high", "max", "off"}));
  AddCount(app, "--parallel", {1, 64}, &options->limits.num_sessions,
           "Requests computed together; each sweep over the weights serves all (default: 4)");
  AddCount(app, "--queue", {1, 1024}, &options->limits.max_queue,
           "Requests that may wait beside them (default: 32)");
  AddCount(
      app, "-c,--context", kSomeTokens, &options->context,
      "Tokens of a prompt and its answer together (default: 4096, or what the model can hold)");
  AddCount(app, "--connections", {1, 65536}, &options->http.num_connections,
           "Clients that may be connected at a time, each for 48 kB of the memory (default: 256)");
  app.callback([options] {
    for (std::string& host : options->http.allowed_hosts) host = server::ParseAllowedHost(host);
    if (!options->http.origin.empty()) {
      options->http.origin = server::ParseAllowedOrigin(options->http.origin);
    }
    Serve(*options);
  });
}

}  // namespace thimble::cli
