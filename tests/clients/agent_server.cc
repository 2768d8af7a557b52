// The server before a script instead of a model, for agents, whose prompts are longer than what the
// small model holds. Where the agent offers TOOL, each COMMAND in turn is thought about, and called
// with as argument KEY; then the answer says how many thoughts came back, how many prompts went on
// from the one before, so that only what is new needs computing, and what the last call gave. What
// offers no such tool (agents ask for titles) gets one line. Usage: agent_server MODEL_DIR TOOL KEY
// COMMAND... Prints the server's address, and one line for each request.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/http_server.h"
#include "server/scripted_backend.h"

namespace thimble::server {
namespace {

constexpr size_t kContext = 65'536;
constexpr std::string_view kResult = "<|open|>message role=\"tool\"";

struct AgentScript {
  std::string tool;
  std::string key;
  std::vector<std::string> commands;
};

std::string Thought(size_t step) { return fmt::format("This is thought {}.", step); }

size_t Count(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) {
    ++count;
  }
  return count;
}

std::string_view LastResult(std::string_view prompt) {
  prompt.remove_prefix(prompt.rfind(kResult));
  prompt.remove_prefix(prompt.find("<|sep|>") + 7);
  return prompt.substr(0, prompt.find("<|close|>message"));
}

std::string Message(const std::string& thought, const std::string& content,
                    const std::string& calls) {
  return thought + "<|close|>think<|sep|><|open|>response<|sep|>" + content +
         "<|close|>response<|sep|>" + calls + "<|close|>message<|sep|><|end_of_msg|>";
}

bool OffersTool(const AgentScript& script, const std::string& prompt) {
  return prompt.find("\"name\":\"" + script.tool + "\"") != std::string::npos;
}

std::string Reply(const AgentScript& script, const std::string& prompt, size_t num_continued) {
  if (!OffersTool(script, prompt)) return Message("", "A title", "");
  const size_t step = Count(prompt, kResult);
  if (step < script.commands.size()) {
    const std::string call = fmt::format(
        "<|open|>tools<|sep|><|open|>call tool=\"{}\" index=\"1\"<|sep|>"
        "<|open|>argument key=\"{}\" type=\"string\"<|sep|>{}<|close|>argument<|sep|>"
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        script.tool, script.key, script.commands[step]);
    return Message(Thought(step), "", call);
  }
  size_t kept = 0;
  for (size_t i = 0; i < step; ++i) kept += prompt.find(Thought(i)) != std::string::npos ? 1 : 0;
  return Message(
      "All is done.",
      fmt::format("{} of {} thoughts came back, {} prompts went on. The last call gave: {}", kept,
                  step, num_continued, LastResult(prompt)),
      "");
}

// Counts the prompts of a conversation that begin with the one before.
class Conversation {
 public:
  size_t Continued(const std::vector<TokenId>& prompt) {
    const std::lock_guard lock(mutex_);
    if (!last_.empty() && last_.size() < prompt.size() &&
        std::equal(last_.begin(), last_.end(), prompt.begin())) {
      ++count_;
    }
    last_ = prompt;
    return count_;
  }

 private:
  std::mutex mutex_;
  std::vector<TokenId> last_;
  size_t count_ = 0;
};

[[noreturn]] void Serve(const std::string& model, const AgentScript& script) {
  const Tokenizer tokenizer = Tokenizer::Load(model);
  ServedModel served;
  served.tokenizer = &tokenizer;
  served.markup = FindChatMarkup(tokenizer);
  served.name = "scripted";
  served.context = kContext;
  Conversation conversation;
  ScriptedBackend backend([&](Job& job) {
    const std::string prompt = tokenizer.Decode(job.request().prompt);
    fmt::print("a prompt of {} tokens, {} results of tools\n", job.request().prompt.size(),
               Count(prompt, kResult));
    std::fflush(stdout);
    // Longer than Codex is told to wait without a sign of life.
    for (size_t done = 0; done < 15 && !job.cancelled(); ++done) {
      job.SetProgress(JobPhase::kPrompt, done);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    std::vector<TokenId> ids;
    const size_t continued =
        OffersTool(script, prompt) ? conversation.Continued(job.request().prompt) : 0;
    tokenizer.EncodeMarkup(Reply(script, prompt, continued), &ids);
    for (const TokenId id : ids) job.Put({id, 0, {}});
    job.End(FinishReason::kStop);
  });
  HttpOptions options;
  options.port = 0;
  options.time_scale = 20;
  HttpServer server(options, served, backend);
  fmt::print("http://127.0.0.1:{}\n", server.Start());
  std::fflush(stdout);
  while (true) ::pause();
}

}  // namespace
}  // namespace thimble::server

int main(int argc, char** argv) try {
  if (argc < 5) {
    fmt::print(stderr, "usage: agent_server MODEL_DIR TOOL KEY COMMAND...\n");
    return 2;
  }
  thimble::server::Serve(argv[1], {argv[2], argv[3], {argv + 4, argv + argc}});
} catch (const thimble::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.code());
}
