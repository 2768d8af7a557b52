#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/byte_size.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/outputs.h"
#include "dialogue/conversation.h"
#include "engine/planner.h"
#include "engine/session_file.h"
#include "io/output_file.h"
#include "memory/process_memory.h"
#include "outlook/embedded_model.h"
#include "terminal/chat_screen.h"
#include "terminal/interrupt.h"
#include "terminal/line_reader.h"
#include "terminal/output.h"

namespace thimble::cli {
namespace {

constexpr size_t kDefaultChatContext = 4096;
// Of the context, enough to go back a few turns.
constexpr uint64_t kMaxSnapshots = 8;
// Of a conversation that is resumed: turns, and bytes of the texts of all but the last.
constexpr size_t kShownTurns = 3;
constexpr size_t kShownBytes = 400;

struct ChatOptions {
  ModelOptions model;
  std::string effort = "low";
  std::string session_file;  // empty: none
  std::optional<size_t> context;
  ConversationOptions conversation;
};

// With snapshots where the memory allows, otherwise without.
std::unique_ptr<Engine> OpenEngine(const ModelDirectory& model, const ChatOptions& options,
                                   EngineOptions* engine_options) {
  const uint64_t budget = options.model.MemoryBytes().value_or(DefaultMemoryBudget());
  *engine_options = options.model.ForEngine();
  engine_options->memory_bytes = budget;
  engine_options->context =
      options.context.value_or(std::min(kDefaultChatContext, model.config.max_context));
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

// "~/x" as a shell reads it.
std::filesystem::path WithHome(const std::string& file) {
  const char* home = std::getenv("HOME");
  const bool in_home = home != nullptr && file.starts_with("~/");
  return in_home ? std::filesystem::path(home) / file.substr(2) : std::filesystem::path(file);
}

// The beginning of a text, whole characters only.
std::string Shortened(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + " ...";
}

class Chat {
 public:
  Chat(Engine& engine, uint64_t snapshot_bytes, const ChatOptions& options)
      : engine_(engine),
        session_file_(options.session_file),
        conversation_(engine, snapshot_bytes, options.conversation),
        screen_(engine) {}

  void Run() {
    if (!session_file_.empty() && SessionFile::Exists(session_file_)) Load(session_file_);
    if (reader_.interactive()) Note("/help lists commands; Ctrl-D ends.\n");
    CountInterrupts();
    while (!ended_ && !Ending() && !screen_.failure()) {
      const auto message = reader_.Read(Prompt());
      if (!message) break;
      ForgetInterrupts();
      if (message->find_first_not_of(" \t\n") != std::string::npos) Try(*message);
    }
    if (reader_.interactive() && !ended_) Note("\n");
    Finish();
  }

 private:
  // Whatever fails, the conversation goes on.
  void Try(const std::string& message) {
    try {
      Handle(message);
    } catch (const Error& error) {
      Note("{}\n", error.what());
      const bool is_usage = error.code() == ErrorCode::kUsage || message[0] == '/';
      if (!is_usage) failure_ = error.code();
    } catch (const std::exception& error) {
      Note("{}\n", error.what());
      if (message[0] != '/') failure_ = ErrorCode::kRuntime;
    }
  }

  // Brings what is not in the session's file yet to a place that is named.
  void Finish() {
    LastSteps steps;
    if (changed_ && !session_file_.empty()) {
      const auto save = [&](const std::filesystem::path& path) { conversation_.Save(path); };
      steps.Do([&] {
        SaveOrRescue(
            session_file_, [&] { save(session_file_); }, save);
      });
    }
    if (screen_.failure() && !Ending())
      steps.Do([&] { std::rethrow_exception(screen_.failure()); });
    steps.ThrowFailure();
    if (Ending()) throw Error(ErrorCode::kInterrupted, "");
    // At a terminal the user has seen it; a script has to be told.
    if (failure_ && !reader_.interactive()) throw Error(*failure_, "an answer failed");
  }

  using Handler = void (Chat::*)(const std::string&);
  struct Command {
    Handler handler;
    const char* help;
  };
  static const std::map<std::string, Command>& Commands() {
    static const std::map<std::string, Command> commands = {
        {"/continue", {&Chat::Continue, "continues the last answer where it was cut"}},
        {"/effort", {&Chat::Effort, "low, high, max or off: how much the model thinks"}},
        {"/exit", {&Chat::Exit, "ends"}},
        {"/fold", {&Chat::Fold, "shows thoughts, or only counts them"}},
        {"/help", {&Chat::Help, "lists these commands"}},
        {"/load", {&Chat::Load, "FILE: continues the conversation in a file"}},
        {"/regenerate", {&Chat::Regenerate, "replaces the last answer by another one"}},
        {"/reset", {&Chat::Reset, "forgets the conversation"}},
        {"/save", {&Chat::Save, "FILE: saves the conversation and its computed state"}},
        {"/stats", {&Chat::Stats, "shows what the last answer cost, and the memory in use"}},
        {"/system", {&Chat::System, "TEXT: sets what the model is told first; without TEXT, none"}},
        {"/undo", {&Chat::Undo, "takes back the last message and its answer"}},
    };
    return commands;
  }

  // At a terminal the line begins with how much of the context is used.
  std::string Prompt() const {
    return fmt::format("[{}%] > ", 100 * conversation_.num_tokens() / conversation_.capacity());
  }

  void Handle(const std::string& message) {
    if (message[0] != '/') return Say(message);
    const size_t end = std::min(message.find_first_of(" \n"), message.size());
    const size_t rest = std::min(message.find_first_not_of(" \n", end), message.size());
    const size_t last = message.find_last_not_of(" \n");
    const auto command = Commands().find(message.substr(0, end));
    if (command == Commands().end()) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("no command {}; /help lists them. A message that begins with / needs a "
                      "space before it",
                      message.substr(0, end)));
    }
    (this->*command->second.handler)(rest > last ? "" : message.substr(rest, last + 1 - rest));
  }

