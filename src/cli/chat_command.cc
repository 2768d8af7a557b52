#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/byte_size.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "dialogue/conversation.h"
#include "engine/planner.h"
#include "memory/process_memory.h"
#include "outlook/embedded_model.h"
#include "terminal/chat_screen.h"
#include "terminal/interrupt.h"
#include "terminal/line_reader.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr size_t kDefaultContext = 4096;
// Of the context, enough to go back a few turns.
constexpr uint64_t kMaxSnapshots = 8;

struct ChatOptions {
  ModelOptions model;
  std::string effort = "low";
  std::string session_file;  // empty: none
  std::optional<size_t> context;
  ConversationOptions conversation;
};

// What the conversation has, once the rest of the memory works without.
std::unique_ptr<Engine> OpenEngine(const ModelDirectory& model, const ChatOptions& options,
                                   EngineOptions* engine_options) {
  const uint64_t budget = options.model.MemoryBytes().value_or(DefaultMemoryBudget());
  *engine_options = options.model.ForEngine();
  engine_options->memory_bytes = budget;
  engine_options->context =
      options.context.value_or(std::min(kDefaultContext, model.config.max_context));
  engine_options->snapshot_bytes =
      std::min(kMaxSnapshots *
                   Snapshot::Bytes(model.config, engine_options->context, engine_options->latents),
               budget / 8);
  try {
    return Engine::Open(model, *engine_options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOverBudget) throw;
    engine_options->snapshot_bytes = 0;
    return Engine::Open(model, *engine_options);
  }
}

class Chat {
 public:
  Chat(Engine& engine, uint64_t snapshot_bytes, const ChatOptions& options)
      : engine_(engine),
        session_file_(options.session_file),
        conversation_(engine, snapshot_bytes, options.conversation),
        screen_(engine) {}

  void Run() {
    if (!session_file_.empty() && std::filesystem::exists(session_file_)) Load(session_file_);
    if (reader_.interactive()) Note("/help lists commands; Ctrl-D ends.\n");
    CountInterrupts();
    while (!ended_) {
      const auto message = reader_.Read(Prompt());
      if (!message) break;
      ForgetInterrupts();
      if (message->find_first_not_of(" \t\n") == std::string::npos) continue;
      try {
        Handle(*message);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUsage && error.code() != ErrorCode::kBadModel) throw;
        Note("{}\n", error.what());
      }
    }
    if (reader_.interactive() && !ended_) Print("\n");
  }

 private:
  using Handler = void (Chat::*)(const std::string&);
  struct Command {
    Handler handler;
    const char* help;
  };
  static const std::map<std::string, Command>& Commands() {
    static const std::map<std::string, Command> commands = {
        {"/help", {&Chat::Help, "lists these commands"}},
        {"/reset", {&Chat::Reset, "forgets the conversation"}},
        {"/save", {&Chat::Save, "FILE: saves the conversation and all that it has computed"}},
        {"/load", {&Chat::Load, "FILE: goes on from there"}},
        {"/system", {&Chat::System, "TEXT: sets what the model is told first; without TEXT, none"}},
        {"/effort", {&Chat::Effort, "low, high, max or off: how much the model thinks"}},
        {"/fold", {&Chat::Fold, "shows thoughts, or only counts them"}},
        {"/stats", {&Chat::Stats, "says what the last answer took, and what is in memory"}},
        {"/undo", {&Chat::Undo, "takes back the last message and its answer"}},
        {"/regenerate", {&Chat::Regenerate, "answers the last message anew"}},
        {"/exit", {&Chat::Exit, "ends"}},
    };
    return commands;
  }

  // How much of the context is used, as at a terminal the line begins with.
  std::string Prompt() const {
    return fmt::format("[{}%] > ", 100 * conversation_.num_tokens() / conversation_.capacity());
  }

  void Handle(const std::string& message) {
    if (message[0] != '/')
      return Report(Answer([&] { return conversation_.Say(message, screen_); }));
    const size_t end = std::min(message.find_first_of(" \n"), message.size());
    const size_t rest = std::min(message.find_first_not_of(" \n", end), message.size());
    const auto command = Commands().find(message.substr(0, end));
    if (command == Commands().end()) {
      throw Error(ErrorCode::kUsage, "no command " + message.substr(0, end) + "; /help lists them");
    }
    (this->*command->second.handler)(message.substr(rest));
  }

  template <typename F>
  AnswerReport Answer(const F& function) {
    screen_.BeginAnswer();
    const AnswerReport report = function();
    screen_.EndAnswer();
    return report;
  }

  void Report(const AnswerReport& report) {
    report_ = report;
    if (report.dropped_turns > 0) {
      Note("(the context was full: the oldest {} of the turns dropped)\n", report.dropped_turns);
    }
    if (!report.answered) {
      Note("(stopped before the answer; the conversation is as before)\n");
    } else if (report.reason == FinishReason::kInterrupted) {
      Note("(stopped)\n");
    } else if (report.reason == FinishReason::kLength) {
      Note("(cut at {} tokens; -n sets the limit)\n", report.answer_tokens);
    } else if (report.reason == FinishReason::kContext) {
      Note("(cut: the context of {} tokens is full)\n", conversation_.capacity());
    }
    if (!session_file_.empty()) conversation_.Save(session_file_);
  }

  // NOLINTNEXTLINE(readability-convert-member-functions-to-static): called as the others
  void Help(const std::string&) {
    for (const auto& [name, command] : Commands()) {
      Note("{:<12} {}\n", name, command.help);
    }
    Note(
        "A backslash at the end of a line continues the message, as do three double quotes\n"
        "on a line until the next such line. Ctrl-C stops an answer.\n");
  }
  void Reset(const std::string&) { conversation_.Reset(); }
  void Save(const std::string& file) {
    if (file.empty()) throw Error(ErrorCode::kUsage, "/save needs a file");
    conversation_.Save(file);
    Note("{} turns saved in {}\n", conversation_.num_turns(), file);
  }
  void Load(const std::string& file) {
    if (file.empty()) throw Error(ErrorCode::kUsage, "/load needs a file");
    conversation_.Load(file);
    Note("{} turns, {} tokens loaded from {}\n", conversation_.num_turns(),
         conversation_.num_tokens(), file);
  }
  void System(const std::string& text) { conversation_.SetSystem(text); }
  void Effort(const std::string& effort) { conversation_.SetEffort(effort == "off" ? "" : effort); }
  void Fold(const std::string&) { screen_.set_folded(!screen_.folded()); }
  void Undo(const std::string&) {
    if (!conversation_.Undo()) throw Error(ErrorCode::kUsage, "there is nothing to take back");
    Note("{} {} left\n", conversation_.num_turns(),
         conversation_.num_turns() == 1 ? "turn" : "turns");
  }
  void Regenerate(const std::string&) {
    Report(Answer([&] { return conversation_.Regenerate(screen_); }));
  }
  void Exit(const std::string&) { ended_ = true; }

  void Stats(const std::string&) {
    const EngineStats stats = engine_.stats();
    Note("context: {} of {} tokens in {} turns; snapshots {}\n", conversation_.num_tokens(),
         conversation_.capacity(), conversation_.num_turns(),
         FormatBytes(conversation_.snapshot_bytes()));
    Note(
        "last answer: prompt {} tokens, {} of them known, the rest in {}; {} tokens made in "
        "{} ({:.3g} tokens/s)\n",
        report_.prompt_tokens, report_.reused_tokens, FormatSeconds(report_.prefill_seconds),
        report_.answer_tokens, FormatSeconds(report_.decode_seconds),
        report_.decode_seconds > 0
            ? static_cast<double>(report_.answer_tokens) / report_.decode_seconds
            : 0);
    Note("memory {} at most, of {} granted; read {}, {:.1f} % of experts in memory\n",
         FormatBytes(ReadProcessMemory().peak_rss_bytes), FormatBytes(engine_.budget_bytes()),
         FormatBytes(stats.ReadBytes()), 100 * stats.HitRate());
  }

  Engine& engine_;
  const std::string session_file_;
  Conversation conversation_;
  ChatScreen screen_;
  LineReader reader_;
  AnswerReport report_;
  bool ended_ = false;
};

