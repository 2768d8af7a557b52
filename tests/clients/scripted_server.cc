// The server before a script instead of a model, for the public clients: what a request's prompt
// says between SCRIPT and TPIRCS, as JSON, is the answer. {"markup": the answer with its markup,
// "error": what then fails; absent: nothing}. As with a model, max_tokens cuts it.
// Usage: scripted_server MODEL_DIR. Prints the server's address.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "server/http_server.h"
#include "server/scripted_backend.h"

namespace thimble::server {
namespace {

void Play(const Tokenizer& tokenizer, Job& job) {
  const std::string prompt = tokenizer.Decode(job.request().prompt);
  const size_t begin = prompt.rfind("SCRIPT{") + 6;
  const nlohmann::json script =
      nlohmann::json::parse(prompt.substr(begin, prompt.rfind("TPIRCS") - begin), nullptr, false);
  if (script.is_discarded()) return job.Fail("no script in the prompt");
  job.SetProgress(JobPhase::kPrompt, 0);
  std::vector<TokenId> ids;
  tokenizer.EncodeMarkup(script.value("markup", ""), &ids);
  const bool cut = ids.size() > job.request().max_tokens;
  if (cut) ids.resize(job.request().max_tokens);
  for (const TokenId id : ids) job.Put({id, -0.5, {}});
  if (script.contains("error")) return job.Fail(script["error"]);
  job.End(cut ? FinishReason::kLength : FinishReason::kStop);
}

[[noreturn]] void ServeScripts(const std::string& model) {
  const Tokenizer tokenizer = Tokenizer::Load(model);
  ServedModel served;
  served.tokenizer = &tokenizer;
  served.markup = FindChatMarkup(tokenizer);
  served.name = "scripted";
  served.context = 65'536;
  ScriptedBackend backend([&](Job& job) { Play(tokenizer, job); });
  HttpOptions options;
  options.port = 0;
  HttpServer server(options, served, backend);
  fmt::print("http://127.0.0.1:{}\n", server.Start());
  std::fflush(stdout);
  while (true) ::pause();
}

}  // namespace
}  // namespace thimble::server

int main(int argc, char** argv) try {
  if (argc != 2) {
    fmt::print(stderr, "usage: scripted_server MODEL_DIR\n");
    return 2;
  }
  thimble::server::ServeScripts(argv[1]);
} catch (const thimble::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.code());
}