  template <typename F>
  AnswerReport Answer(const F& function) {
    screen_.BeginAnswer();
    try {
      const AnswerReport report = function();
      screen_.EndAnswer();
      return report;
    } catch (...) {
      screen_.EndAnswer();
      throw;
    }
  }

  void Report(const AnswerReport& report) {
    report_ = report;
    if (report.dropped_turns > 0) {
      Note("(the context was full: the oldest {} dropped)\n",
           report.dropped_turns == 1 ? std::string("turn was")
                                     : fmt::format("{} turns were", report.dropped_turns));
    }
    if (!report.answered) {
      Note("(stopped before the answer; the conversation is as before)\n");
    } else if (report.reason == FinishReason::kInterrupted) {
      Note("(stopped; /continue continues it)\n");
    } else if (report.reason == FinishReason::kLength) {
      Note("(cut at {} tokens, which -n sets; /continue continues it)\n", report.answer_tokens);
    } else if (report.reason == FinishReason::kContext) {
      Note("(cut: the context of {} tokens is full)\n", conversation_.capacity());
    }
    changed_ = changed_ || report.answered;
    SaveSession();
  }

  // A failure costs nothing yet: the next answer tries again, and so does the end.
  void SaveSession() {
    if (session_file_.empty() || !changed_) return;
    try {
      conversation_.Save(session_file_);
      changed_ = false;
    } catch (const std::exception& error) {
      Note("warning: the conversation is not saved: {}\n", error.what());
    }
  }

  void Say(const std::string& message) {
    const AnswerReport report = Answer([&] { return conversation_.Say(message, screen_); });
    if (!report.answered && Ending() && !session_file_.empty()) {
      // Hours may have gone into reading the message.
      conversation_.Ask(message);
      changed_ = true;
      return;
    }
    Report(report);
  }

  // Where the conversation stands, for someone who returns to it.
  void ShowLastTurns() const {
    const size_t count = conversation_.num_turns();
    for (size_t i = count - std::min(count, kShownTurns); i < count; ++i) {
      const size_t limit = i + 1 == count ? SIZE_MAX : kShownBytes;
      Note("> {}\n", Shortened(PlainText(conversation_.user(i)), limit));
      Note("{}\n", Shortened(PlainText(conversation_.answer(i)), limit));
    }
    if (conversation_.is_cut()) Note("(cut; /continue continues it)\n");
  }

  // NOLINTNEXTLINE(readability-convert-member-functions-to-static): called as the others
  void Help(const std::string&) {
    for (const auto& [name, command] : Commands()) {
      Note("{:<12} {}\n", name, command.help);
    }
    Note(
        "A pasted text is one message. A backslash at the end of a line continues the message, as "
        "do\n"
        "three double quotes on a line until the next such line. Ctrl-C stops an answer.\n");
  }
  void Reset(const std::string&) {
    changed_ = changed_ || conversation_.num_turns() > 0;
    conversation_.Reset();
  }
  void Save(const std::string& file) {
    if (file.empty()) throw Error(ErrorCode::kUsage, "/save needs a file");
    const std::filesystem::path path = WithHome(file);
    conversation_.Save(path);
    Note("{} turns saved in {}\n", conversation_.num_turns(), path.string());
  }
  void Load(const std::string& file) {
    if (file.empty()) throw Error(ErrorCode::kUsage, "/load needs a file");
    const std::filesystem::path path = WithHome(file);
    conversation_.Load(path);
    changed_ = path != session_file_;
    Note("{} turns, {} tokens loaded from {}\n", conversation_.num_turns(),
         conversation_.num_tokens(), path.string());
    ShowLastTurns();
  }
  void System(const std::string& text) { conversation_.SetSystem(text); }
  void Effort(const std::string& effort) {
    if (effort.empty()) throw Error(ErrorCode::kUsage, "/effort needs low, high, max or off");
    conversation_.SetEffort(effort == "off" ? "" : effort);
  }
  void Fold(const std::string&) { screen_.set_folded(!screen_.folded()); }
  void Undo(const std::string&) {
    if (!conversation_.Undo()) throw Error(ErrorCode::kUsage, "there is nothing to take back");
    changed_ = true;
    Note("{} {} left\n", conversation_.num_turns(),
         conversation_.num_turns() == 1 ? "turn" : "turns");
  }
  void Regenerate(const std::string&) {
    Report(Answer([&] { return conversation_.Regenerate(screen_); }));
  }
  void Continue(const std::string&) {
    Report(Answer([&] { return conversation_.Continue(screen_); }));
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
  bool changed_ = false;              // since it was saved in the session's file
  std::optional<ErrorCode> failure_;  // of an answer
};

void RunChat(ChatOptions options) {
  if (!options.session_file.empty()) CheckOutputFile(options.session_file);
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