void RunChat(ChatOptions options) {
  const ModelDirectory model = ModelDirectory::Open(ModelOrEmbedded(options.model.model));
  FindChatMarkup(model.RequireTokenizer());
  CheckSamplingOptions(options.conversation.sampling);
  options.conversation.effort = options.effort == "off" ? "" : options.effort;
  EngineOptions engine_options;
  const auto engine = OpenEngine(model, options, &engine_options);
  Chat(*engine, engine_options.snapshot_bytes, options).Run();
}

}  // namespace

void AddChatCommand(CLI::App& program) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App& app = *program.add_subcommand("chat", "Talk with a model");
  AddEngineOptions(app, &options->model);
  AddText(app, "--system", "TEXT", &options->conversation.system, "What the model is told first");
  app.add_option("--effort", options->effort,
                 "How much the model thinks: low, high, max or off (default: low)")
      ->type_name("LEVEL")
      ->check(CLI::IsMember({"low", "high", "max", "off"}));
  AddText(
      app, "--session", "FILE", &options->session_file,
      "Continue the conversation in a file, if it exists, and save it there after every answer");
  AddCount(app, "-n", kSomeTokens, &options->conversation.max_tokens,
           "Maximum number of tokens of an answer, including the thought (default: 1024)");
  AddCount(app, "-c,--context", kSomeTokens, &options->context,
           "Tokens to make room for (default: 4096, or what the model can hold)");
  // What the model's makers recommend.
  SamplingOptions& sampling = options->conversation.sampling;
  sampling.temperature = 1.0F;
  sampling.top_p = 0.95F;
  AddSamplingOptions(app, &sampling);
  AddReal(app, "--temp", kTemperatures, &sampling.temperature,
          "Sampling temperature; 0 always takes the likeliest token (default: 1)");
  app.callback([options] { RunChat(*options); });
}

}  // namespace thimble::cli
